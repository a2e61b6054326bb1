// The arithmetic of one strip backward: dx, and the sums that slopes and batch norm learn from.
#pragma once

#include <cmath>
#include <vector>

#include "bytes.h"
#include "native.h"
#include "parameters.h"
#include "simd.h"
#include "strips.h"

namespace splash_units {
namespace {

// Sums of one vector of channels in double, lane by lane: a pair a hinge, then dz and dz (x - mean). Where each
// vector of a strip has channels of its own, their last two are summed over several strips before: `recent`.
template <class C>
struct Totals {
  Wide<C>*pos, *neg, *dz, *dz_x;
  Vec<C>* recent;
  double* cells;  // of all lanes together: see cells.h
};

// Totals of all tasks and vectors: `ramps` sets of the hinges' sums, `channels` of the others. There are fewer of
// the first where all vectors of a line have their hinges in common.
template <class C>
class TotalsOf {
 public:
  TotalsOf(int hinges, int64_t ramps, int64_t channels, bool by_line, bool by_cell)
      : hinges_(hinges), ramps_(ramps), sums_(2 * hinges * ramps + 2 * channels), recent_(by_line ? 2 * channels : 0),
        cells_(by_cell ? 4 * cells_a_side * ramps : 0) {}
  Totals<C> at(int64_t ramp, int64_t channel) {
    Wide<C> *pos = sums_.data() + 2 * hinges_ * ramp, *dz = sums_.data() + 2 * hinges_ * ramps_ + 2 * channel;
    return {pos, pos + hinges_, dz, dz + 1, recent_.data() + 2 * channel, cells_.data() + 4 * cells_a_side * ramp};
  }
  void add_recent(int64_t channel) {
    const Totals<C> t = at(0, channel);
    *t.dz += __builtin_convertvector(t.recent[0], Wide<C>), *t.dz_x += __builtin_convertvector(t.recent[1], Wide<C>);
    t.recent[0] = t.recent[1] = Vec<C>{};
  }

 private:
  int hinges_;
  int64_t ramps_;
  std::vector<Wide<C>> sums_;
  std::vector<Vec<C>> recent_;
  std::vector<double> cells_;
};

// At x = 0 no slope counts, which comparing knows and a grid has a cell for; the others must be told.
template <Finder finder>
constexpr bool misses_zero = finder == Finder::segments;

// pos[s], neg[s] = the sums of g max(0, u - b_s) on either side, for K hinges from `at` on. The first of
// all hinges is at zero.
template <class T, int K, bool first, Affine affine, Finder finder, class At>
SPLASH_INLINE void sum_ramps(const T* x, const T* grad, int64_t n, int64_t stride, const Norms<compute_t<T>, affine>& norms,
                             const At* at, Vec<compute_t<T>>* pos, Vec<compute_t<T>>* neg) {
  using C = compute_t<T>;
  Vec<C> b[K], zero{}, right[K], left[K];
  SPLASH_UNROLLED
  for (int s = 0; s < K; ++s) b[s] = at[s] - Vec<C>{}, right[s] = left[s] = Vec<C>{};
  const auto sum = [&](Vec<C> z, Vec<C> g) SPLASH_INLINE_LAMBDA {
    const Vec<C> u = magnitude<C>(z), g_neg = by_sign<C>(z, g, Vec<C>{}), g_pos = g - g_neg;
    // Read hinges and zero anew each time: kept in registers, they would drive a sum out, which takes twice as long.
    __asm__ volatile("" : "+m"(b), "+m"(zero));
    SPLASH_UNROLLED
    for (int s = 0; s < K; ++s) {
      const Vec<C> r = first && s == 0 ? u : larger<C>(u - b[s], zero);
      right[s] += g_pos * r;
      left[s] += g_neg * r;
    }
  };
  const auto some = [&]<int count>(int64_t i) SPLASH_INLINE_LAMBDA {
    constexpr bool in_twos = goes_in_twos<T, affine, finder>;
    Vec<C> in[count], g[count];
    load_vectors<T, in_twos, count>(x + i * stride, stride, in);
    load_vectors<T, in_twos, count>(grad + i * stride, stride, g);
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) sum(normalised<affine>(in[q], norms[i + q]), g[q]);
  };
  if constexpr (goes_in_twos<T, affine, finder>) by_two(n, some);
  else  // two at a time, a sum would have to give up its register
    for (int64_t i = 0; i < n; ++i) some.template operator()<1>(i);
  SPLASH_UNROLLED
  for (int s = 0; s < K; ++s) pos[s] = right[s], neg[s] = left[s];
}

// dx of bfloat16 neighbours, two vectors at a time. Their segments are found while they stand side by side, in lanes of 16
// bits: magnitudes compare as whole numbers do, and with a hinge that is rounded down as with the hinge.
template <class T, Finder finder, int K>
struct TwoAtATime {
  static constexpr bool possible = false;
  explicit SPLASH_INLINE TwoAtATime(const Lanes<compute_t<T>>&) {}
};
template <int K>
struct TwoAtATime<bfloat16, Finder::segments, K> {
  typedef int16_t Shorts __attribute__((vector_size(register_bytes)));
  static constexpr bool possible = K > 0;
  const Found<Finder::segments, K> found;
  Shorts hinges[K ? K : 1];

  explicit SPLASH_INLINE TwoAtATime(const Lanes<float>& p) : found(p.table) {
    for (int s = 1; s < K; ++s) hinges[s] = Shorts{} + static_cast<int16_t>(bits<float>(all<float>(p.at[s]))[0] >> 16);
  }
  SPLASH_INLINE void pass(const bfloat16* x, const bfloat16* grad, bfloat16* dx) const {
    Shorts in, g, j{};
    std::memcpy(&in, x, sizeof in), std::memcpy(&g, grad, sizeof g);
    const Shorts u = in & std::numeric_limits<int16_t>::max();
    SPLASH_UNROLLED
    for (int s = 1; s < K; ++s) j += u > hinges[s];  // -1 where it holds
    const Ints<float> z = (Ints<float>)in, number = (Ints<float>)j;
    Vec<float> g_even, g_odd;
    stored<bfloat16>::part((Ints<float>)(g & (u > 0)), g_even, g_odd);  // at zero no slope counts
    stored<bfloat16>::store_two(dx, g_even * found.slope((Vec<float>)(z << 16), number) + Vec<float>{},
                                g_odd * found.slope((Vec<float>)z, number >> 16) + Vec<float>{});
  }
};

// What becomes of dz: dx, and where batch norm is in front, the sums that it learns from.
template <class C, Affine affine, bool sums>
struct Passing {
  const Norms<C, affine>& norms;
  const Totals<C>& totals;
  Vec<C> dz_sum{}, dz_x_sum{};

  SPLASH_INLINE Vec<C> dx(Vec<C> dz, Vec<C> in, int64_t i) {
    const NormLanes<C>& norm = norms[i];
    if constexpr (sums && affine == Affine::one) dz_sum += dz, dz_x_sum += dz * (in - norm.mean);
    if constexpr (sums && affine == Affine::each) {
      Vec<C>* recent = totals.recent + 2 * i;
      recent[0] += dz, recent[1] += dz * (in - norm.mean);
    }
    return sums || affine == Affine::none ? dz : dz * norm.from_grad + ((in - norm.mean) * norm.from_x + norm.constant);
  }
  SPLASH_INLINE void add_up() const {
    if constexpr (sums && affine == Affine::one) {
      *totals.dz += __builtin_convertvector(dz_sum, Wide<C>);
      *totals.dz_x += __builtin_convertvector(dz_x_sum, Wide<C>);
    }
  }
};

template <class T, Affine affine, bool writes, bool sums>
SPLASH_ONE_COPY void backward_one_by_one(const T* x, const T* grad, T* dx, int64_t n, int64_t stride, int filled,
                                         const Lanes<compute_t<T>>& p, const Totals<compute_t<T>>& totals) {
  using C = compute_t<T>;
  const Norms<C, affine> norms(p);
  for (int64_t i = 0; i < n; ++i)
    for (int lane = 0; lane < filled; ++lane) {
      const OneByOne<C> one{p, lane};
      const NormLanes<C>& norm = norms[i];
      const C in = as_compute(x[i * stride + lane]), g = as_compute(grad[i * stride + lane]);
      const C z = normalised<affine>(in, norm, lane), dz = g * one.slope(z) + C(0);
      if constexpr (writes && (sums || affine == Affine::none)) put(dx + i * stride + lane, dz);
      if constexpr (writes && !sums && affine != Affine::none) {
        const C from_x = norm.from_x[lane] == 0 ? 0 : (in - norm.mean[lane]) * norm.from_x[lane];  // not 0 times an infinity
        put(dx + i * stride + lane, dz * norm.from_grad[lane] + (from_x + norm.constant[lane]));
      }
      if constexpr (sums) {
        for (int s = 0; s < p.hinges; ++s) {
          const double d = g * one.ramp(z, s);
          if (z > 0 || std::isnan(z)) totals.pos[s][lane] += d;
          if (z < 0 || std::isnan(z)) totals.neg[s][lane] += d;
        }
        const C dz_x = dz * (in - norm.mean[lane]);
        if constexpr (affine == Affine::one) (*totals.dz)[lane] += dz, (*totals.dz_x)[lane] += dz_x;
        if constexpr (affine == Affine::each) totals.recent[2 * i][lane] += dz, totals.recent[2 * i + 1][lane] += dz_x;
      }
    }
}

template <class T, int K, Affine affine, bool writes, bool sums, Finder finder>
SPLASH_ONE_COPY void backward_strip(const T* x, const T* grad, T* dx, int64_t n, int64_t stride, int filled,
                                    const Lanes<compute_t<T>>& p, const Totals<compute_t<T>>& totals) {
  using C = compute_t<T>;
  const Hinges<C, K> hinges(p);
  const Found<finder, K> found(p.table);
  const TwoAtATime<T, finder, K> two(p);
  const Norms<C, affine> norms(p);
  Watch<C> watch;
  Passing<C, affine, sums> passing{norms, totals};
  Vec<C> pos[K ? K : most_hinges], neg[K ? K : most_hinges];

  // Loops of their own: together they would need more registers than there are.
  if constexpr (sums) {
    constexpr int block = K ? K : hinges_at_a_time;
    sum_ramps<T, block, true, affine, finder>(x, grad, n, stride, norms, hinges.at, pos, neg);
    if constexpr (K == 0)
      for (int s = block; s < hinges.count; s += block)
        sum_ramps<T, block, false, affine, finder>(x, grad, n, stride, norms, hinges.at + s, pos + s, neg + s);
    // What is infinite or NaN makes these so.
    watch.see_largest(magnitude<C>(pos[0])), watch.see_largest(magnitude<C>(neg[0]));
    if (watch.saw_infinity_or_nan()) [[unlikely]]
      return backward_one_by_one<T, affine, writes, sums>(x, grad, dx, n, stride, filled, p, totals);
    SPLASH_UNROLLED
    for (int s = 0; s < hinges.count; ++s) {
      totals.pos[s] += __builtin_convertvector(pos[s], Wide<C>);
      totals.neg[s] += __builtin_convertvector(neg[s], Wide<C>);
    }
  }

  const auto slope_at = [&](Vec<C> z) SPLASH_INLINE_LAMBDA {
    const Vec<C> u = magnitude<C>(z);
    if constexpr (!sums) watch.see_largest(u);
    if constexpr (finder == Finder::compare) {
      Vec<C> right{}, left{};
      for (int s = 0; s < hinges.count; ++s) {
        right += u > hinges.at[s] ? hinges.pos[s] : Vec<C>{};
        left -= u > hinges.at[s] ? hinges.neg[s] : Vec<C>{};
      }
      return by_sign<C>(z, left, right);
    } else {
      const Vec<C> slope = found.slope(z, found.index(u, hinges));
      return misses_zero<finder> ? (Vec<C>)(bits<C>(slope) & exceeds<C>(u, Vec<C>{})) : slope;
    }
  };
  by_two(n, [&]<int count>(int64_t i) SPLASH_INLINE_LAMBDA {
    constexpr bool in_twos = goes_in_twos<T, affine, finder>;
    fetch_two_ahead(x + i * stride, (writes ? dx : x) + i * stride, stride);
    if constexpr (in_twos && two.possible && count == 2) return two.pass(x + i * stride, grad + i * stride, dx + i * stride);
    Vec<C> in[count], g[count], out[count];
    load_vectors<T, in_twos, count>(x + i * stride, stride, in);
    load_vectors<T, in_twos, count>(grad + i * stride, stride, g);
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q)
      // + 0: a flat segment passes on 0.0, never -0.0, as torch.relu has it
      out[q] = passing.dx(g[q] * slope_at(normalised<affine>(in[q], norms[i + q])) + Vec<C>{}, in[q], i + q);
    if constexpr (writes) store_vectors<T, in_twos, count>(dx + i * stride, stride, out);
  });

  if constexpr (!sums)
    if (watch.saw_infinity_or_nan()) [[unlikely]]
      return backward_one_by_one<T, affine, writes, sums>(x, grad, dx, n, stride, filled, p, totals);
  passing.add_up();
}

}  // namespace
}  // namespace splash_units
