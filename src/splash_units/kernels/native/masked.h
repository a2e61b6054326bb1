// Backward where lanes can be left out of an instruction, as in AVX-512: one loop for dx and for all sums.
//
// Masks tell which lanes lie beyond a hinge, which makes its ramp and counts its segment, and on which side of zero. On a grid
// the cell's number is rounded up instead, and whole numbers that are compared make the ramps.
#pragma once

#include "backward.h"
#include "native.h"
#include "parameters.h"
#include "simd.h"
#include "strips.h"

namespace splash_units {
namespace {

// On which side of zero lanes lie. Zero is on neither, but for a grid, where it has a cell of its own: there any side will do.
struct Sides {
  Mask right, left;
};
// The same as words of all ones or zeros, which any unit of a core can work with; those that multiply are busy.
struct SignWords {
  Ints<float> left;
};
SPLASH_INLINE SignWords sign_words(Vec<float> z) { return {bits<float>(z) >> 31}; }
template <Finder finder> SPLASH_INLINE auto sides_of(Vec<float> z) {
  if constexpr (finder == Finder::grid) return sign_words(z);
  else return Sides{right_of_zero(z), left_of_zero(z)};
}

// Gradients as they are on the side where their input lies; on the other, zero.
struct Parted {
  Vec<float> right, left;
};
SPLASH_INLINE Parted parted(Vec<float> g, const SignWords& sides) {
  return {(Vec<float>)(bits<float>(g) & ~sides.left), (Vec<float>)(bits<float>(g) & sides.left)};
}
SPLASH_INLINE Parted parted(Vec<float> g, const Sides& sides) {
  return {chosen(sides.right, g, Vec<float>{}), chosen(sides.left, g, Vec<float>{})};
}

// A strip's slopes: of cells or segments that are looked up, or added up where each lane has its own.
template <Finder finder, int K>
struct MaskedSlopes;
template <int K>
struct MaskedSlopes<Finder::grid, K> {
  const Vec<float> right, left, cells_per_unit, farthest;
  const Ints<float> second_register = Ints<float>{} + lanes<float>::count;
  explicit SPLASH_INLINE MaskedSlopes(const Lanes<float>& p)
      : right(p.table->slope), left(p.table->slope_neg), cells_per_unit(all<float>(p.table->cells_per_unit)),
        farthest(all<float>(p.table->last / p.table->cells_per_unit)) {}
  SPLASH_INLINE Vec<float> operator()(Vec<float> u, const SignWords& sides, const Mask*) const {
    const Ints<float> cell = ceiling_in_low_bits(at_most(farthest, u), cells_per_unit);  // exact: so many are a power of two
    return lookup(right, left, cell | (sides.left & second_register));
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

// Sums of all lanes, for K hinges of the right and then as many of the left: four at a time, and apart from the totals until
// all are known to be finite.
template <int K>
struct JointSums {
#if defined(__AVX2__)
  __m128 fours[K / 2];

  SPLASH_INLINE bool are_finite() const {
    __m128 nothing = _mm_setzero_ps();
    unrolled<K / 2>([&](auto four) SPLASH_INLINE_LAMBDA { nothing = _mm_add_ps(nothing, _mm_sub_ps(fours[four], fours[four])); });
    return _mm_movemask_ps(_mm_cmpeq_ps(nothing, _mm_setzero_ps())) == 0b1111;
  }
  // If four hinges do not divide them, `neg` must follow `pos`.
  SPLASH_INLINE void add_to(double* pos, double* neg) const {
    unrolled<K / 2>([&](auto four) SPLASH_INLINE_LAMBDA {
      constexpr int first = 4 * four;
      double* const to = first < K ? pos + first : neg + (first - K);
      _mm256_storeu_pd(to, _mm256_add_pd(_mm256_loadu_pd(to), _mm256_cvtps_pd(fours[four])));
    });
  }
#else
  static_assert(!has_masks, "who has masks has these instructions");  // so that nobody asks, but it must compile
  bool are_finite() const { return false; }
  void add_to(double*, double*) const {}
#endif
};

// Sums of g max(0, u - b) over the lanes of either side, for K hinges that follow each other.
template <int K>
struct MaskedSums {
  Vec<float> right[K], left[K];

  SPLASH_INLINE MaskedSums() {
    unrolled<K>([&](auto s) SPLASH_INLINE_LAMBDA { right[s] = left[s] = Vec<float>{}; });
  }
  SPLASH_INLINE void add(auto s, const Parted& g, Vec<float> ramp) { right[s] += g.right * ramp, left[s] += g.left * ramp; }
  SPLASH_INLINE JointSums<K> of_all_lanes() const {
    JointSums<K> sums;
#if defined(__AVX2__)
    unrolled<K / 2>([&](auto four) SPLASH_INLINE_LAMBDA {
      constexpr int first = 4 * four;
      Vec<float> v[4];
      unrolled<4>([&](auto k) SPLASH_INLINE_LAMBDA { v[k] = first + k < K ? right[(first + k) % K] : left[(first + k) % K]; });
      sums.fours[four] = lanes_of_four(v);
    });
#endif
    return sums;
  }
  // The same lane by lane: what is infinite or NaN makes the sums of the first hinge so, which is at zero.
  SPLASH_INLINE bool are_finite() const {
    Watch<float> watch;
    watch.see_largest(magnitude<float>(right[0])), watch.see_largest(magnitude<float>(left[0]));
    return !watch.saw_infinity_or_nan();
  }
  SPLASH_INLINE void add_to(Wide<float>* pos, Wide<float>* neg) const {
    unrolled<K>([&](auto s) SPLASH_INLINE_LAMBDA {
      pos[s] += __builtin_convertvector(right[s], Wide<float>), neg[s] += __builtin_convertvector(left[s], Wide<float>);
    });
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
  MaskedSums<K> ramps;
  Vec<float> at[K - 1];  // the first hinge is at zero
  unrolled<K - 1>([&](auto s) SPLASH_INLINE_LAMBDA { at[s] = all<float>(p.at[s + 1]); });
  const auto pass = [&](Vec<float> in, Vec<float> g, int64_t i) SPLASH_INLINE_LAMBDA {
    const Vec<float> z = normalised<affine>(in, norms[i]), u = magnitude<float>(z);
    const auto sides = sides_of<finder>(z);
    const Parted parts = parted(g, sides);
    Mask beyond[K - 1];
    if constexpr (sums) ramps.add(std::integral_constant<int, 0>{}, parts, u);
    else watch.see_largest(u);
    unrolled<K - 1>([&](auto s) SPLASH_INLINE_LAMBDA {
      constexpr std::integral_constant<int, s + 1> next;
      if constexpr (finder == Finder::grid) {
        if constexpr (sums) ramps.add(next, parts, ramp_of<float>(u - at[s]));
      } else {
        beyond[s] = above(u, at[s]);
        if constexpr (sums) ramps.add(next, parts, difference_where(beyond[s], u, at[s]));
      }
    });
    // + 0: a flat segment passes on 0.0, never -0.0, as torch.relu has it
    return passing.dx(g * slopes(u, sides, beyond) + Vec<float>{}, in, i);
  };
  constexpr bool in_twos = goes_in_twos<T, affine, finder>;
  by_two_with_gradients<T, in_twos>(x, grad, n, stride, [&]<int count>(int64_t i, Vec<float>* v, Vec<float>* g) SPLASH_INLINE_LAMBDA {
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) v[q] = pass(v[q], g[q], i + q);
    if constexpr (writes) store_vectors<T, in_twos, count>(dx + i * stride, stride, v);
  });
  const auto again_with_care = [&] {
    before.restore(totals, n);
    backward_one_by_one<T, affine, writes, sums>(x, grad, dx, n, stride, filled, p, totals);
  };
  if constexpr (!sums) {
    if (watch.saw_infinity_or_nan()) [[unlikely]] return again_with_care();
  } else if constexpr (finder == Finder::compare) {
    if (!ramps.are_finite()) [[unlikely]] return again_with_care();
    ramps.add_to(totals.pos, totals.neg);
  } else {
    const JointSums<K> joint = ramps.of_all_lanes();
    if (!joint.are_finite()) [[unlikely]] return again_with_care();
    joint.add_to(totals.together, totals.together + K);
  }
  passing.add_up();
}

}  // namespace
}  // namespace splash_units
