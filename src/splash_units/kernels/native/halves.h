// Forward where hinges are multiples of a half, four at most, as the default ones are.
//
// floor(2 x) numbers the cells between such hinges, one table gives a cell's segment, two more the
// segment's slope and intercept: eleven instructions where comparing with each hinge takes thirteen,
// and fewer of those that only two of a core's units can do. They wait for one another, so four vectors
// take each step side by side.
//
// Exact: nothing is rounded before the floor, and at a hinge both segments give the same value.
#pragma once

#include "native.h"
#include "parameters.h"
#include "simd.h"
#include "strips.h"

namespace splash_units {
namespace {

constexpr int side_by_side = 4;

// A strip's own copy of the registers.
struct HalvesFound {
  const Vec<float> slopes, intercepts;
  const Ints<float> segments;
  explicit SPLASH_INLINE HalvesFound(const Table* t)
      : slopes(t->slope), intercepts(t->intercept), segments(t->segment_of_cell) {}

  // z -> h(z), all of them at once.
  template <int count>
  SPLASH_INLINE void operator()(const Vec<float>* z, Vec<float>* h) const {
    // 3 * 2^22 plus a whole number has that number in its lowest bits, from cell 0 on, where x = -4; and
    // compared as whole numbers, floats of one sign keep their order, however large.
    const float first = 12582912;
    const Ints<float> least = bits<float>(all<float>(first)), largest = bits<float>(all<float>(first + last_cell));
    const auto each = [&](const auto& step) SPLASH_INLINE_LAMBDA {
      SPLASH_UNROLLED
      for (int q = 0; q < count; ++q) h[q] = in_order((Vec<float>)step(q));
    };
    each([&](int q) SPLASH_INLINE_LAMBDA { return z[q] + z[q]; });
    each([&](int q) SPLASH_INLINE_LAMBDA { return floor_of(h[q]); });
    each([&](int q) SPLASH_INLINE_LAMBDA { return h[q] + (first + cell_of_zero); });
    each([&](int q) SPLASH_INLINE_LAMBDA { return greater<float>(bits<float>(h[q]), least); });
    each([&](int q) SPLASH_INLINE_LAMBDA { return lesser<float>(bits<float>(h[q]), largest); });
    each([&](int q) SPLASH_INLINE_LAMBDA { return lookup_bytes(segments, bits<float>(h[q])); });
    each([&](int q) SPLASH_INLINE_LAMBDA {
      const Ints<float> j = bits<float>(h[q]);
      return lookup(slopes, j) * z[q] + lookup(intercepts, j);
    });
  }
};

// h is not finite: an infinity, which a slope of zero makes NaN, or a NaN. Sums show it.
SPLASH_INLINE bool is_finite(Vec<float> sum) { return !any<float>((sum - sum) != 0); }

template <class T, Affine affine>
SPLASH_ONE_COPY void forward_halves_strip(const T* x, T* y, int64_t n, int64_t stride, int filled, const Lanes<float>& p) {
  const HalvesFound found(p.table);
  const Norms<float, affine> norms(p);
  Vec<float> sum{};
  int64_t i = 0;
  const auto step = [&]<int count>() SPLASH_INLINE_LAMBDA {
    Vec<float> z[count], h[count];
    load_vectors<T, goes_in_twos<T, affine, Finder::halves>, count>(x + i * stride, stride, z);
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) z[q] = normalised<affine>(z[q], norms[i + q]);
    found.template operator()<count>(z, h);
    store_vectors<T, goes_in_twos<T, affine, Finder::halves>, count>(y + i * stride, stride, h);
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) sum += h[q];
    i += count;
  };
  while (i + side_by_side <= n) {
    SPLASH_UNROLLED
    for (int q = 0; q < side_by_side; q += 2) fetch_ahead(x + (i + q) * stride, y + (i + q) * stride);
    step.template operator()<side_by_side>();
  }
  while (i < n) step.template operator()<1>();
  if (is_finite(sum)) [[likely]] return;
  forward_one_by_one<T, affine>(x, y, n, stride, filled, p);
}

}  // namespace
}  // namespace splash_units
