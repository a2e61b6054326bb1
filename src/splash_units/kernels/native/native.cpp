// The CPU kernel: SPLASH forward and backward, alone or behind batch norm, in one pass over memory.
//
//   h(x) = sum_s a+_s max(0, x - b_s) + sum_s a-_s max(0, -x - b_s)
//
// With u = |x| and r_s = max(0, u - b_s), one side's slopes count, chosen by the sign of x:
//   h = sum_s a_s r_s,   dh/dx = +-(sum of a_s over the hinges below u),   dh/da_s = r_s.
// Where few hinges, or multiples of a step (the default ones are), leave few segments, a lookup gives the segment's
// slope and intercept instead, and h = slope * x + intercept.
//
// From here to the arithmetic: walk.h takes a tensor apart into strips, parameters.h holds what a strip
// needs to know, strips.h, own_slopes.h (lanes that differ forward), wholes.h (few hinges forward), cells.h (many hinges)
// and backward.h compute, and steps.h, own_levels.h, masked.h and masked_cells.h where AVX-512 has a shorter way; simd.h is
// the vectors and bytes.h their larger tables. Behind batch norm, batch_norm.cpp finds the statistics, and in_one_go.h is the way
// of small layers.
//
// Slope gradients are summed in float over at most `sum_length` terms a lane, and in AVX-512 over lanes that share a hinge,
// then in double, over pieces whose bounds depend on the tensor's shape only: the same bits for any number of threads. Where
// memory takes as long anyway, all is in double: in_double.h.

#include "native.h"

#include <algorithm>
#include <cmath>
#include <type_traits>
#include <vector>

#include "backward.h"
#include "batch_norm.h"
#include "cells.h"
#include "in_double.h"
#include "in_one_go.h"
#include "masked.h"
#include "masked_cells.h"
#include "own_levels.h"
#include "own_slopes.h"
#include "parameters.h"
#include "simd.h"
#include "steps.h"
#include "strips.h"
#include "walk.h"
#include "wholes.h"

namespace splash_units {
namespace {

// The common numbers of hinges are known to the compiler; others are padded up to the next or counted.
template <class T>
constexpr bool compiled_counts = std::is_same_v<T, float> || std::is_same_v<T, bfloat16>;
template <class T>
int padded(int hinges) {
  if (compiled_counts<T> && (hinges == 5 || hinges == 6)) return 6;
  return (hinges + hinges_at_a_time - 1) / hinges_at_a_time * hinges_at_a_time;
}
template <class T, class F>
auto with_count(int hinges, const F& f) {
  if constexpr (compiled_counts<T>) {
    if (hinges == 4) return f(std::integral_constant<int, 4>{});
    if (hinges == 6) return f(std::integral_constant<int, 6>{});
  }
  return f(std::integral_constant<int, 0>{});
}
template <class T, class F>
auto with_finder(Finder finder, const F& f) {
  if constexpr (has_lookup && !std::is_same_v<T, double>) {
    if (finder == Finder::segments) return f(std::integral_constant<Finder, Finder::segments>{});
    if (finder == Finder::grid) return f(std::integral_constant<Finder, Finder::grid>{});
  }
  return f(std::integral_constant<Finder, Finder::compare>{});
}

// Not where hinges are counted at run time: masks and sums would be in memory.
template <class T, int K>
constexpr bool goes_masked = has_masks && K > 0 && K <= most_masked && !std::is_same_v<T, double>;

// Whether the strips that with_count finds sum up all lanes of a hinge together.
template <class T>
bool sums_together(int hinges, Finder finder) {
  const bool is_masked = with_count<T>(hinges, [](auto k) { return goes_masked<T, k>; });
  return finder == Finder::cells ? has_masks : is_masked && finder != Finder::compare;
}

template <class F>
auto with_affine(Affine affine, const F& f) {
  if (affine == Affine::none) return f(std::integral_constant<Affine, Affine::none>{});
  if (affine == Affine::one) return f(std::integral_constant<Affine, Affine::one>{});
  return f(std::integral_constant<Affine, Affine::each>{});
}

template <class T>
auto forward_strip_for(int hinges, Affine affine, Finder finder, bool own_slopes) {
  if (own_slopes)
    return with_count<T>(hinges, [&](auto k) {
      if constexpr (has_masks && k > 0 && !std::is_same_v<T, double>)
        return affine == Affine::none ? &forward_levels_strip<T, k, Affine::none> : &forward_levels_strip<T, k, Affine::each>;
      else return affine == Affine::none ? &forward_own_strip<T, k, Affine::none> : &forward_own_strip<T, k, Affine::each>;
    });
  return with_affine(affine, [&](auto norm) {
    if constexpr (rounds_down && !std::is_same_v<T, double>) {
      if (finder == Finder::steps) return &forward_steps_strip<T, norm, Finder::steps>;
      if (finder == Finder::steps_flat_left) return &forward_steps_strip<T, norm, Finder::steps_flat_left>;
      if (finder == Finder::steps_falling) return &forward_steps_strip<T, norm, Finder::steps_falling>;
    }
    if constexpr (has_lookup && !rounds_down && !std::is_same_v<T, double>) {
      if (finder == Finder::wholes) return &forward_wholes_strip<T, norm, Finder::wholes>;
      if (finder == Finder::wholes_flat_left) return &forward_wholes_strip<T, norm, Finder::wholes_flat_left>;
      if (finder == Finder::wholes_falling) return &forward_wholes_strip<T, norm, Finder::wholes_falling>;
    }
    if constexpr (has_lookup && !std::is_same_v<T, double>) {
      if (finder == Finder::cells) return &forward_cells_strip<T, norm, Finder::cells>;
      if (finder == Finder::few_cells) return &forward_cells_strip<T, norm, Finder::few_cells>;
      if (finder == Finder::cells_falling) return &forward_cells_strip<T, norm, Finder::cells_falling>;
      if (finder == Finder::few_cells_falling) return &forward_cells_strip<T, norm, Finder::few_cells_falling>;
    }
    return with_count<T>(hinges, [&](auto k) {
      if constexpr (has_lookup && !std::is_same_v<T, double>)
        if (finder == Finder::segments) return &forward_strip<T, k, norm, Finder::segments>;
      return &forward_strip<T, k, norm, Finder::compare>;
    });
  });
}

// The strips of one way to find segments, which are functions: with dx, with sums, or with both.
template <class T, Affine affine, int K, Finder finder, bool writes, bool sums>
constexpr auto backward_strip_of() {
  constexpr auto strip = [] {
    if constexpr (finder == Finder::cells && has_masks) return &backward_masked_cells<T, affine, writes, sums>;
    else if constexpr (finder == Finder::cells) return &backward_cells<T, affine, writes, sums>;
    else if constexpr (goes_masked<T, K>) return &backward_masked_strip<T, K, affine, writes, sums, finder>;
    else return &backward_strip<T, K, affine, writes, sums, finder>;
  }();
  if constexpr (affine == Affine::each) return &in_short_strips<strip, writes, sums, T>;
  else return strip;
}

template <class T>
auto backward_strip_for(int hinges, Affine affine, bool writes, bool sums, Finder finder) {
  return with_affine(affine, [&](auto norm) {
    const auto which = [&](auto k, auto by) {
      if constexpr (norm == Affine::none) {
        if constexpr (std::is_same_v<T, float>)  // see in_double.h
          if (!sums) return backward_strip_of<T, norm, k, by, true, false>();
        return backward_strip_of<T, norm, k, by, true, true>();
      } else {
        if constexpr (std::is_same_v<T, float> && by != Finder::cells)  // see keeps_dz
          if (writes && sums) return backward_strip_of<T, norm, k, by, true, true>();
        return writes ? backward_strip_of<T, norm, k, by, true, false>() : backward_strip_of<T, norm, k, by, false, true>();
      }
    };
    if constexpr (has_lookup && !std::is_same_v<T, double>)
      if (finder == Finder::cells) return which(std::integral_constant<int, 0>{}, std::integral_constant<Finder, Finder::cells>{});
    return with_finder<T>(finder, [&](auto by) { return with_count<T>(hinges, [&](auto k) { return which(k, by); }); });
  });
}

template <class C>
Affine affine_for(const Walk<C>& walk, const Norm<C>* norm) {
  return !norm ? Affine::none : walk.way == Walk<C>::lines ? Affine::each : Affine::one;
}

// All lanes together, half with half: one after the other, each would wait for the one before.
template <class C>
double sum_of(const Wide<C>& lanes_of) {
  constexpr int W = lanes<C>::count;
  double v[W];
  std::memcpy(v, &lanes_of, sizeof v);
  SPLASH_UNROLLED
  for (int half = W / 2; half > 0; half /= 2)
    for (int lane = 0; lane < half; ++lane) v[lane] += v[lane + half];
  return v[0];
}

// Adds lanes to sums[first], sums[first + step], ..., starting again at 0 after `count`.
template <class C>
void add_lanes(const Wide<C>& from, int64_t first, int64_t step, int64_t count, double* sums) {
  constexpr int W = lanes<C>::count;
  if (step == 0) {
    sums[first] += sum_of<C>(from);
  } else if (step == 1 && first + W <= count) {
    for (int lane = 0; lane < W; ++lane) sums[first + lane] += from[lane];
  } else {
    for (int lane = 0; lane < W; ++lane, first = (first + step == count ? 0 : first + step)) sums[first] += from[lane];
  }
}

// The sums of hinges go to the groups of their lanes: `first` and as many as follow, `step` apart.
template <class C>
void add_hinges(const Totals<C>& t, const Unit<C>& unit, int padded, int64_t first, int64_t step, const Sums& sums) {
  for (int s = 0; s < unit.hinges; ++s) {
    double *pos = sums.pos + s * unit.groups, *neg = sums.neg + s * unit.groups;
    if (!t.pos) pos[first] += t.together[s], neg[first] += t.together[padded + s];
    else add_lanes<C>(t.pos[s], first, step, unit.groups, pos), add_lanes<C>(t.neg[s], first, step, unit.groups, neg);
  }
}

// What lanes have summed up goes to their groups and channels: one after the other, whoever was done first.
template <class C>
void add_up(TotalsOf<C>& totals, int64_t ramps, const Walk<C>& walk, const Unit<C>& unit, int padded, bool normed, const Sums& sums) {
  const auto first_channel = [&](int64_t i) { return i % walk.vectors * walk.stride % walk.e.channels; };
  const bool shared = unit.groups == 1;
  for (int64_t i = 0; i < ramps; ++i) add_hinges(totals.at(i, 0), unit, padded, shared ? 0 : first_channel(i), shared ? 0 : walk.step, sums);
  for (int64_t i = 0; normed && i < walk.totals(); ++i) {
    const Totals<C> t = totals.at(0, i);
    add_lanes<C>(*t.dz, first_channel(i), walk.step, walk.e.channels, sums.dz);
    add_lanes<C>(*t.dz_x, first_channel(i), walk.step, walk.e.channels, sums.dz_x);
  }
}

// Room for a ragged end: strips read and write whole vectors.
template <class T>
struct Ragged {
  T in[lanes<compute_t<T>>::count]{}, grad[lanes<compute_t<T>>::count]{}, out[lanes<compute_t<T>>::count];
};

}  // namespace

template <class T>
void forward(const T* x, T* y, Extent e, const Unit<compute_t<T>>& unit, const Norm<compute_t<T>>* norm) {
  using C = compute_t<T>;
  if (e.size() == 0) return;
  const bool own_lanes = unit.groups > 1 && e.inner == 1;
  const Walk<C> walk(e, sizeof(T), unit.groups == 1, norm, true, own_lanes ? longest_own_strip : longest_strip,
                     longest_strip * lanes<C>::count, norm || own_lanes ? work_worth_sharing : worth_sharing);
  const int hinges = padded<T>(unit.hinges);
  const Parameters<C> parameters(unit, norm, true, hinges, walk);
  const bool own_slopes = walk.way == Walk<C>::lines && own_lanes;
  decltype(forward_strip_for<T>(hinges, {}, {}, own_slopes)) strips[finders]{};  // of those that some vector needs
  for (int64_t v = 0; v < (walk.way == Walk<C>::rows ? walk.vectors : 1); ++v)  // only rows may differ in theirs
    if (auto& strip = strips[static_cast<int>(parameters[v].finder)]; !strip)
      strip = forward_strip_for<T>(hinges, affine_for(walk, norm), parameters[v].finder, own_slopes);
  walk.run([&](int64_t, int64_t at, int64_t v, int64_t n, int64_t stride, int filled) {
    const auto strip = strips[static_cast<int>(parameters[v].finder)];
    if (filled == lanes<C>::count) [[likely]] return strip(x + at, y + at, n, stride, filled, parameters[v]);
    Ragged<T> r;
    std::memcpy(r.in, x + at, filled * sizeof(T));
    strip(r.in, r.out, 1, stride, filled, parameters[v]);
    std::memcpy(y + at, r.out, filled * sizeof(T));
  });
}

template <class T>
void backward(const T* x, const T* grad, T* dx, Extent e, const Unit<compute_t<T>>& unit,
              const Norm<compute_t<T>>* norm, const Sums* sums) {
  using C = compute_t<T>;
  if (e.size() == 0) return;
  Walk<C> walk(e, sizeof(T), unit.groups == 1, norm, false, sum_length, piece, work_worth_sharing);
  const int hinges = padded<T>(unit.hinges);
  const Parameters<C> parameters(unit, norm, false, hinges, walk);
  const Finder finder = parameters[0].finder;
  const bool in_double = std::is_same_v<T, float> && !norm && e.size() > most_in_float && walk.way != Walk<C>::columns;
  if (finder == Finder::cells && has_masks && !in_double) walk.longest = longest_strip;  // it goes to doubles in time by itself
  const auto strip = backward_strip_for<T>(hinges, affine_for(walk, norm), dx, sums && !in_double, finder);
  const bool by_line = walk.way == Walk<C>::lines, together = in_double || sums_together<T>(hinges, finder);
  const bool by_cell = finder == Finder::cells && !has_masks && !in_double;
  const bool by_task = unit.groups == 1;  // whose vectors have their hinges' sums in common
  const int64_t ramps = by_task ? walk.tasks : walk.totals();
  const InASet set{together ? 0 : hinges, together ? 2 * hinges : by_cell ? 4 * cells_a_side : 0};
  TotalsOf<C> totals = sums ? TotalsOf<C>(set, ramps, walk.totals(), by_line) : TotalsOf<C>({}, 0, 0, false);
  walk.run([&](int64_t task, int64_t at, int64_t v, int64_t n, int64_t stride, int filled) {
    const int64_t whose = walk.totals_at(task, v);
    const Totals<C> mine = sums ? totals.at(by_task ? task : whose, whose) : Totals<C>{};
    const auto pass = [&](const T* from, const T* gradients, T* to) {
      if constexpr (std::is_same_v<T, float>)
        if (in_double) sum_in_double(from, gradients, n, filled, parameters[v], mine);
      strip(from, gradients, to, n, stride, filled, parameters[v], mine);
    };
    if (filled == lanes<C>::count) [[likely]] return pass(x + at, grad + at, dx + at);
    Ragged<T> r;
    std::memcpy(r.in, x + at, filled * sizeof(T));
    std::memcpy(r.grad, grad + at, filled * sizeof(T));
    pass(r.in, r.grad, r.out);
    if (dx) std::memcpy(dx + at, r.out, filled * sizeof(T));
  }, [&](int64_t task) {
    if (sums)
      for (int64_t v = 0; v < walk.vectors; ++v) totals.add_recent(walk.totals_at(task, v));
  });
  if (!sums) return;
  if constexpr (std::is_same_v<C, float>)
    if (by_cell) {
      const Steps steps(unit);
      for (int64_t i = 0; i < ramps; ++i) add_ramps(unit, steps, totals.at(i, 0));
    }
  add_up(totals, ramps, walk, unit, hinges, norm, *sums);
}

template <class T>
void forward_by_batch(const T* x, T* y, Extent e, const Unit<compute_t<T>>& unit, const ByBatch<compute_t<T>>& by_batch) {
  using C = compute_t<T>;
  const InOneGo<T> columns(e);
  if (unit.groups > 1 || !columns.fits()) {
    moments(x, e, by_batch.mean, by_batch.variance);
    normalise(e.channels, by_batch);
    const Norm<C> norm{by_batch.scale, by_batch.shift};
    return forward(x, y, e, unit, &norm);
  }
  const int hinges = padded<T>(unit.hinges);
  const Parameters<C> shape(unit, true, hinges);
  forward_in_one_go(x, y, columns, forward_strip_for<T>(hinges, Affine::one, shape[0].finder, false), shape[0], by_batch);
}

// Whether dz goes to dx in a first pass, which the second makes dx of. With fewer channels than a vector has lanes it would have
// to take them one by one, and of more elements than a cache holds, dz would have to be fetched from memory again.
template <class T>
bool keeps_dz(Extent e, const Unit<compute_t<T>>& unit) {
  const bool is_good_matrix = e.inner == 1 && e.channels >= lanes<compute_t<T>>::count && e.size() <= most_in_cache;
  return std::is_same_v<T, float> && unit.groups == 1 && is_good_matrix && unit.hinges <= 4;
}

template <class T>
void backward_by_batch(const T* x, const T* grad, T* dx, Extent e, const Unit<compute_t<T>>& unit, const Norm<compute_t<T>>& norm,
                       const Moves<compute_t<T>>& moves, const Sums& sums) {
  using C = compute_t<T>;
  const bool moved_by_all = std::isfinite(moves.count);  // else dx follows from nothing but its own dz
  if constexpr (std::is_same_v<T, float>) {
    const InOneGo<float> columns(e);
    if (moved_by_all && unit.groups == 1 && unit.hinges <= 4 && columns.fits()) {
      const int hinges = padded<float>(unit.hinges);
      const Parameters<float> shape(unit, false, hinges);
      const Finder finder = shape[0].finder;
      const bool together = sums_together<float>(hinges, finder);
      TotalsOf<float> totals({together ? 0 : hinges, together ? 2 * hinges : 0}, columns.tasks, columns.tasks, false);
      const auto strip = backward_strip_for<float>(hinges, Affine::one, true, true, finder);
      backward_in_one_go(x, grad, dx, columns, strip, shape[0], norm, moves, totals, sums);
      for (int64_t task = 0; task < columns.tasks; ++task) add_hinges(totals.at(task, 0), unit, hinges, 0, 0, sums);
      return;
    }
  }
  const bool in_dx = moved_by_all && keeps_dz<T>(e, unit);
  backward(x, grad, in_dx ? dx : nullptr, e, unit, &norm, &sums);
  move_with_batch(e.channels, norm.scale, sums.dz, sums.dz_x, moves);
  Norm<C> moved = norm;
  moved.from_grad = norm.scale, moved.from_x = moves.from_x, moved.constant = moves.constant;
  if constexpr (std::is_same_v<T, C>)
    if (in_dx) return finish(x, dx, e, moved);
  backward(x, grad, dx, e, unit, &moved, nullptr);
}

const char* instruction_set() {
#if defined(SPLASH_AVX512_EMULATED)
  return "avx512-emulated";
#elif defined(SPLASH_AVX512)
  return "avx512";
#elif defined(SPLASH_AVX2)
  return "avx2";
#else
  return "portable";
#endif
}

#define SPLASH_FOR(T)                                                                                     \
  template void forward(const T*, T*, Extent, const Unit<compute_t<T>>&, const Norm<compute_t<T>>*);      \
  template void backward(const T*, const T*, T*, Extent, const Unit<compute_t<T>>&,                       \
                         const Norm<compute_t<T>>*, const Sums*);                                          \
  template void forward_by_batch(const T*, T*, Extent, const Unit<compute_t<T>>&, const ByBatch<compute_t<T>>&); \
  template void backward_by_batch(const T*, const T*, T*, Extent, const Unit<compute_t<T>>&, const Norm<compute_t<T>>&, \
                                  const Moves<compute_t<T>>&, const Sums&);
SPLASH_FOR(float)
SPLASH_FOR(double)
SPLASH_FOR(bfloat16)
SPLASH_FOR(float16)

}  // namespace splash_units
