// Forward where each lane has slopes of its own, which follow each other along a line: a shape for each channel, the
// channels last.
//
// Lanes that differ have no table in common, so hinges are added one by one. In AVX-512 four lines at a time: slopes are
// loaded once for all, since a core may load no more than one of its registers a cycle.
#pragma once

#include <algorithm>

#include "native.h"
#include "parameters.h"
#include "simd.h"
#include "strips.h"

namespace splash_units {
namespace {

template <class C, int K>
struct HingesInLanes {
  static constexpr int most = K ? K : most_hinges;
  const int count;  // K, or if that is 0, counted at run time
  Vec<C> at[most];
  explicit SPLASH_INLINE HingesInLanes(const Lanes<C>& p) : count(K ? K : p.hinges) {
    for (int s = 0; s < count; ++s) at[s] = all<C>(p.at[s]);
  }
};

// Sums of ramps times slopes, from 0 on: h(0) is no -0.0. Where a mask leaves lanes out at no cost, a slope is chosen by the
// side of its input; elsewhere both sides are summed up, and one of them is chosen at the end.
template <class C, bool chooses_first = has_masks>
struct OwnSum {
  Vec<C> sum{};
  static SPLASH_INLINE Vec<C> slope(Vec<C> v) { return in_order(v); }  // loaded once, or the compiler would load it for each row
  SPLASH_INLINE void add(Vec<C> z, Vec<C> right, Vec<C> left, Vec<C> ramp) { sum += by_sign<C>(z, left, right) * ramp; }
  SPLASH_INLINE Vec<C> of_side(Vec<C>) const { return sum; }
};
template <class C>
struct OwnSum<C, false> {
  Vec<C> right_sum{}, left_sum{};
  static SPLASH_INLINE Vec<C> slope(Vec<C> v) { return v; }
  SPLASH_INLINE void add(Vec<C>, Vec<C> right, Vec<C> left, Vec<C> ramp) { right_sum += right * ramp, left_sum += left * ramp; }
  SPLASH_INLINE Vec<C> of_side(Vec<C> z) const { return by_sign<C>(z, left_sum, right_sum); }
};

template <class T, int K, Affine affine>
SPLASH_ONE_COPY void forward_own_strip(const T* x, T* y, int64_t n, int64_t stride, int filled, const Lanes<compute_t<T>>& p) {
  using C = compute_t<T>;
  constexpr int W = lanes<C>::count;
  const HingesInLanes<C, K> hinges(p);
  const Norms<C, affine> norms(p);
  const Slopes<C> all_pos = p.pos, all_neg = p.neg;  // copies: for all the compiler knows, a store may change the originals
  const int64_t line = p.line_vectors;
  Watch<C> watch;
  const auto vectors = [&]<int rows>(int64_t first, int64_t v) SPLASH_INLINE_LAMBDA {  // one a row, of the same channels
    const auto place = [&](int row) SPLASH_INLINE_LAMBDA { return (first + row * line + v) * W; };
    const Slopes<C> pos = all_pos.beyond(v), neg = all_neg.beyond(v);
    Vec<C> z[rows], u[rows];
    SPLASH_UNROLLED
    for (int row = 0; row < rows; ++row) {
      fetch_ahead(x + place(row), y + place(row));
      z[row] = normalised<affine>(in_order(stored<T>::load(x + place(row))), norms[v]), u[row] = magnitude<C>(z[row]);
      watch.see_least(z[row]), watch.see_largest(u[row]);
    }
    OwnSum<C> h[rows];
    for (int s = 0; s < hinges.count; ++s) {
      const Vec<C> right = OwnSum<C>::slope(pos[s]), left = OwnSum<C>::slope(neg[s]);
      SPLASH_UNROLLED
      for (int row = 0; row < rows; ++row)  // the first hinge is at zero
        h[row].add(z[row], right, left, s == 0 ? u[row] : ramp_of<C>(u[row] - hinges.at[s]));
    }
    SPLASH_UNROLLED
    for (int row = 0; row < rows; ++row) stored<T>::store(y + place(row), h[row].of_side(z[row]));
  };
  int64_t i = 0;
  const auto rows_at_a_time = [&]<int rows>() SPLASH_INLINE_LAMBDA {
    for (; i + rows * line <= n; i += rows * line)
      for (int64_t v = 0; v < line; ++v) vectors.template operator()<rows>(i, v);
  };
  if constexpr (has_masks) rows_at_a_time.template operator()<4>();
  rows_at_a_time.template operator()<1>();
  for (int64_t v = 0; v < n - i; ++v) vectors.template operator()<1>(i, v);  // of a line's beginning
  if (!watch.saw_negative_zero() && !watch.saw_infinity_or_nan()) [[likely]] return;
  forward_one_by_one<T, affine, true>(x, y, n, stride, filled, p);
}

}  // namespace
}  // namespace splash_units
