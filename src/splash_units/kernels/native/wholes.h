// Forward where hinges are whole numbers but for one at most, as the default ones are.
//
// Between such hinges lie cells, and a cell's number is floor(x), and one more beyond the hinge that is no
// whole number: x / 2b rounds to a whole number other than zero from there on. Eight cells fit a register, which
// gives a cell's slope and another its intercept: ten instructions where comparing with each hinge takes thirteen.
//
// Exact: nothing is rounded before the floor. At a hinge both segments give the same value, so it does not matter
// to which of them x / 2b, which is rounded, counts its neighbours.
#pragma once

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
  const Vec<float> whole_in_low_bits = all<float>(12582912);  // 3 * 2^22: its last place counts ones
  Watch<float> watch;
  const auto value = [&](Vec<float> z) SPLASH_INLINE_LAMBDA {
    if constexpr (finder == Finder::wholes_falling) watch.see_least(z);
    const Vec<float> right_of = larger<float>(-farthest, z), kept = smaller<float>(farthest, right_of);
    const Ints<float> cell = bits<float>(floor_of(kept) + (kept * per_unit + whole_in_low_bits));
    return lookup(slopes, cell) * (finder == Finder::wholes_flat_left ? right_of : z) + lookup(intercepts, cell);
  };
  by_two(n, [&]<int count>(int64_t i) SPLASH_INLINE_LAMBDA {
    fetch_two_ahead(x + i * stride, y + i * stride, stride);
    Vec<float> v[count];
    load_vectors<T, in_twos, count>(x + i * stride, stride, v);
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) v[q] = value(normalised<affine>(v[q], norms[i + q]));
    store_vectors<T, in_twos, count>(y + i * stride, stride, v);
  });
  if constexpr (finder == Finder::wholes_falling)
    if (watch.saw_negative_zero()) [[unlikely]]
      forward_one_by_one<T, affine, false>(x, y, n, stride, filled, p);
}

}  // namespace
}  // namespace splash_units
