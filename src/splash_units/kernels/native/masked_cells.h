// Backward by cells where lanes can be left out of an instruction, as in AVX-512: one loop for dx and for all sums.
#pragma once

#include <algorithm>

#include "backward.h"
#include "bytes.h"
#include "cells.h"
#include "native.h"
#include "parameters.h"
#include "simd.h"
#include "strips.h"

namespace splash_units {
namespace {

// A vector's cells, in the low bits of their numbers, and how far it lies beyond where they begin: see CellFinder.
struct MaskedCellFinder {
  const float cells_per_unit, step_high, step_low, farthest;
  explicit SPLASH_INLINE MaskedCellFinder(const Table* t)
      : cells_per_unit(t->cells_per_unit), step_high(t->step_high), step_low(t->step_low), farthest(step_high * (cells_a_side - 1)) {}

  SPLASH_INLINE Ints<float> operator()(Vec<float> z, Vec<float>& beyond) const {
    const Vec<float> u = magnitude<float>(z);
    const Vec<float> whole = at_most(all<float>(farthest), u) * cells_per_unit + whole_in_low_bits;
    const Vec<float> t = whole - whole_in_low_bits, limit = t * step_low - Steps::nothing;
    beyond = u - t * step_high;
    const Mask is_before = not_above(beyond, limit);  // up to this multiple of the step, it is the cell before
    beyond = chosen(is_before, beyond + step_high, beyond);
    const Ints<float> cell = chosen(is_before, bits<float>(whole) - 1, bits<float>(whole));
    return cell ^ (bits<float>(z) >> 31);
  }
};

// What a strip's vectors add to which cells, some at a time: added at once, sums would be loaded that are just being
// stored; kept for all vectors, they would drive x and the gradient out of the first cache.
struct Additions {
  static constexpr int64_t at_a_time = 16;
  Ints<float> cells[at_a_time];
  Vec<float> pairs[at_a_time][2];

  SPLASH_INLINE void put(int64_t i, Ints<float> cell, Vec<float> g, Vec<float> g_beyond) {
    cells[i] = cell;
    interleave(g, g_beyond, pairs[i]);
  }
  SPLASH_INLINE void add_to(CellSums& sums, int64_t n) const {
    for (int64_t i = 0; i < n; ++i) sums.add(reinterpret_cast<const int32_t*>(cells + i), reinterpret_cast<const float*>(pairs[i]));
  }
};

// At most `sum_length` vectors.
template <class T, Affine affine, bool writes, bool sums>
SPLASH_ONE_COPY void backward_masked_cells(const T* x, const T* grad, T* dx, int64_t n, int64_t stride, int filled,
                                           const Lanes<float>& p, const Totals<float>& totals) {
  constexpr bool in_twos = goes_in_twos<T, affine, Finder::cells>;
  const MaskedCellFinder find(p.table);
  const Norms<float, affine> norms(p);
  const InTwoRegisters slopes(p.table->slopes);
  Passing<float, affine, sums> passing{norms, totals};
  const SavedRecent<float, affine, sums> before(totals, n);
  Watch<float> watch;
  CellSums cell_sums;
  Additions additions;
  const auto pass = [&](Vec<float> in, Vec<float> g, int64_t i, int64_t addition) SPLASH_INLINE_LAMBDA {
    const Vec<float> z = normalised<affine>(in, norms[i]);
    Vec<float> beyond;
    const Ints<float> cell = find(z, beyond);
    if constexpr (sums) additions.put(addition, cell, g, g * beyond);
    else watch.see_largest(magnitude<float>(beyond));
    const Vec<float> slope = chosen(is_nonzero(z), slopes[cell], Vec<float>{});  // at zero none counts
    return passing.dx(g * slope + Vec<float>{}, in, i);  // + 0: a flat segment passes on 0.0, never -0.0, as torch.relu has it
  };
  if constexpr (sums) cell_sums.clear();
  for (int64_t begin = 0; begin < n; begin += Additions::at_a_time) {
    const int64_t some = std::min(n - begin, Additions::at_a_time);
    by_two(some, [&]<int count>(int64_t k) SPLASH_INLINE_LAMBDA {
      const int64_t i = begin + k;
      Vec<float> v[count], g[count];
      load_vectors<T, in_twos, count>(x + i * stride, stride, v), load_vectors<T, in_twos, count>(grad + i * stride, stride, g);
      SPLASH_UNROLLED
      for (int q = 0; q < count; ++q) v[q] = pass(v[q], g[q], i + q, k + q);
      if constexpr (writes) store_vectors<T, in_twos, count>(dx + i * stride, stride, v);
    });
    if constexpr (sums) additions.add_to(cell_sums, some);
  }
  const bool all_finite = [&] {
    if constexpr (sums) return cell_sums.add_to(totals.cells);
    else return !watch.saw_infinity_or_nan();
  }();
  if (!all_finite) [[unlikely]] {
    before.restore(totals, n);
    return backward_one_by_one<T, affine, writes, sums>(x, grad, dx, n, stride, filled, p, totals);
  }
  passing.add_up();
}

}  // namespace
}  // namespace splash_units
