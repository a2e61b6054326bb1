// Sums for the slopes' gradients in double from the first term on, of so many float32 numbers that memory takes as long as what is
// done with them. Terms of both signs may cancel to less than rounding leaves of sums in float; here what is left has its digits.
#pragma once

#include <algorithm>
#include <cmath>

#include "backward.h"
#include "native.h"
#include "parameters.h"
#include "simd.h"
#include "strips.h"

namespace splash_units {
namespace {

constexpr int64_t most_in_float = int64_t{1} << 22;  // elements

double sum_of_lanes(Vec<double> v) {
  double sum = 0;
  for (int lane = 0; lane < lanes<double>::count; ++lane) sum += v[lane];
  return sum;
}

// For K hinges from number `s` on. Whether all is finite, if these are the first; if not, nothing was added.
template <int K, bool first>
SPLASH_ONE_COPY bool add_in_double(const float* x, const float* grad, int64_t n, int s, const Lanes<float>& p, const Totals<float>& totals) {
  constexpr int W = lanes<double>::count, halves = lanes<float>::count / W;
  const auto in_double = [](const float* numbers) { return reinterpret_cast<const widened*>(numbers); };
  const Norms<double, Affine::none> none(Lanes<double>{});
  double at[K];
  std::copy_n(p.at + s, K, at);
  Vec<double> right[K], left[K];
  sum_ramps<widened, K, first, Affine::none, Finder::compare>(in_double(x), in_double(grad), n * halves, W, none, at, right, left);
  // What is infinite or NaN makes the sums of the first hinge so, which is at zero.
  if (first && !std::isfinite(sum_of_lanes(right[0]) + sum_of_lanes(left[0]))) [[unlikely]] return false;
  double *const pos = totals.together + s, *const neg = pos + p.hinges;
  for (int k = 0; k < K; ++k) pos[k] += sum_of_lanes(right[k]), neg[k] += sum_of_lanes(left[k]);
  return true;
}

// Of n neighbouring vectors.
void sum_in_double(const float* x, const float* grad, int64_t n, int filled, const Lanes<float>& p, const Totals<float>& totals) {
  constexpr int some = hinges_at_a_time;  // which others than six are padded to multiples of
  const bool are_six = p.hinges == 6;
  if (!(are_six ? add_in_double<6, true> : add_in_double<some, true>)(x, grad, n, 0, p, totals)) [[unlikely]]
    return backward_one_by_one<float, Affine::none, false, true>(x, grad, nullptr, n, lanes<float>::count, filled, p, totals);
  for (int s = some; !are_six && s < p.hinges; s += some) add_in_double<some, false>(x, grad, n, s, p, totals);
}

}  // namespace
}  // namespace splash_units
