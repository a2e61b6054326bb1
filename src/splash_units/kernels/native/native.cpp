// The CPU kernel: SPLASH forward and backward, alone or behind batch norm, in one pass over memory.
//
//   h(x) = sum_s a+_s max(0, x - b_s) + sum_s a-_s max(0, -x - b_s)
//
// With u = |x| and r_s = max(0, u - b_s), one side's slopes count, chosen by the sign of x:
//   h = sum_s a_s r_s,   dh/dx = +-(sum of a_s over the hinges below u),   dh/da_s = r_s.
// Where all hinges lie on a grid (the default ones do) and its cells fit into a register, a lookup
// gives slope and intercept of the segment instead, and h = slope * x + intercept.
//
// From here to the arithmetic: walk.h takes a tensor apart into strips, parameters.h holds what a strip
// needs to know, strips.h, wholes.h (the forward of default hinges) and backward.h compute, simd.h is the vectors.
//
// Slope gradients are summed in float over at most `sum_length` terms a lane, then in double, over
// pieces whose bounds depend on the tensor's shape only: the same bits for any number of threads.

#include "native.h"

#include <algorithm>
#include <type_traits>
#include <vector>

#include "backward.h"
#include "parameters.h"
#include "simd.h"
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
    if (finder == Finder::even) return f(std::integral_constant<Finder, Finder::even>{});
  }
  return f(std::integral_constant<Finder, Finder::compare>{});
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
      return affine == Affine::none ? &forward_strip<T, k, Affine::none, Finder::compare, true>
                                    : &forward_strip<T, k, Affine::each, Finder::compare, true>;
    });
  return with_affine(affine, [&](auto norm) {
    if constexpr (has_lookup && !std::is_same_v<T, double>)
      if (finder == Finder::wholes || finder == Finder::wholes_flat_left)
        return finder == Finder::wholes ? &forward_wholes_strip<T, norm, false> : &forward_wholes_strip<T, norm, true>;
    return with_finder<T>(finder, [&](auto by) {
      // Where a cell's number is looked up, the number of hinges does not matter.
      return with_count<T>(by == Finder::grid || by == Finder::even ? 0 : hinges, [&](auto k) { return &forward_strip<T, k, norm, by, false>; });
    });
  });
}

template <class T>
auto backward_strip_for(int hinges, Affine affine, bool writes, Finder finder) {
  return with_affine(affine, [&](auto norm) {
    return with_finder<T>(finder, [&](auto by) {
      return with_count<T>(hinges, [&](auto k) {
        if constexpr (norm == Affine::none) return &backward_strip<T, k, norm, true, true, by>;
        else return writes ? &backward_strip<T, k, norm, true, false, by> : &backward_strip<T, k, norm, false, true, by>;
      });
    });
  });
}

template <class C>
Affine affine_for(const Walk<C>& walk, const Norm<C>* norm) {
  return !norm ? Affine::none : walk.way == Walk<C>::lines ? Affine::each : Affine::one;
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
  const Walk<C> walk(e, unit.groups == 1, norm, true, longest_strip, longest_strip * lanes<C>::count, worth_sharing);
  const int hinges = padded<T>(unit.hinges);
  const Parameters<C> parameters(unit, norm, true, hinges, e.channels, walk.vectors, walk.stride, walk.step);
  const bool own_slopes = walk.way == Walk<C>::lines && unit.groups > 1;
  const auto strip = forward_strip_for<T>(hinges, affine_for(walk, norm), parameters.finder(), own_slopes);
  walk.run([&](int64_t, int64_t at, int64_t v, int64_t n, int64_t stride, int filled) {
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
  const Walk<C> walk(e, unit.groups == 1, norm, false, sum_length, piece, piece);
  const int hinges = padded<T>(unit.hinges);
  const Parameters<C> parameters(unit, norm, false, hinges, e.channels, walk.vectors, walk.stride, walk.step);
  const auto strip = backward_strip_for<T>(hinges, affine_for(walk, norm), dx, parameters.finder());
  TotalsOf<C> totals(hinges, walk.totals(), walk.way == Walk<C>::lines);
  walk.run([&](int64_t task, int64_t at, int64_t v, int64_t n, int64_t stride, int filled) {
    const Totals<C> mine = totals[walk.totals_at(task, v)];
    if (filled == lanes<C>::count) [[likely]] return strip(x + at, grad + at, dx + at, n, stride, filled, parameters[v], mine);
    Ragged<T> r;
    std::memcpy(r.in, x + at, filled * sizeof(T));
    std::memcpy(r.grad, grad + at, filled * sizeof(T));
    strip(r.in, r.grad, r.out, 1, stride, filled, parameters[v], mine);
    if (dx) std::memcpy(dx + at, r.out, filled * sizeof(T));
  }, [&](int64_t task) {
    for (int64_t v = 0; v < walk.vectors; ++v) totals.add_recent(walk.totals_at(task, v));
  });
  if (!sums) return;
  for (int64_t i = 0; i < walk.totals(); ++i) {
    const Totals<C> t = totals[i];
    int64_t channel = i % walk.vectors * walk.stride % e.channels;
    for (int lane = 0; lane < lanes<C>::count; ++lane, channel = (channel + walk.step == e.channels ? 0 : channel + walk.step)) {
      const int64_t group = unit.groups == 1 ? 0 : channel;
      for (int s = 0; s < unit.hinges; ++s) {
        sums->pos[s * unit.groups + group] += t.pos[s][lane];
        sums->neg[s * unit.groups + group] += t.neg[s][lane];
      }
      if (norm) sums->dz[channel] += (*t.dz)[lane], sums->dz_x[channel] += (*t.dz_x)[lane];
    }
  }
}

// Two passes over each piece while it is in cache, joined in double (Chan et al. 1979): as exact as two
// passes over everything, at the price of one. N is a double, or a vector of them for as many channels.
template <class N>
struct Moments {
  N count{}, mean{}, deviation{};
  void join(N n, N m, N d) {
    const N both = count + n, share = n / (both > 0 ? both : N{} + 1), gap = m - mean;
    deviation += d + gap * gap * count * share;
    mean += gap * share;
    count = both;
  }
};

// What `filled` lanes of n vectors add to the lanes' moments.
template <class T>
SPLASH_INLINE void look(const T* x, int64_t n, int64_t stride, int filled, Moments<Wide<compute_t<T>>>& to) {
  using C = compute_t<T>;
  if (filled < lanes<C>::count) {
    Wide<C> there{}, values{};
    for (int lane = 0; lane < filled; ++lane) there[lane] = 1, values[lane] = as_compute(x[lane]);
    return to.join(there, values, Wide<C>{});
  }
  Vec<C> sum{}, squares{}, left_over{};
  for (int64_t k = 0; k < n; ++k) sum += stored<T>::load(x + k * stride);
  const Vec<C> middle = sum / static_cast<C>(n);
  for (int64_t k = 0; k < n; ++k) {
    const Vec<C> d = stored<T>::load(x + k * stride) - middle;
    squares += d * d;
    left_over += d;  // what rounding the mean left behind
  }
  const double count = static_cast<double>(n);
  const Wide<C> rest = __builtin_convertvector(left_over, Wide<C>) / count;
  to.join(Wide<C>{} + count, __builtin_convertvector(middle, Wide<C>) + rest, __builtin_convertvector(squares, Wide<C>) - count * rest * rest);
}

template <class T>
void moments(const T* x, Extent e, double* mean, double* deviation) {
  using C = compute_t<T>;
  constexpr int W = lanes<C>::count;
  using InLanes = Moments<Wide<C>>;
  std::vector<Moments<double>> whole(e.channels);
  const auto add = [&](int64_t channel, const InLanes& m, int lane) {
    whole[channel].join(m.count[lane], m.mean[lane], m.deviation[lane]);
  };
  if (e.inner > 1) {
    parallel(e.channels, e.size() > worth_sharing, [&](int64_t c) {
      InLanes all_lanes;
      for (int64_t o = 0; o < e.outer; ++o) {
        const T* row = x + (o * e.channels + c) * e.inner;
        along_row<C>(e.inner, sum_length, [&](int64_t i, int64_t n, int filled) { look(row + i, n, W, filled, all_lanes); });
      }
      for (int lane = 0; lane < W; ++lane) add(c, all_lanes, lane);
    });
  } else {
    const Columns<C> columns(e);
    std::vector<InLanes> parts(columns.row_tasks * columns.vectors);
    parallel(columns.tasks(), e.size() > worth_sharing, [&](int64_t task) {
      InLanes* mine = parts.data() + task / columns.blocks * columns.vectors;
      columns.task(task, [&](int64_t i, int64_t v, int64_t n, int64_t stride, int filled) { look(x + i, n, stride, filled, mine[v]); });
    });
    for (int64_t i = 0; i < static_cast<int64_t>(parts.size()); ++i)
      for (int lane = 0; lane < W; ++lane) add((i % columns.vectors * W + lane) % e.channels, parts[i], lane);
  }
  for (int64_t c = 0; c < e.channels; ++c) mean[c] = whole[c].mean, deviation[c] = whole[c].deviation;
}

const char* instruction_set() {
#if defined(__AVX512F__)
  return "avx512";
#elif defined(__AVX2__)
  return "avx2";
#else
  return "portable";
#endif
}

#define SPLASH_FOR(T)                                                                                     \
  template void forward(const T*, T*, Extent, const Unit<compute_t<T>>&, const Norm<compute_t<T>>*);      \
  template void backward(const T*, const T*, T*, Extent, const Unit<compute_t<T>>&,                       \
                         const Norm<compute_t<T>>*, const Sums*);                                         \
  template void moments(const T*, Extent, double*, double*);
SPLASH_FOR(float)
SPLASH_FOR(double)
SPLASH_FOR(bfloat16)
SPLASH_FOR(float16)

}  // namespace splash_units
