// Room for a few values without asking for memory, which a small tensor's call would do ten times in vain.
#pragma once

#include <cstdint>
#include <vector>

namespace splash_units {
namespace {

// `count` values: inside, where they are few and start as anything, else in memory of their own.
template <class T, int few>
class Room {
 public:
  explicit Room(int64_t count) : many_(count > few ? count : 0), values_(count > few ? many_.data() : few_) {}
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  T* data() { return values_; }
  T& operator[](int64_t i) { return values_[i]; }
  const T& operator[](int64_t i) const { return values_[i]; }

 private:
  T few_[few];
  std::vector<T> many_;
  T* values_;
};

}  // namespace
}  // namespace splash_units
