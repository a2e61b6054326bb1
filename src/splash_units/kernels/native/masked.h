// Backward where lanes can be left out of an instruction, as in AVX-512: one loop for dx and for all sums.
//
// Masks keep the two sides apart. Off a grid they also tell which lanes lie beyond a hinge, which makes its ramp and counts
// its segment; on a grid the cell's number is rounded up, and whole numbers that are compared make the ramps.
#pragma once

#include "backward.h"
#include "native.h"
#include "parameters.h"
#include "simd.h"
#include "strips.h"

namespace splash_units {
namespace {

// Which lanes lie right of zero and which left. Zero is on neither side, but for a grid, where it has a cell of its own: there
// any side will do.
struct Sides {
  Mask right, left;
};
template <Finder finder> SPLASH_INLINE Sides sides_of(Vec<float> z) {
  if constexpr (finder != Finder::grid) return {right_of_zero(z), left_of_zero(z)};
  const Mask left = negative(z);
  return {others(left), left};
}

// A strip's slopes: of cells or segments that are looked up, or added up where each lane has its own.
template <Finder finder, int K>
struct MaskedSlopes;
template <int K>
struct MaskedSlopes<Finder::grid, K> {
  const Vec<float> right, left, cells_per_unit, farthest;
  explicit SPLASH_INLINE MaskedSlopes(const Lanes<float>& p)
      : right(p.table->slope), left(p.table->slope_neg), cells_per_unit(all<float>(p.table->cells_per_unit)),
        farthest(all<float>(p.table->last / p.table->cells_per_unit)) {}
  SPLASH_INLINE Vec<float> operator()(Vec<float> u, const Sides& sides, const Mask*) const {
    const Ints<float> cell = ceiling_in_low_bits(at_most(farthest, u), cells_per_unit);  // exact: so many are a power of two
    return chosen(sides.left, lookup(left, cell), lookup(right, cell));
  }
};
template <int K>
struct MaskedSlopes<Finder::segments, K> {
  const Found<Finder::segments, K> found;
  explicit SPLASH_INLINE MaskedSlopes(const Lanes<float>& p) : found(p.table) {}
  SPLASH_INLINE Vec<float> operator()(Vec<float>, const Sides& sides, const Mask* beyond) const {
    Ints<float> j{};
    unrolled<K - 1>([&](auto s) SPLASH_INLINE_LAMBDA { j = chosen(beyond[s], Ints<float>{} - (s + 1), j); });
    const Vec<float> right = chosen(sides.right, found.look_up(found.t.slope, j), Vec<float>{});
    return chosen(sides.left, found.look_up(found.t.slope_neg, j), right);
  }
};
template <int K>
struct MaskedSlopes<Finder::compare, K> {
  Vec<float> right[K], left[K];
  explicit SPLASH_INLINE MaskedSlopes(const Lanes<float>& p) {
    unrolled<K>([&](auto s) SPLASH_INLINE_LAMBDA { right[s] = p.pos[s], left[s] = -p.neg[s]; });
  }
  SPLASH_INLINE Vec<float> operator()(Vec<float>, const Sides& sides, const Mask* beyond) const {
    Vec<float> slope = chosen(sides.left, left[0], chosen(sides.right, right[0], Vec<float>{}));
    unrolled<K - 1>([&](auto s) SPLASH_INLINE_LAMBDA {
      slope = chosen(beyond[s], slope + chosen(sides.left, left[s + 1], right[s + 1]), slope);
    });
    return slope;
  }
};

// At most `sum_length` vectors.
template <class T, int K, Affine affine, bool writes, bool sums, Finder finder>
SPLASH_ONE_COPY void backward_masked_strip(const T* x, const T* grad, T* dx, int64_t n, int64_t stride, int filled,
                                           const Lanes<float>& p, const Totals<float>& totals) {
  const Norms<float, affine> norms(p);
  const MaskedSlopes<finder, K> slopes(p);
  Passing<float, affine, sums> passing{norms, totals};
  const SavedRecent<float, affine, sums> before(totals, n);
  Watch<float> watch;
  Vec<float> at[K - 1], right[K], left[K];  // the first hinge is at zero
  unrolled<K - 1>([&](auto s) SPLASH_INLINE_LAMBDA { at[s] = all<float>(p.at[s + 1]); });
  unrolled<K>([&](auto s) SPLASH_INLINE_LAMBDA { right[s] = left[s] = Vec<float>{}; });
  const auto pass = [&](Vec<float> in, Vec<float> g, int64_t i) SPLASH_INLINE_LAMBDA {
    const Vec<float> z = normalised<affine>(in, norms[i]), u = magnitude<float>(z);
    const Sides sides = sides_of<finder>(z);
    const auto add = [&](auto s, Vec<float> ramp) SPLASH_INLINE_LAMBDA {
      right[s] = plus_product_where(sides.right, right[s], g, ramp), left[s] = plus_product_where(sides.left, left[s], g, ramp);
    };
    Mask beyond[K - 1];
    if constexpr (sums) add(std::integral_constant<int, 0>{}, u);
    else watch.see_largest(u);
    unrolled<K - 1>([&](auto s) SPLASH_INLINE_LAMBDA {
      constexpr std::integral_constant<int, s + 1> next;
      if constexpr (finder == Finder::grid) {
        if constexpr (sums) add(next, ramp_of<float>(u - at[s]));
      } else {
        beyond[s] = above(u, at[s]);
        if constexpr (sums) add(next, difference_where(beyond[s], u, at[s]));
      }
    });
    // + 0: a flat segment passes on 0.0, never -0.0, as torch.relu has it
    return passing.dx(g * slopes(u, sides, beyond) + Vec<float>{}, in, i);
  };
  by_two(n, [&]<int count>(int64_t i) SPLASH_INLINE_LAMBDA {
    constexpr bool in_twos = goes_in_twos<T, affine, finder>;
    Vec<float> v[count], g[count];
    load_vectors<T, in_twos, count>(x + i * stride, stride, v), load_vectors<T, in_twos, count>(grad + i * stride, stride, g);
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) v[q] = pass(v[q], g[q], i + q);
    if constexpr (writes) store_vectors<T, in_twos, count>(dx + i * stride, stride, v);
  });
  // What is infinite or NaN makes the first sums so.
  if constexpr (sums) watch.see_largest(magnitude<float>(right[0])), watch.see_largest(magnitude<float>(left[0]));
  if (watch.saw_infinity_or_nan()) [[unlikely]] {
    before.restore(totals, n);
    return backward_one_by_one<T, affine, writes, sums>(x, grad, dx, n, stride, filled, p, totals);
  }
  if constexpr (sums)
    unrolled<K>([&](auto s) SPLASH_INLINE_LAMBDA {
      totals.pos[s] += __builtin_convertvector(right[s], Wide<float>), totals.neg[s] += __builtin_convertvector(left[s], Wide<float>);
    });
  passing.add_up();
}

}  // namespace
}  // namespace splash_units
