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
constexpr int most_in_double = 6;                    // hinges: of more, memory would have to wait

double sum_of_lanes(Vec<double> v) {
  double sum = 0;
  for (int lane = 0; lane < lanes<double>::count; ++lane) sum += v[lane];
  return sum;
}

// Of n neighbouring vectors, for K hinges.
template <int K>
SPLASH_ONE_COPY void sum_in_double(const float* x, const float* grad, int64_t n, int filled, const Lanes<float>& p, const Totals<float>& totals) {
  constexpr int W = lanes<double>::count, halves = lanes<float>::count / W;
  const auto in_double = [](const float* numbers) { return reinterpret_cast<const widened*>(numbers); };
  const Norms<double, Affine::none> none(Lanes<double>{});
  double at[K];
  std::copy_n(p.at, K, at);
  Vec<double> right[K], left[K];
  sum_ramps<widened, K, true, Affine::none, Finder::compare>(in_double(x), in_double(grad), n * halves, W, none, at, right, left);
  // What is infinite or NaN makes the sums of the first hinge so, which is at zero.
  if (!std::isfinite(sum_of_lanes(right[0]) + sum_of_lanes(left[0]))) [[unlikely]]
    return backward_one_by_one<float, Affine::none, false, true>(x, grad, nullptr, n, lanes<float>::count, filled, p, totals);
  for (int s = 0; s < K; ++s) totals.together[s] += sum_of_lanes(right[s]), totals.together[K + s] += sum_of_lanes(left[s]);
}

}  // namespace
}  // namespace splash_units
