// Forward where hinges are whole numbers but for one at most, as the default ones are.
//
// Between such hinges lie cells, and a cell's number is floor(x), and one more beyond the hinge that is no
// whole number: x / 2b rounds to a whole number other than zero from there on. Eight cells fit a register, which
// gives a cell's slope and another its intercept: ten instructions where comparing with each hinge takes thirteen.
//
// Exact: nothing is rounded before the floor. At a hinge both segments give the same value, so it does not matter
// to which of them x / 2b, which is rounded, counts its neighbours.
#pragma once

#include "bytes.h"
#include "native.h"
#include "parameters.h"
#include "simd.h"
#include "strips.h"

namespace splash_units {
namespace {

template <class T, Affine affine, Finder finder>
SPLASH_ONE_COPY void forward_wholes_strip(const T* x, T* y, int64_t n, int64_t stride, int filled, const Lanes<float>& p) {
  constexpr bool in_twos = goes_in_twos<T, affine, Finder::wholes>;
  const Norms<float, affine> norms(p);
  const Vec<float> slopes = p.table->slope, intercepts = p.table->intercept;
  const Vec<float> farthest = all<float>(p.table->last), per_unit = all<float>(p.table->cells_per_unit);
  Watch<float> watch;
  const auto value = [&](Vec<float> z, int64_t) SPLASH_INLINE_LAMBDA {
    if constexpr (finder == Finder::wholes_falling) watch.see_least(z);
    const Vec<float> right_of = larger<float>(-farthest, z), kept = smaller<float>(farthest, right_of);
    const Ints<float> cell = bits<float>(floor_of(kept) + (kept * per_unit + whole_in_low_bits));
    return lookup(slopes, cell) * (finder == Finder::wholes_flat_left ? right_of : z) + lookup(intercepts, cell);
  };
  int64_t done = 0;
  if constexpr (in_twos) {
    // Numbers that are rounded at the end are long on their way: while two vectors look up, the next two find their cells.
    Vec<float> z[2], next[2], cell[2], slope[2], h[2], kept[2], whole[2];
    const auto each = [&](const auto& step) SPLASH_INLINE_LAMBDA {
      SPLASH_UNROLLED
      for (int q = 0; q < 2; ++q) step(q);
    };
    constexpr int64_t W = lanes<float>::count;  // neighbours' stride
    const auto load = [&](int64_t i) SPLASH_INLINE_LAMBDA { load_vectors<T, true, 2>(x + i * W, W, next); };
    const auto clip_left = [&](int q) SPLASH_INLINE_LAMBDA {
      if constexpr (finder == Finder::wholes_falling) watch.see_least(next[q]);
      kept[q] = in_order(larger<float>(-farthest, next[q]));
      if constexpr (finder == Finder::wholes_flat_left) next[q] = kept[q];
    };
    const auto clip_right = [&](int q) SPLASH_INLINE_LAMBDA { kept[q] = in_order(smaller<float>(farthest, kept[q])); };
    const auto round_down = [&](int q) SPLASH_INLINE_LAMBDA {
      whole[q] = in_order(floor_of(kept[q])), kept[q] = in_order(kept[q] * per_unit + whole_in_low_bits);
    };
    const auto arrive = [&](int q) SPLASH_INLINE_LAMBDA { cell[q] = in_order(whole[q] + kept[q]), z[q] = next[q]; };
    if (n >= 2) load(0), each(clip_left), each(clip_right), each(round_down), each(arrive);
    for (; done + 2 <= n; done += 2) {
      fetch_ahead(x + done * W, y + done * W);
      load(done + 4 <= n ? done + 2 : done);  // the last, once more
      each([&](int q) SPLASH_INLINE_LAMBDA { slope[q] = in_order(lookup(slopes, bits<float>(cell[q]))), clip_left(q); });
      each([&](int q) SPLASH_INLINE_LAMBDA { h[q] = in_order(lookup(intercepts, bits<float>(cell[q]))), clip_right(q); });
      each([&](int q) SPLASH_INLINE_LAMBDA { h[q] = in_order(slope[q] * z[q] + h[q]), round_down(q); });
      each(arrive);
      store_vectors<T, true, 2>(y + done * W, W, h);
    }
  }
  forward_by_two<T, affine, in_twos>(x + done * stride, y + done * stride, n - done, stride, norms, value);
  if constexpr (finder == Finder::wholes_falling)
    if (watch.saw_negative_zero()) [[unlikely]]
      forward_one_by_one<T, affine, false>(x, y, n, stride, filled, p);
}

}  // namespace
}  // namespace splash_units
