// Backward with more hinges than masked.h takes, up to sixteen, that are multiples of a step, where lanes can be left out of
// an instruction or moved together, as in AVX-512.
//
// dx, and what the slopes of the first six hinges learn, come from one loop over all numbers, which finds all it needs in
// registers. Numbers that lie beyond the seventh hinge are set aside meanwhile, without gaps; once there are many, they alone
// count for the next hinges, and those beyond these for the last.
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

constexpr int hinges_in_first_round = 6;  // whose sums leave registers for dx

// So much is done with a vector here that the hardware's own prefetching does not run far enough ahead; and a store that waits
// for its line holds up those of the numbers that are set aside. fetch_ahead is for loops that do less (strips.h). Numbers of
// half the size ask for each line twice, which costs less than to tell.
constexpr int64_t vectors_ahead = 32;
template <bool writes, class T>
SPLASH_INLINE void fetch_all_ahead(const T* x, const T* grad, const T* dx, int64_t stride) {
  __builtin_prefetch(x + vectors_ahead * stride), __builtin_prefetch(grad + vectors_ahead * stride);
  if constexpr (writes) __builtin_prefetch(dx + vectors_ahead * stride, 1);
}

// Room for some of a strip's numbers, with their gradients: as many as are worth a round, and then some of as many more.
struct SetAside {
  static constexpr int W = lanes<float>::count;
  static constexpr int64_t worth_a_round = sum_length * W;
  alignas(register_bytes) float z[2 * worth_a_round + W], g[2 * worth_a_round + W];
  int64_t count = 0;

  // Writes down some that come after `before` others; how many these are then. They are to be counted by who puts many: here,
  // the count would be stored and loaded once for each vector.
  SPLASH_INLINE int64_t put(int64_t before, Mask which, Vec<float> of_z, Vec<float> of_g) {
    stored<float>::store(z + before, together(which, of_z)), stored<float>::store(g + before, together(which, of_g));
    return before + number_of(which);
  }
  // As vectors, the last of them filled up with zeros, from which nothing is learned.
  SPLASH_INLINE int64_t vectors() {
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

// What K hinges learn from a strip: those on the right, then those on the left.
template <int K>
struct RoundTotals {
  double of[2 * K]{};
  SPLASH_INLINE void add(const JointSums<K>& some) { some.add_to(of, of + K); }
  SPLASH_INLINE void add_to(double* pos, double* neg) const {
    for (int s = 0; s < K; ++s) pos[s] += of[s], neg[s] += of[K + s];
  }
};

// A round for K hinges over numbers that were set aside, and those that follow it.
template <int K = 0, int... more>
struct Later {
  static constexpr bool is_last = sizeof...(more) == 0;
  SetAside numbers;
  RoundTotals<K> totals;
  Later<more...> next;

  SPLASH_INLINE void when_many(const float* hinges) {
    if (numbers.count >= numbers.worth_a_round) run(hinges);
  }
  SPLASH_INLINE void end(const float* hinges, double* pos, double* neg) {
    if (numbers.count > 0) run(hinges);
    totals.add_to(pos, neg);
    if constexpr (!is_last) next.end(hinges + K, pos + K, neg + K);
  }

 private:
  SPLASH_ONE_COPY void run(const float* hinges) {
    const int64_t vectors = numbers.vectors();
    for (int64_t i = 0; i < vectors; i += sum_length) {
      const int64_t n = std::min(sum_length, vectors - i);
      const float *z = numbers.z + i * numbers.W, *g = numbers.g + i * numbers.W;
      if (const JointSums<K> sums = sum(z, g, n, hinges); sums.are_finite()) [[likely]] totals.add(sums);
      else add_one_by_one(z, g, n * numbers.W, hinges);
      if constexpr (!is_last) next.when_many(hinges + K);
    }
    numbers.count = 0;
  }
  SPLASH_INLINE JointSums<K> sum(const float* of_z, const float* of_g, int64_t n, const float* hinges) {
    Round<K> round(hinges);
    const Vec<float> limit = all<float>(is_last ? 0 : hinges[K]);
    int64_t beyond = 0;
    if constexpr (!is_last) beyond = next.numbers.count;
    for (int64_t i = 0; i < n; ++i) {
      const Vec<float> z = stored<float>::load(of_z + i * numbers.W), g = stored<float>::load(of_g + i * numbers.W), u = magnitude<float>(z);
      round.template add<false>(z, u, g);
      if constexpr (!is_last) beyond = next.numbers.put(beyond, above(u, limit), z, g);
    }
    if constexpr (!is_last) next.numbers.count = beyond;
    return round.sums.of_all_lanes();
  }
  // Finite numbers whose sums a float does not hold.
  void add_one_by_one(const float* z, const float* g, int64_t n, const float* hinges) {
    for (int64_t i = 0; i < n; ++i)
      for (int s = 0; s < K; ++s) totals.of[z[i] < 0 ? K + s : s] += double(g[i]) * std::max(0.f, std::fabs(z[i]) - hinges[s]);
  }
};
template <>
struct Later<> {};

// Calls f with the rounds that follow the first, of 8, 12 or 16 hinges in all.
template <class F>
SPLASH_INLINE void with_later_rounds(int hinges, const F& f) {
  const auto with = [&]<int... K>() SPLASH_INLINE_LAMBDA {
    Later<K...> later;  // not Later<K...>(), which would clear its room
    f(later);
  };
  if (hinges <= 8) return with.template operator()<2>();
  if (hinges <= 12) return with.template operator()<6>();
  with.template operator()<4, 6>();
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
    const Ints<float> cell = floor_in_low_bits(no_farther(z, farthest), per_unit);
    return chosen(above(u, hinges[cell]), slopes[cell], inner_slopes[cell]);
  }
};

// dx of at most `sum_length` vectors, if it `writes`, and the first round, if it `sums`. Whether all is finite; if not, nothing was added to the totals or
// set aside, and dx is not to be used.
template <class T, Affine affine, bool writes, bool sums>
SPLASH_ONE_COPY bool dx_and_first_round(const T* x, const T* grad, T* dx, int64_t n, int64_t stride, const Lanes<float>& p,
                                        const Totals<float>& totals, RoundTotals<hinges_in_first_round>& near, SetAside& beyond) {
  constexpr bool in_twos = goes_in_twos<T, affine, Finder::cells>;
  const StepSlopes slopes(*p.table);
  const Norms<float, affine> norms(p);
  Passing<float, affine, sums> passing{norms, totals};
  const SavedRecent<float, affine, sums> before(totals, n);
  Watch<float> watch;
  Round<hinges_in_first_round> round(p.at);
  const Vec<float> limit = all<float>(p.at[hinges_in_first_round]);
  int64_t number = sums ? beyond.count : 0;
  by_two_with_gradients<T, in_twos>(x, grad, n, stride, [&]<int count>(int64_t i, Vec<float>* v, Vec<float>* g) SPLASH_INLINE_LAMBDA {
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) {
      fetch_all_ahead<writes>(x + (i + q) * stride, grad + (i + q) * stride, dx + (writes ? (i + q) * stride : 0), stride);
      const Vec<float> z = normalised<affine>(v[q], norms[i + q]), u = magnitude<float>(z);
      if constexpr (sums) {
        round.template add<true>(z, u, g[q]);
        number = beyond.put(number, above(u, limit), z, g[q]);
      } else {
        watch.see_largest(u);
      }
      v[q] = passing.dx(g[q] * slopes(z, u) + Vec<float>{}, v[q], i + q);  // + 0: see masked.h
    }
    if constexpr (writes) store_vectors<T, in_twos, count>(dx + i * stride, stride, v);
  });
  if constexpr (sums) {
    const JointSums<hinges_in_first_round> joint = round.sums.of_all_lanes();
    if (!joint.are_finite()) [[unlikely]] return before.restore(totals, n), false;
    near.add(joint), beyond.count = number;
  } else if (watch.saw_infinity_or_nan()) [[unlikely]] {
    return false;
  }
  passing.add_up();
  return true;
}

// Any number of vectors; behind a batch norm whose channels differ from vector to vector, `sum_length`.
template <class T, Affine affine, bool writes, bool sums>
SPLASH_ONE_COPY void backward_masked_cells(const T* x, const T* grad, T* dx, int64_t n, int64_t stride, int filled,
                                           const Lanes<float>& p, const Totals<float>& totals) {
  constexpr int first = hinges_in_first_round;
  with_later_rounds(p.hinges, [&](auto& later) SPLASH_INLINE_LAMBDA {
    RoundTotals<first> near;
    for (int64_t i = 0; i < n; i += sum_length) {
      const int64_t some = std::min(sum_length, n - i), at = i * stride;
      T* const to = writes ? dx + at : dx;
      if (!dx_and_first_round<T, affine, writes, sums>(x + at, grad + at, to, some, stride, p, totals, near, later.numbers)) [[unlikely]]
        backward_one_by_one<T, affine, writes, sums>(x + at, grad + at, to, some, stride, filled, p, totals);
      if constexpr (sums) later.when_many(p.at + first);
    }
    if constexpr (sums) {
      double *const pos = totals.together, *const neg = pos + p.hinges;
      near.add_to(pos, neg), later.end(p.at + first, pos + first, neg + first);
    }
  });
}

}  // namespace
}  // namespace splash_units
