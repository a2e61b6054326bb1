// Forward where hinges are multiples of a step, up to fifteen, and an instruction can round down, as in AVX-512.
//
// The step divides the axis into cells, sixteen on either side, and two registers hold the slopes of all, two others
// their intercepts. Close to a hinge it may be the neighbour's cell, whose segment gives the same value but for rounding.
// On which side of zero an input lies is exact, and nothing has to be watched for: infinities keep their cell, and NaN
// comes out of any.
#pragma once

#include "bytes.h"
#include "native.h"
#include "parameters.h"
#include "simd.h"
#include "strips.h"

namespace splash_units {
namespace {

template <class T, Affine affine, Finder finder>
SPLASH_ONE_COPY void forward_steps_strip(const T* x, T* y, int64_t n, int64_t stride, int filled, const Lanes<float>& p) {
  const Norms<float, affine> norms(p);
  const Table& table = *p.table;
  const InTwoRegisters slopes(table.slopes), intercepts(table.intercepts);
  const Vec<float> farthest = all<float>(table.last), per_unit = all<float>(table.cells_per_unit);
  Watch<float> watch;
  const auto value = [&](Vec<float> z, int64_t) SPLASH_INLINE_LAMBDA {
    if constexpr (is_falling(finder)) watch.see_least(z);
    const Vec<float> right_of = larger<float>(-farthest, z), kept = smaller<float>(farthest, right_of);
    const Ints<float> cell = floor_in_low_bits(kept, per_unit);
    return slopes[cell] * (finder == Finder::steps_flat_left ? right_of : z) + intercepts[cell];
  };
  forward_by_two<T, affine, goes_in_twos<T, affine, finder>>(x, y, n, stride, norms, value);
  if constexpr (is_falling(finder))
    if (watch.saw_negative_zero()) [[unlikely]]
      forward_one_by_one<T, affine, false>(x, y, n, stride, filled, p);
}

}  // namespace
}  // namespace splash_units
