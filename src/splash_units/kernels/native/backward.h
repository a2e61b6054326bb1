// The arithmetic of one strip backward: dx, and the sums that slopes and batch norm learn from.
#pragma once

#include <algorithm>
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
  // Of all lanes together: of each hinge, those on the right first, instead of the pairs (masked.h,
  // masked_cells.h); or of cells (cells.h).
  double* together;
};

// What totals there are beside dz and dz (x - mean), in a set.
struct InASet {
  int hinges = 0;         // lane by lane
  int64_t together = 0;
};

// Totals of all tasks and vectors: `ramps` sets of the hinges' sums, `channels` of the others. There are fewer of
// the first where all vectors of a task have their hinges in common.
template <class C>
class TotalsOf {
 public:
  TotalsOf(const InASet& set, int64_t ramps, int64_t channels, bool by_line)
      : set_(set), ramps_(2 * set.hinges * ramps), channels_(2 * channels), recent_(by_line ? 2 * channels : 0),
        together_(set.together * ramps) {}
  Totals<C> at(int64_t ramp, int64_t channel) {
    Wide<C> *pos = set_.hinges ? ramps_.data() + 2 * set_.hinges * ramp : nullptr, *dz = channels_.data() + 2 * channel;
    return {pos, pos + set_.hinges, dz, dz + 1, recent_.data() + 2 * channel, together_.data() + set_.together * ramp};
  }
  void add_recent(int64_t channel) {
    const Totals<C> t = at(0, channel);
    *t.dz += __builtin_convertvector(t.recent[0], Wide<C>), *t.dz_x += __builtin_convertvector(t.recent[1], Wide<C>);
    t.recent[0] = t.recent[1] = Vec<C>{};
  }

 private:
  InASet set_;
  std::vector<Wide<C>> ramps_, channels_;
  std::vector<Vec<C>> recent_;
  std::vector<double> together_;
};

// At x = 0 no slope counts, which comparing knows and a grid has a cell for; the others must be told.
template <Finder finder>
constexpr bool misses_zero = finder == Finder::segments;

// bfloat16 neighbours as they stand side by side, in lanes of 16 bits.
typedef int16_t Shorts __attribute__((vector_size(register_bytes)));
SPLASH_INLINE Shorts load_shorts(const bfloat16* p) {
  Shorts v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

// Calls add(u, g_right, g_left) for n / 2 twos of neighbours, which part by side while they stand side by side. How many
// vectors these are.
template <class F>
SPLASH_INLINE int64_t part_twos(const bfloat16* x, const bfloat16* grad, int64_t n, const F& add) {
  constexpr int64_t W = lanes<float>::count;
  Shorts magnitudes = Shorts{} + std::numeric_limits<int16_t>::max(), in{};
  Ints<float> upper_halves = Ints<float>{} + static_cast<int32_t>(0xffff0000);
  const auto upper = [&](Shorts v) SPLASH_INLINE_LAMBDA { return in_order((Vec<float>)((Ints<float>)v & upper_halves)); };
  const auto lower = [&](Shorts v) SPLASH_INLINE_LAMBDA { return in_order((Vec<float>)((Ints<float>)v << 16)); };
  if (n > 1) in = load_shorts(x);
  int64_t i = 0;
  for (; i + 1 < n; i += 2) {
    __asm__ volatile("" : "+m"(magnitudes), "+m"(upper_halves));  // not in registers: see sum_ramps
    const Shorts g = load_shorts(grad + i * W), u = in_order(in & magnitudes);
    const Vec<float> u_odd = upper(u);
    const Shorts is_left = in_order(in < 0);
    const Vec<float> u_even = lower(u);
    const Shorts g_left = in_order(g & is_left);
    const Vec<float> left_odd = upper(g_left);
    const Shorts g_right = in_order(g & ~is_left);
    const Vec<float> right_odd = upper(g_right), left_even = lower(g_left), right_even = lower(g_right);
    add(u_even, right_even, left_even);
    in = in_order(load_shorts(x + (i + 3 < n ? i + 2 : i) * W));  // the last once more
    add(u_odd, right_odd, left_odd);
  }
  return i;
}

// pos[s], neg[s] = the sums of g max(0, u - b_s) on either side, for K hinges from `at` on. The first of
// all hinges is at zero.
template <class T, int K, bool first, Affine affine, Finder finder, class At>
SPLASH_INLINE void sum_ramps(const T* x, const T* grad, int64_t n, int64_t stride, const Norms<compute_t<T>, affine>& norms,
                             const At* at, Vec<compute_t<T>>* pos, Vec<compute_t<T>>* neg) {
  using C = compute_t<T>;
  Vec<C> b[K], zero{}, right[K], left[K];
  unrolled<K>([&](auto s) SPLASH_INLINE_LAMBDA { b[s] = at[s] - Vec<C>{}, right[s] = left[s] = Vec<C>{}; });
  // Gradients as they are on the side where their input lies; on the other, zero.
  const auto add = [&](Vec<C> u, Vec<C> g_right, Vec<C> g_left) SPLASH_INLINE_LAMBDA {
    // Read hinges and zero anew each time: kept in registers, they would drive a sum out, which takes twice as long.
    __asm__ volatile("" : "+m"(b), "+m"(zero));
    unrolled<K>([&](auto s) SPLASH_INLINE_LAMBDA {
      const Vec<C> r = first && s == 0 ? u : in_order(larger<C>(in_order(u - b[s]), zero));
      right[s] = plus_product<C>(right[s], g_right, r);
      left[s] = plus_product<C>(left[s], g_left, r);
    });
  };
  const auto add_sides = [&](Vec<C> z, Vec<C> g) SPLASH_INLINE_LAMBDA {
    if constexpr (register_bytes == 64) return add(magnitude<C>(z), by_sign<C>(z, Vec<C>{}, g), by_sign<C>(z, g, Vec<C>{}));
    const Vec<C> u = in_order(magnitude<C>(z));
    const Ints<C> is_left = in_order(bits<C>(z) < 0);  // not by_sign, which takes a unit that multiplies
    const Vec<C> g_left = in_order((Vec<C>)(bits<C>(g) & is_left));
    add(u, in_order((Vec<C>)(bits<C>(g) & ~is_left)), g_left);
  };
  const auto load = [&](const T* from, int64_t i) SPLASH_INLINE_LAMBDA { return in_order(stored<T>::load(from + i * stride)); };
  int64_t i = 0;
  if constexpr (goes_in_twos<T, affine, finder>) {
    i = part_twos(x, grad, n, add);
  } else if constexpr (K <= 4) {
    Vec<C> in[2];
    if (n > 1) in[0] = load(x, 0), in[1] = load(x, 1);
    for (; i + 1 < n; i += 2) {
      const int64_t next = i + 3 < n ? i + 2 : i;  // the last once more
      SPLASH_UNROLLED
      for (int q = 0; q < 2; ++q) add_sides(normalised<affine>(in[q], norms[i + q]), load(grad, i + q)), in[q] = load(x, next + q);
    }
  }
  for (; i < n; ++i)  // of more hinges all: two at a time, a sum would have to give up its register
    add_sides(normalised<affine>(load(x, i), norms[i]), load(grad, i));
  unrolled<K>([&](auto s) SPLASH_INLINE_LAMBDA { pos[s] = right[s], neg[s] = left[s]; });
}

// dx of bfloat16 neighbours, two vectors at a time. Their segments are found while they stand side by side, in lanes of 16
// bits: magnitudes compare as whole numbers do, and with a hinge that is rounded down as with the hinge.
template <Finder finder, int K>
struct TwoAtATime {
  static constexpr bool possible = false;
};
template <int K>
struct TwoAtATime<Finder::segments, K> {
  static constexpr bool possible = K > 0;
  const Found<Finder::segments, K> found;
  Shorts hinges[K ? K : 1];
  Vec<float> g_even, g_odd, slope_even, slope_odd;

  explicit SPLASH_INLINE TwoAtATime(const Lanes<float>& p) : found(p.table) {
    for (int s = 1; s < K; ++s) hinges[s] = Shorts{} + static_cast<int16_t>(bits<float>(all<float>(p.at[s]))[0] >> 16);
  }
  SPLASH_INLINE void find(Shorts in, Shorts g) {
    const Shorts u = in_order(in & std::numeric_limits<int16_t>::max());
    Shorts j{};
    SPLASH_UNROLLED
    for (int s = 1; s < K; ++s) j = s == 1 ? in_order(u > hinges[s]) : in_order(j + in_order(u > hinges[s]));  // -1 where it holds
    const Ints<float> counted = (Ints<float>)in_order(g & in_order(u > 0));  // at zero no slope counts
    const Ints<float> number = (Ints<float>)j, next_number = in_order(number >> 16), z = in_order((Ints<float>)in << 16);
    stored<bfloat16>::part(counted, g_even, g_odd);
    slope_even = in_order(found.slope((Vec<float>)z, number)), slope_odd = in_order(found.slope((Vec<float>)in, next_number));
  }
};

// dx of n / 2 twos of bfloat16 neighbours; how many vectors these are.
template <class T, Finder finder, int K, class F>
SPLASH_INLINE int64_t pass_in_twos(const T* x, const T* grad, T* dx, int64_t n, const Lanes<float>& p, const F& pass) {
  constexpr int64_t W = lanes<float>::count;
  const int64_t last = n / 2 * 2;
  if constexpr (TwoAtATime<finder, K>::possible) {
    TwoAtATime<finder, K> two(p);
    if (last) two.find(load_shorts(x), load_shorts(grad));
    for (int64_t i = 0; i < last; i += 2) {
      fetch_ahead(x + i * W, dx + i * W);
      const Vec<float> even = in_order(two.g_even * two.slope_even + Vec<float>{}), odd = in_order(two.g_odd * two.slope_odd + Vec<float>{});
      // While one two is rounded, the next finds its slopes; after the last, that again.
      const int64_t next = i + 2 < last ? i + 2 : i;
      two.find(load_shorts(x + next * W), load_shorts(grad + next * W));
      stored<bfloat16>::store_two(dx + i * W, even, odd);
    }
  } else {
    for (int64_t i = 0; i < last; i += 2) {
      fetch_ahead(x + i * W, dx + i * W);
      Vec<float> in[2], g[2];
      load_vectors<T, true, 2>(x + i * W, W, in), load_vectors<T, true, 2>(grad + i * W, W, g);
      stored<bfloat16>::store_two(dx + i * W, pass(in[0], g[0]), pass(in[1], g[1]));
    }
  }
  return last;
}

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

// What the vectors of a strip had summed up for channels of their own, for who finds only at the end that not all is
// finite, and has to do it again.
template <class C, Affine affine, bool sums>
struct SavedRecent {
  static constexpr bool needed = sums && affine == Affine::each;
  Vec<C> saved[needed ? 2 * sum_length : 1];

  SPLASH_INLINE SavedRecent(const Totals<C>& totals, int64_t n) {
    if constexpr (needed) std::copy_n(totals.recent, 2 * n, saved);
  }
  void restore(const Totals<C>& totals, int64_t n) const {
    if constexpr (needed) std::copy_n(saved, 2 * n, totals.recent);
  }
};

// Calls some<count>(i, x, gradients) for each two of n vectors, and for one that is left.
template <class T, bool in_twos, class F>
SPLASH_INLINE void by_two_with_gradients(const T* x, const T* grad, int64_t n, int64_t stride, const F& some) {
  by_two(n, [&]<int count>(int64_t i) SPLASH_INLINE_LAMBDA {
    Vec<compute_t<T>> v[count], g[count];
    load_vectors<T, in_twos, count>(x + i * stride, stride, v), load_vectors<T, in_twos, count>(grad + i * stride, stride, g);
    some.template operator()<count>(i, v, g);
  });
}

// A strip whose vectors are those of a line, which may be longer than sums in float ought to be.
template <auto strip, bool writes, bool sums, class T>
void in_short_strips(const T* x, const T* grad, T* dx, int64_t n, int64_t stride, int filled, const Lanes<compute_t<T>>& p,
                     const Totals<compute_t<T>>& totals) {
  if (n <= sum_length) [[likely]] return strip(x, grad, dx, n, stride, filled, p, totals);
  Lanes<compute_t<T>> here = p;
  Totals<compute_t<T>> to = totals;
  for (int64_t i = 0; i < n; i += sum_length) {
    here.line = p.line.beyond(i);
    if constexpr (sums) to.recent = totals.recent + 2 * i;
    strip(x + i * stride, grad + i * stride, writes ? dx + i * stride : dx, std::min(sum_length, n - i), stride, filled, here, to);
  }
}

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
          if (z > 0 || std::isnan(z)) (totals.pos ? totals.pos[s][lane] : totals.together[s]) += d;
          if (z < 0 || std::isnan(z)) (totals.pos ? totals.neg[s][lane] : totals.together[p.hinges + s]) += d;
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
  const auto pass = [&](Vec<C> in, Vec<C> g, int64_t i) SPLASH_INLINE_LAMBDA {
    // + 0: a flat segment passes on 0.0, never -0.0, as torch.relu has it
    return passing.dx(g * slope_at(normalised<affine>(in, norms[i])) + Vec<C>{}, in, i);
  };
  const auto store = [&](Vec<C> out, int64_t i) SPLASH_INLINE_LAMBDA {
    if constexpr (writes) stored<T>::store(dx + i * stride, out);
  };
  const auto load = [&](const T* from, int64_t i) SPLASH_INLINE_LAMBDA { return in_order(stored<T>::load(from + i * stride)); };
  int64_t i = 0;
  if constexpr (goes_in_twos<T, affine, finder>) {
    i = pass_in_twos<T, finder, K>(x, grad, dx, n, p, [&](Vec<C> in, Vec<C> g) SPLASH_INLINE_LAMBDA { return pass(in, g, 0); });
  } else {
    Vec<C> in[2];
    if (n > 1) in[0] = load(x, 0), in[1] = load(x, 1);
    for (; i + 1 < n; i += 2) {
      const int64_t next = i + 3 < n ? i + 2 : i;  // the last once more
      fetch_two_ahead(x + i * stride, (writes ? dx : x) + i * stride, stride);
      SPLASH_UNROLLED
      for (int q = 0; q < 2; ++q) store(pass(in[q], stored<T>::load(grad + (i + q) * stride), i + q), i + q), in[q] = load(x, next + q);
    }
  }
  if (i < n) store(pass(load(x, i), load(grad, i), i), i);

  if constexpr (!sums)
    if (watch.saw_infinity_or_nan()) [[unlikely]]
      return backward_one_by_one<T, affine, writes, sums>(x, grad, dx, n, stride, filled, p, totals);
  passing.add_up();
}

}  // namespace
}  // namespace splash_units
