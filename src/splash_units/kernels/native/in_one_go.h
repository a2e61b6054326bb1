// A small layer behind batch norm in one go: of some channels the statistics, what follows from them and what the unit makes of
// it, while they are in cache, then of the next. A channel is one thread's alone: threads meet once, and none has to fetch what
// another has just written. Inside a network, whose other layers have filled the caches meanwhile, that is what takes longest.
#pragma once

#include <algorithm>
#include <cstring>

#include "backward.h"
#include "batch_norm.h"
#include "native.h"
#include "parameters.h"
#include "simd.h"
#include "strips.h"
#include "walk.h"

namespace splash_units {
namespace {

// The columns of a matrix, in vectors that take whole lines of the cache.
template <class T>
struct InOneGo {
  using C = compute_t<T>;
  static constexpr int W = lanes<C>::count;
  static constexpr int at_a_time = 4;  // vectors, side by side
  // Of more channels, rows would be so far apart that stores hold up loads of other rows, since a core first compares the last
  // twelve bits of their addresses.
  static constexpr int64_t most_rows = 256, most_channels = 256;
  Extent e;
  int64_t vectors, tasks;

  explicit InOneGo(Extent extent)
      : e(extent), vectors(e.channels / W), tasks(std::max<int64_t>(std::min(e.size() / (piece / 2), vectors / at_a_time), 1)) {}
  bool fits() const {
    const bool has_lines = W * sizeof(T) == cache_line && e.inner == 1 && e.channels % W == 0;
    const bool is_compact = e.channels <= most_channels && e.outer >= fewest_rows_in_cache && e.outer <= most_rows;
    return has_lines && is_compact && e.size() <= worth_sharing;  // of more, each pass is shared
  }
  // Calls body(task, its first vector, and the one behind its last).
  template <class F>
  void run(const F& body) const {
    parallel(tasks, true, [&](int64_t task) { body(task, vectors * task / tasks, vectors * (task + 1) / tasks); });
  }
};

template <class T, class Strip>
void forward_in_one_go(const T* x, T* y, const InOneGo<T>& columns, const Strip& strip, const Lanes<compute_t<T>>& shape,
                       const ByBatch<compute_t<T>>& by_batch) {
  using C = compute_t<T>;
  constexpr int W = lanes<C>::count;
  constexpr int at_a_time = InOneGo<T>::at_a_time;
  const Extent e = columns.e;
  columns.run([&](int64_t, int64_t first, int64_t last) {
    Lanes<C> p = shape;
    for (int64_t v = first; v < last; v += at_a_time) {
      const int count = static_cast<int>(std::min<int64_t>(at_a_time, last - v));
      const int64_t c = v * W;
      const ByBatch<C> here = by_batch.from(c);
      moments_of_columns(x + c, e.outer, e.channels, W, count, here.mean, here.variance);
      normalise(count * W, here);
      for (int i = 0; i < count; ++i) {
        p.scale = stored<C>::load(here.scale + i * W), p.shift = stored<C>::load(here.shift + i * W);
        strip(x + c + i * W, y + c + i * W, e.outer, e.channels, W, p);
      }
    }
  });
}

// `totals` has a set for each task.
template <class C, class Strip>
void backward_in_one_go(const C* x, const C* grad, C* dx, const InOneGo<C>& columns, const Strip& strip, const Lanes<C>& shape, const Norm<C>& norm,
                        const Moves<C>& moves, TotalsOf<C>& totals, const Sums& sums) {
  constexpr int W = lanes<C>::count;
  const Extent e = columns.e;
  const auto load = [](const C* from) SPLASH_INLINE_LAMBDA { return stored<C>::load(from); };
  columns.run([&](int64_t task, int64_t first, int64_t last) {
    const Totals<C> mine = totals.at(task, task);
    Lanes<C> p = shape;
    const auto sum_up = [&](int64_t c) {  // and leave dz in dx
      p.scale = load(norm.scale + c), p.shift = load(norm.shift + c), p.mean = load(norm.mean + c);
      *mine.dz = *mine.dz_x = Wide<C>{};
      for (int64_t row = 0; row < e.outer; row += sum_length) {
        const int64_t at = row * e.channels + c;
        strip(x + at, grad + at, dx + at, std::min(sum_length, e.outer - row), e.channels, W, p, mine);
      }
      std::memcpy(sums.dz + c, mine.dz, W * sizeof(double)), std::memcpy(sums.dz_x + c, mine.dz_x, W * sizeof(double));
    };
    for (int64_t v = first; v < last; v += InOneGo<C>::at_a_time) {
      const int64_t count = std::min<int64_t>(InOneGo<C>::at_a_time, last - v), c = v * W;
      for (int64_t i = 0; i < count; ++i) sum_up(c + i * W);
      move_with_batch(count * W, norm.scale + c, sums.dz + c, sums.dz_x + c, {moves.count, moves.inverse_std + c, moves.from_x + c, moves.constant + c});
      const Norm<C> here{nullptr, nullptr, norm.mean + c, norm.scale + c, moves.from_x + c, moves.constant + c};
      finish_rows(x + c, dx + c, e.outer, e.channels, count * W, here);
    }
  });
}

}  // namespace
}  // namespace splash_units
