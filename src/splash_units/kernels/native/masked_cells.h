// Backward with more hinges than masked.h takes, up to sixteen, that are multiples of a step, where lanes can be left out of
// an instruction or moved together, as in AVX-512.
//
// What the slopes of the first eight hinges learn is summed up over all numbers, in registers. Those that lie beyond the
// ninth are set aside meanwhile, without gaps, and are all that the other hinges' sums are taken over. dx has a loop of its
// own, which finds all it needs in registers, too.
#pragma once

#include "backward.h"
#include "bytes.h"
#include "masked.h"
#include "native.h"
#include "parameters.h"
#include "simd.h"
#include "strips.h"

namespace splash_units {
namespace {

constexpr int hinges_in_first_round = 8;  // whose sums fill half of the registers

// Room for some of a strip's numbers, with their gradients. How many there are is the user's to know: in memory, it would
// be stored and loaded once for each vector.
struct SetAside {
  static constexpr int W = lanes<float>::count;
  alignas(register_bytes) float z[(sum_length + 1) * W], g[(sum_length + 1) * W];

  // Adds some to `count` of them; how many these are then.
  SPLASH_INLINE int64_t put(int64_t count, Mask which, Vec<float> of_z, Vec<float> of_g) {
    stored<float>::store(z + count, together(which, of_z)), stored<float>::store(g + count, together(which, of_g));
    return count + number_of(which);
  }
  // As vectors, the last of them filled up with zeros, from which nothing is learned.
  SPLASH_INLINE int64_t vectors(int64_t count) {
    stored<float>::store(z + count, Vec<float>{}), stored<float>::store(g + count, Vec<float>{});
    return (count + W - 1) / W;
  }
};

// Sums for K hinges from `at` on.
template <int K>
struct Round {
  MaskedSums<K> sums;
  Vec<float> at[K];

  explicit SPLASH_INLINE Round(const float* hinges) {
    unrolled<K>([&](auto s) SPLASH_INLINE_LAMBDA { at[s] = all<float>(hinges[s]); });
  }
  template <bool first_is_zero>
  SPLASH_INLINE void add(Vec<float> z, Vec<float> u, Vec<float> g) {
    const Parted parts = parted(g, sign_words(z));
    unrolled<K>([&](auto s) SPLASH_INLINE_LAMBDA {
      sums.add(s, parts, first_is_zero && s == 0 ? u : ramp_of<float>(u - at[s]));
    });
  }
};

// What the first round found: the sums of its hinges, and how many numbers it set aside.
struct FirstRound {
  JointSums<hinges_in_first_round> sums;
  int64_t set_aside;
};

// At most `sum_length` vectors.
template <class T, Affine affine, bool sets_aside>
SPLASH_ONE_COPY FirstRound first_round(const T* x, const T* grad, int64_t n, int64_t stride, const Lanes<float>& p, SetAside& beyond) {
  constexpr bool in_twos = goes_in_twos<T, affine, Finder::cells>;
  const Norms<float, affine> norms(p);
  const Vec<float> limit = all<float>(sets_aside ? p.at[hinges_in_first_round] : 0);
  Round<hinges_in_first_round> round(p.at);
  int64_t number = 0;
  by_two_with_gradients<T, in_twos>(x, grad, n, stride, [&]<int count>(int64_t i, Vec<float>* v, Vec<float>* g) SPLASH_INLINE_LAMBDA {
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) {
      const Vec<float> z = normalised<affine>(v[q], norms[i + q]), u = magnitude<float>(z);
      round.template add<true>(z, u, g[q]);
      if constexpr (sets_aside) number = beyond.put(number, above(u, limit), z, g[q]);
    }
  });
  return {round.sums.of_all_lanes(), number};
}

template <int K>
SPLASH_ONE_COPY JointSums<K> second_round(SetAside& numbers, int64_t count, const float* hinges) {
  Round<K> round(hinges);
  const int64_t vectors = numbers.vectors(count);
  for (int64_t i = 0; i < vectors; ++i) {
    const Vec<float> z = stored<float>::load(numbers.z + i * numbers.W), g = stored<float>::load(numbers.g + i * numbers.W);
    round.template add<false>(z, magnitude<float>(z), g);
  }
  return round.sums.of_all_lanes();
}

// Whether all is finite; if not, nothing was added to the totals.
template <class T, Affine affine>
SPLASH_INLINE bool sum_in_rounds(const T* x, const T* grad, int64_t n, int64_t stride, const Lanes<float>& p, const Totals<float>& totals) {
  constexpr int first = hinges_in_first_round, more = hinges_at_a_time;
  double *const pos = totals.together, *const neg = pos + p.hinges;
  SetAside beyond;
  const FirstRound near = p.hinges <= first ? first_round<T, affine, false>(x, grad, n, stride, p, beyond)
                                            : first_round<T, affine, true>(x, grad, n, stride, p, beyond);
  if (!near.sums.are_finite()) return false;
  if (near.set_aside > 0) {
    const auto goes_on = [&]<int K>() SPLASH_INLINE_LAMBDA {
      const JointSums<K> far = second_round<K>(beyond, near.set_aside, p.at + first);
      if (!far.are_finite()) return false;
      far.add_to(pos + first, neg + first);
      return true;
    };
    if (!(p.hinges <= first + more ? goes_on.template operator()<more>() : goes_on.template operator()<first>())) return false;
  }
  near.sums.add_to(pos, neg);
  return true;
}

// Slopes by a cell's number, whose multiplier is a trace too large: so close to a hinge it is the cell beyond it, seen from
// zero, and a comparison tells.
struct StepSlopes {
  const InTwoRegisters hinges, slopes, inner_slopes;
  const Vec<float> farthest, per_unit;
  template <class T>  // where tables are bytes, nobody asks
  explicit SPLASH_INLINE StepSlopes(const T& t)
      : hinges(t.inner_hinges), slopes(t.slopes), inner_slopes(t.inner_slopes), farthest(all<float>(t.last)),
        per_unit(all<float>(t.cells_per_unit_and_more)) {}
  SPLASH_INLINE Vec<float> operator()(Vec<float> z, Vec<float> u) const {
    const Ints<float> cell = floor_in_low_bits(smaller<float>(farthest, larger<float>(-farthest, z)), per_unit);
    return chosen(above(u, hinges[cell]), slopes[cell], inner_slopes[cell]);
  }
};

// At most `sum_length` vectors.
template <class T, Affine affine, bool writes, bool sums>
SPLASH_ONE_COPY void backward_masked_cells(const T* x, const T* grad, T* dx, int64_t n, int64_t stride, int filled,
                                           const Lanes<float>& p, const Totals<float>& totals) {
  constexpr bool in_twos = goes_in_twos<T, affine, Finder::cells>;
  const auto with_care = [&] { backward_one_by_one<T, affine, writes, sums>(x, grad, dx, n, stride, filled, p, totals); };
  if constexpr (sums)
    if (!sum_in_rounds<T, affine>(x, grad, n, stride, p, totals)) [[unlikely]] return with_care();
  const StepSlopes slopes(*p.table);
  const Norms<float, affine> norms(p);
  Passing<float, affine, sums> passing{norms, totals};
  Watch<float> watch;
  by_two_with_gradients<T, in_twos>(x, grad, n, stride, [&]<int count>(int64_t i, Vec<float>* v, Vec<float>* g) SPLASH_INLINE_LAMBDA {
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) {
      const Vec<float> z = normalised<affine>(v[q], norms[i + q]), u = magnitude<float>(z);
      if constexpr (!sums) watch.see_largest(u);
      v[q] = passing.dx(g[q] * slopes(z, u) + Vec<float>{}, v[q], i + q);  // + 0: see masked.h
    }
    if constexpr (writes) store_vectors<T, in_twos, count>(dx + i * stride, stride, v);
  });
  if constexpr (!sums)
    if (watch.saw_infinity_or_nan()) [[unlikely]] return with_care();
  passing.add_up();
}

}  // namespace
}  // namespace splash_units
