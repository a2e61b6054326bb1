// Hinges that are multiples of one step, up to fifteen, as five and more default ones are.
//
// The step divides the axis into cells, sixteen on either side, and a cell's number looks up its slope and intercept
// (bytes.h). Backward, each cell has two sums: of g and of g (u - b), b being where the cell begins. What the slopes of
// all hinges learn follows from them at the end, where summing up for each hinge takes four instructions a hinge.
#pragma once

#include <algorithm>
#include <cstring>

#include "backward.h"
#include "bytes.h"
#include "native.h"
#include "parameters.h"
#include "simd.h"
#include "strips.h"
#include "walk.h"

namespace splash_units {
namespace {

// Calls some<4>(i) for each four of n vectors, and some<1>(i) for each that is left.
template <class F>
SPLASH_INLINE void by_four(int64_t n, const F& some) {
  int64_t i = 0;
  for (; i + in_bytes <= n; i += in_bytes) some.template operator()<in_bytes>(i);
  for (; i < n; ++i) some.template operator()<1>(i);
}

SPLASH_INLINE bool is_finite(Vec<float> v) { return !any<float>((v - v) != 0); }

// --- forward ------------------------------------------------------------------------------------------

// Numbers of cells, step by step. Close to a hinge it may be the neighbour's, whose segment gives the same value but for
// rounding; at zero, too, where x in steps is too small for a number. Infinities, NaN and what is too large for a whole number all become the number with -0.0's bits.
template <bool few, int count>
struct Numbering {
  Vec<float> t[count];

  SPLASH_INLINE void round_down() {
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) t[q] = in_order(floor_of(t[q]));
  }
  SPLASH_INLINE Ints<float> cells(Watch<float>& watch) const {
    Ints<float> j[count];
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) watch.see_least(j[q] = in_order(to_whole(t[q])));
    return in_order(within_table<few>(as_bytes<count>(j)));
  }
};

template <class T, Affine affine, Finder finder>
SPLASH_ONE_COPY void forward_cells_strip(const T* x, T* y, int64_t n, int64_t any_stride, int filled, const Lanes<float>& p) {
  constexpr bool in_twos = goes_in_twos<T, affine, finder>, few = is_few(finder);
  const int64_t stride = apart<float, affine>(any_stride);
  const Table& table = *p.table;
  const float cells_per_unit = table.cells_per_unit;
  const Norms<float, affine> norms(p);
  Watch<float> watch;
  const auto load = [&]<int count>(Vec<float>* z, int64_t i) SPLASH_INLINE_LAMBDA {
    load_vectors<T, in_twos, count>(x + i * stride, stride, z);
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) z[q] = normalised<affine>(z[q], norms[i + q]);
  };
  const auto begin = [&]<int count>(Numbering<few, count>& numbers, int64_t i) SPLASH_INLINE_LAMBDA {
    Vec<float> z[count];
    load.template operator()<count>(z, i);
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) {
      if constexpr (is_falling(finder)) watch.see_least(z[q]);
      numbers.t[q] = in_order(z[q] * cells_per_unit);
    }
  };
  const auto store = [&]<int count>(Ints<float> cells, int64_t i, const auto& meanwhile, const auto& then) SPLASH_INLINE_LAMBDA {
    const Places<few> places(cells);
    Vec<float> z[count], slope[count], h[count];
    look_up<count>(table.slopes, places, slope, meanwhile);
    look_up<count>(table.intercepts, places, h, then);
    load.template operator()<count>(z, i);
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) h[q] = slope[q] * z[q] + h[q];
    store_vectors<T, in_twos, count>(y + i * stride, stride, h);
  };
  int64_t i = 0;
  if (n >= in_bytes) {
    Numbering<few, in_bytes> numbers;
    begin(numbers, 0);
    numbers.round_down();
    Ints<float> cells = numbers.cells(watch), next_cells;
    for (; i + in_bytes <= n; i += in_bytes) {
      fetch_ahead(x + i * stride, y + i * stride);
      fetch_ahead(x + (i + 2) * stride, y + (i + 2) * stride);
      // While four vectors look up, the next four find their cells; the last, those again.
      begin(numbers, i + 2 * in_bytes <= n ? i + in_bytes : i);
      store.template operator()<in_bytes>(cells, i, [&] { numbers.round_down(); }, [&] { next_cells = numbers.cells(watch); });
      cells = next_cells;
    }
  }
  for (; i < n; ++i) {
    Numbering<few, 1> numbers;
    begin(numbers, i);
    numbers.round_down();
    store.template operator()<1>(numbers.cells(watch), i, [] {}, [] {});
  }
  if (!watch.saw_negative_zero()) [[likely]] return;
  forward_one_by_one<T, affine, false>(x, y, n, stride, filled, p);
}

// --- backward -----------------------------------------------------------------------------------------

// Inputs' cells, and how far inputs lie beyond where their cell begins, seen from zero. At a hinge the inner one counts.
struct CellFinder {
  const float cells_per_unit, step_high, step_low;
  explicit SPLASH_INLINE CellFinder(const Table* t) : cells_per_unit(t->cells_per_unit), step_high(t->step_high), step_low(t->step_low) {}

  template <int count>
  SPLASH_INLINE Ints<float> operator()(const Vec<float>* z, Vec<float>* beyond) const {
    Vec<float>*u = beyond, t[count], limit[count];
    Ints<float> cell[count];
    const auto each = [&](auto* v, const auto& step) SPLASH_INLINE_LAMBDA {
      SPLASH_UNROLLED
      for (int q = 0; q < count; ++q) v[q] = in_order(step(q));
    };
    each(u, [&](int q) SPLASH_INLINE_LAMBDA { return magnitude<float>(z[q]); });
    each(t, [&](int q) SPLASH_INLINE_LAMBDA { return u[q] * cells_per_unit; });
    each(t, [&](int q) SPLASH_INLINE_LAMBDA { return smaller<float>(t[q], all<float>(cells_a_side - 1)); });
    each(t, [&](int q) SPLASH_INLINE_LAMBDA { return nearest(t[q]); });
    // Up to this multiple of the step, it is the cell before.
    each(limit, [&](int q) SPLASH_INLINE_LAMBDA { return t[q] * step_low - Steps::nothing; });
    each(beyond, [&](int q) SPLASH_INLINE_LAMBDA { return u[q] - t[q] * step_high; });
    each(limit, [&](int q) SPLASH_INLINE_LAMBDA { return (Vec<float>)(beyond[q] <= limit[q]); });
    each(cell, [&](int q) SPLASH_INLINE_LAMBDA { return to_whole(t[q]); });
    each(cell, [&](int q) SPLASH_INLINE_LAMBDA { return cell[q] + bits<float>(limit[q]); });
    each(beyond, [&](int q) SPLASH_INLINE_LAMBDA { return beyond[q] + (Vec<float>)(bits<float>(limit[q]) & bits<float>(all<float>(step_high))); });
    Ints<float> signs[count];
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) signs[q] = bits<float>(z[q]);
    return as_bytes<count>(cell) ^ negative_bytes(as_bytes<count>(signs));
  }
};

// Of each cell and lane, the sums of g and g (u - b): lanes apart, since those of a vector may have a cell in common.
struct CellSums {
  static constexpr int W = lanes<float>::count, vectors = 4 * cells_a_side / W;
  alignas(register_bytes) float of[W][2 * cells_a_side][2];

  SPLASH_INLINE void clear() {
    const Vec<float> zero = in_order(Vec<float>{});  // known to be zero, it would become a call that takes longer
    for (int v = 0; v < W * vectors; ++v) stored<float>::store(&of[0][0][0] + v * W, zero);
  }

  // Adds the pairs of vector q, as `interleave` gives them, to the cells whose numbers as_bytes gave.
  template <int piece = 0>
  SPLASH_INLINE void add(int q, const char* numbers, const Vec<float>* pairs) {
#if defined(__AVX2__)
    constexpr int lane = 4 * piece;
    uint32_t four;
    std::memcpy(&four, numbers + byte_of(q, lane), 4);
    add_two(lane, four, four >> 8, piece_of<piece>(pairs[0]));
    add_two(lane + 2, four >> 16, four >> 24, piece_of<piece>(pairs[1]));
    if constexpr (lane + 4 < W) add<piece + 1>(q, numbers, pairs);
#endif
  }
  // The same for cells that stand in the low bytes of lanes.
  SPLASH_INLINE void add([[maybe_unused]] const int32_t* cell, [[maybe_unused]] const float* pair) {
#if defined(__AVX2__)
    unrolled<W / 4>([&](auto piece) SPLASH_INLINE_LAMBDA {
      constexpr int lane = 4 * piece;
      add_two(lane, static_cast<int8_t>(cell[lane]), static_cast<int8_t>(cell[lane + 1]), _mm_load_ps(pair + lane));
      add_two(lane + 2, static_cast<int8_t>(cell[lane + 2]), static_cast<int8_t>(cell[lane + 3]), _mm_load_ps(pair + W + lane));
    });
#endif
  }
  // Whether all are finite; only then they are added.
  SPLASH_INLINE bool add_to(double* totals) const {
    Vec<float> sums[vectors], all_sums{};
    for (int v = 0; v < vectors; ++v) {
      sums[v] = stored<float>::load(&of[0][0][0] + v * W);
      for (int lane = 1; lane < W; ++lane) sums[v] += stored<float>::load(&of[lane][0][0] + v * W);
      all_sums += sums[v];
    }
    if (!is_finite(all_sums)) return false;
    for (int v = 0; v < vectors; ++v) {
      Wide<float> sum;
      std::memcpy(&sum, totals + v * W, sizeof sum);
      sum += __builtin_convertvector(sums[v], Wide<float>);
      std::memcpy(totals + v * W, &sum, sizeof sum);
    }
    return true;
  }

#if defined(__AVX2__)
 private:
  SPLASH_INLINE void add_two(int lane, int8_t cell, int8_t next_cell, __m128 pairs) {
    float *one = of[lane][cells_a_side + cell], *other = of[lane + 1][cells_a_side + next_cell];
    const __m128 before = _mm_castsi128_ps(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(one)));
    const __m128 sums = _mm_add_ps(_mm_loadh_pi(before, reinterpret_cast<const __m64*>(other)), pairs);
    _mm_storel_pi(reinterpret_cast<__m64*>(one), sums);
    _mm_storeh_pi(reinterpret_cast<__m64*>(other), sums);
  }
#endif
};

// What a strip keeps between its loops. In this order what is read has other places in a page of memory than the sums
// that are stored meanwhile, or a core would make it wait for them. (In AVX-512 the sums alone fill a page.)
struct CellStrip {
  Ints<float> cells[sum_length / in_bytes + in_bytes - 1];
  CellSums sums;
  Vec<float> beyond[sum_length];
};

// At most `sum_length` vectors.
template <class T, Affine affine, bool writes, bool sums>
SPLASH_ONE_COPY void backward_cells(const T* x, const T* grad, T* dx, int64_t n, int64_t stride, int filled,
                                    const Lanes<float>& p, const Totals<float>& totals) {
  constexpr bool in_twos = goes_in_twos<T, affine, Finder::cells>;
  // What batch norm learns from must wait until all is known to be finite. Otherwise sums wait, if there are any: what has just
  // been stored is slow to load.
  constexpr bool passes_first = sums && affine == Affine::none;
  const CellFinder find(p.table);
  const Norms<float, affine> norms(p);
  Passing<float, affine, sums> passing{norms, totals};
  CellStrip strip;
  const auto cells = [&]<int count>(int64_t i) -> Ints<float>& {
    return strip.cells[count == in_bytes ? i / in_bytes : n / in_bytes + i % in_bytes];
  };
  const auto find_cells = [&]<int count>(int64_t i, Vec<float>* beyond) SPLASH_INLINE_LAMBDA {
    Vec<float> z[count];
    load_vectors<T, in_twos, count>(x + i * stride, stride, z);
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) z[q] = normalised<affine>(z[q], norms[i + q]);
    cells.template operator()<count>(i) = find.template operator()<count>(z, beyond);
  };
  const auto sum_up = [&]<int count>(int64_t i) SPLASH_INLINE_LAMBDA {
    Vec<float> g[count], pairs[2];
    load_vectors<T, in_twos, count>(grad + i * stride, stride, g);
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) {
      interleave(g[q], g[q] * strip.beyond[i + q], pairs);
      strip.sums.add(q, reinterpret_cast<const char*>(&cells.template operator()<count>(i)), pairs);
    }
  };
  const auto pass_on = [&]<int count>(int64_t i) SPLASH_INLINE_LAMBDA {
    fetch_two_ahead(x + i * stride, (writes ? dx : x) + i * stride, stride);
    Vec<float> in[count], g[count], slope[count], out[count];
    load_vectors<T, in_twos, count>(x + i * stride, stride, in);
    load_vectors<T, in_twos, count>(grad + i * stride, stride, g);
    const Places<false> places(cells.template operator()<count>(i));
    look_up<count>(p.table->slopes, places, slope, [] {});
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) {
      const Vec<float> z = normalised<affine>(in[q], norms[i + q]);
      // At zero no slope counts. + 0: a flat segment passes on 0.0, never -0.0, as torch.relu has it
      out[q] = passing.dx(g[q] * (Vec<float>)(bits<float>(slope[q]) & (z != 0)) + Vec<float>{}, in[q], i + q);
    }
    if constexpr (writes) store_vectors<T, in_twos, count>(dx + i * stride, stride, out);
  };
  bool all_finite;

  if constexpr (sums) {
    by_four(n, [&]<int count>(int64_t i) SPLASH_INLINE_LAMBDA { find_cells.template operator()<count>(i, strip.beyond + i); });
    strip.sums.clear();
    by_four(n, sum_up);
    if constexpr (passes_first) by_four(n, pass_on);
    all_finite = strip.sums.add_to(totals.together);
  } else {
    Watch<float> watch;
    by_four(n, [&]<int count>(int64_t i) SPLASH_INLINE_LAMBDA {
      Vec<float> beyond[count];
      find_cells.template operator()<count>(i, beyond);
      SPLASH_UNROLLED
      for (int q = 0; q < count; ++q) watch.see_largest(magnitude<float>(beyond[q]));
    });
    all_finite = !watch.saw_infinity_or_nan();
  }
  if (!all_finite) [[unlikely]]
    return backward_one_by_one<T, affine, writes, sums>(x, grad, dx, n, stride, filled, p, totals);
  if constexpr (!passes_first) by_four(n, pass_on);
  passing.add_up();
}

// Adds to each hinge's sum of g max(0, u - b) what the cells beyond it hold.
void add_ramps(const Unit<float>& unit, const Steps& steps, const Totals<float>& to) {
  for (bool left : {false, true}) {
    double g = 0, ramp = 0;  // sums of g and g (u - b) over the cells from here on, b being where this one begins
    for (int cell = cells_a_side - 1, s = unit.hinges - 1; cell >= 0; --cell) {
      const double* sums = to.together + 2 * (cells_a_side + (left ? -1 - cell : cell));
      ramp += sums[1] + steps.high * g, g += sums[0];
      for (; s >= 0 && steps.number[s] == cell; --s)
        (left ? to.neg : to.pos)[s][0] += ramp + (double(cell) * steps.high - unit.at[s]) * g;
    }
  }
}

}  // namespace
}  // namespace splash_units
