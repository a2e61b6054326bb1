// Room for a few values without asking for memory, which a small tensor's call would do ten times in vain.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <type_traits>

namespace splash_units {
namespace {

constexpr size_t cache_line = 64;

// `count` values: inside, where they are few and start as anything, else in memory of their own. They begin a line of
// the cache: a vector that lies in two lines takes twice as long to load.
template <class T, int few>
class Room {
 public:
  explicit Room(int64_t count) : many_(count > few ? static_cast<T*>(::operator new(count * sizeof(T), alignment)) : nullptr) {
    std::uninitialized_value_construct_n(many_.get(), many_ ? count : 0);
  }
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  T* data() { return many_ ? many_.get() : few_; }
  T& operator[](int64_t i) { return data()[i]; }
  const T& operator[](int64_t i) const { return (many_ ? many_.get() : few_)[i]; }

 private:
  static_assert(std::is_trivially_destructible_v<T>);
  static constexpr std::align_val_t alignment{std::max(cache_line, alignof(T))};
  struct Free {
    void operator()(T* values) const { ::operator delete(values, alignment); }
  };
  alignas(static_cast<size_t>(alignment)) T few_[few];
  std::unique_ptr<T[], Free> many_;
};

}  // namespace
}  // namespace splash_units
