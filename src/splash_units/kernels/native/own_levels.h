// Forward where each lane has slopes of its own, as in own_slopes.h, with an instruction less for each hinge: for AVX-512.
//
// With u = |x|, a max(0, u - b) = a max(u, b) - a b. The sum of a max(u, b) over all hinges but the first stands at its level,
// the sum of a b, until an input reaches the second hinge. The level is found by the same arithmetic, so that what is left of
// the sum there is zero to the last bit, and not just nearly; and since rounding never turns a smaller sum into a larger one,
// slopes of one sign give values of that sign. The level is taken away rounding down, by which a number less itself is -0.0:
// so -0.0 stays what it is if the first slope on the right is no negative number, and need not be watched for.
#pragma once

#include <cmath>

#include "native.h"
#include "own_slopes.h"
#include "parameters.h"
#include "simd.h"
#include "strips.h"

namespace splash_units {
namespace {

constexpr int64_t longest_with_levels = 32;     // vectors of a line
constexpr int64_t fewest_lines_for_levels = 8;  // for which it is worth finding levels
constexpr float most_for_levels = 1e30f;        // of sums of slopes times hinges; beyond, only they might be infinite

template <int K>
struct Levels {
  // Slopes and levels of one vector, side by side: from where they were, each would take a register for its address. The first
  // slope on the left is for inputs with their sign.
  struct OfVector {
    Vec<float> right[K], left[K], right_level, left_level;
  };
  Vec<float> at[K];
  OfVector of[longest_with_levels];

  explicit SPLASH_INLINE Levels(const Lanes<float>& p) {
    for (int s = 0; s < K; ++s) at[s] = all<float>(std::isinf(p.at[s]) ? 0 : p.at[s]);  // those that fill up have no slope
  }
  struct Found {
    bool serve, falling;  // whether they can be used, and whether some first slope on the right is negative
  };
  SPLASH_INLINE Found find(const Lanes<float>& p) {
    Vec<float> most{};
    Ints<float> signs{};
    for (int64_t v = 0; v < p.line_vectors; ++v) {
      OfVector& own = of[v];
      const Slopes<float> pos = p.pos.beyond(v), neg = p.neg.beyond(v);
      for (int s = 0; s < K; ++s) own.right[s] = pos[s], own.left[s] = neg[s];
      own.right_level = level(own.right), own.left_level = level(own.left);
      most += size_of(own.right) + size_of(own.left);
      signs |= bits<float>(own.right[0]);
      own.left[0] = -own.left[0];
    }
    return {!any<float>(~(most <= most_for_levels)), any<float>(signs < 0)};
  }

 private:
  SPLASH_INLINE Vec<float> level(const Vec<float>* slopes) const {  // as a strip adds it up
    Vec<float> sum = slopes[K - 1] * at[K - 1];
    for (int s = K - 2; s > 0; --s) sum = product_and(slopes[s], at[s], sum);
    return sum;
  }
  SPLASH_INLINE Vec<float> size_of(const Vec<float>* slopes) const {
    Vec<float> sum = magnitude<float>(slopes[0]);
    for (int s = 1; s < K; ++s) sum += magnitude<float>(slopes[s]) * at[s];
    return sum;
  }
};

// Whether nothing was met that has to be done again. falling: some first slope on the right is negative.
template <class T, int K, Affine affine, bool falling>
SPLASH_ONE_COPY bool forward_from_levels(const T* x, T* y, int64_t n, const Lanes<float>& p, const Levels<K>& levels) {
  constexpr int W = lanes<float>::count;
  const int64_t line = p.line_vectors;
  const Norms<float, affine> norms(p);
  Vec<float> at[K];  // a copy: for all the compiler knows, a store may change the original
  unrolled<K>([&](auto s) SPLASH_INLINE_LAMBDA { at[s] = levels.at[s]; });
  Vec<float> finite{};  // no longer so once an input was not
  Watch<float> watch;
  const int64_t width = line * W;
  const auto vectors = [&]<int rows>(const T* from, T* to, const auto& own, int64_t v) SPLASH_INLINE_LAMBDA {  // one a row, of the same channels
    Vec<float> z[rows], sum[rows];
    Mask left[rows];
    SPLASH_UNROLLED
    for (int row = 0; row < rows; ++row) {
      z[row] = normalised<affine>(in_order(stored<T>::load(from + row * width)), norms[v]);
      left[row] = left_of_zero(z[row]);
      if constexpr (falling) watch.see_least(z[row]);
    }
    SPLASH_UNROLLED
    for (int row = 0; row < rows; row += 2) finite = product_and(z[row], z[rows > 1 ? row + 1 : row], finite);
    unrolled<K - 1>([&](auto before) SPLASH_INLINE_LAMBDA {  // from the last hinge to the second
      constexpr int s = K - 1 - before;
      const Vec<float> on_right = in_order(own.right[s]), on_left = in_order(own.left[s]);  // loaded once, not for each row
      SPLASH_UNROLLED
      for (int row = 0; row < rows; ++row) {
        const Vec<float> a = chosen(left[row], on_left, on_right), reach = no_nearer(z[row], at[s]);
        sum[row] = before == 0 ? a * reach : product_and(a, reach, sum[row]);
      }
    });
    const Vec<float> on_right = in_order(own.right[0]), on_left = in_order(own.left[0]);
    const Vec<float> right_level = in_order(own.right_level), left_level = in_order(own.left_level);
    SPLASH_UNROLLED
    for (int row = 0; row < rows; ++row) {
      const Vec<float> level = chosen(left[row], left_level, right_level);
      const Vec<float> beyond = falling ? sum[row] - level : difference_down(sum[row], level);
      stored<T>::store(to + row * width, product_and(chosen(left[row], on_left, on_right), z[row], beyond));
    }
  };
  int64_t i = 0;
  const auto rows_at_a_time = [&]<int rows>() SPLASH_INLINE_LAMBDA {
    for (; i + rows * line <= n; i += rows * line)
      for (int64_t v = 0; v < line; ++v) vectors.template operator()<rows>(x + (i + v) * W, y + (i + v) * W, levels.of[v], v);
  };
  rows_at_a_time.template operator()<4>();
  rows_at_a_time.template operator()<1>();
  return !any<float>(~(finite - finite == 0)) && !(falling && watch.saw_negative_zero());
}

template <class T, int K, Affine affine>
SPLASH_ONE_COPY void forward_levels_strip(const T* x, T* y, int64_t n, int64_t stride, int filled, const Lanes<float>& p) {
  const auto otherwise = [&] { forward_own_strip<T, K, affine>(x, y, n, stride, filled, p); };
  const int64_t line = p.line_vectors;
  if (line > longest_with_levels || n < fewest_lines_for_levels * line || n % line) return otherwise();
  Levels<K> levels(p);
  const auto found = levels.find(p);
  if (!found.serve) [[unlikely]] return otherwise();
  const auto strip = found.falling ? &forward_from_levels<T, K, affine, true> : &forward_from_levels<T, K, affine, false>;
  if (!strip(x, y, n, p, levels)) [[unlikely]] forward_one_by_one<T, affine, true>(x, y, n, stride, filled, p);
}

}  // namespace
}  // namespace splash_units
