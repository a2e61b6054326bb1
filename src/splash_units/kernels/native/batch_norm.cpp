// Batch norm's own part, in front of the unit: each channel's statistics, and what follows from them.
//
// Numbers of a channel are few, yet between two small layers they are what takes the time. So they are computed
// here, in vectors, and not beside the operators.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "batch_norm.h"
#include "simd.h"
#include "walk.h"

namespace splash_units {
namespace {

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
  void join(const Moments& other) { join(other.count, other.mean, other.deviation); }
};

template <class T>
using MomentsInLanes = Moments<Wide<compute_t<T>>>;

constexpr int columns_at_a_time = 4;  // vectors; each sum waits for its own last term, so several go side by side

// What n rows of `across` vectors, so far `apart` in each row, add to the moments of their lanes.
template <class T, int across>
SPLASH_INLINE void look(const T* x, int64_t n, int64_t stride, int64_t apart, MomentsInLanes<T>* to) {
  using C = compute_t<T>;
  Vec<C> middle[across]{}, squares[across]{}, left_over[across]{};
  for (int64_t k = 0; k < n; ++k) {
    SPLASH_UNROLLED
    for (int q = 0; q < across; ++q) middle[q] += stored<T>::load(x + k * stride + q * apart);
  }
  SPLASH_UNROLLED
  for (int q = 0; q < across; ++q) middle[q] /= static_cast<C>(n);
  for (int64_t k = 0; k < n; ++k) {
    SPLASH_UNROLLED
    for (int q = 0; q < across; ++q) {
      const Vec<C> d = stored<T>::load(x + k * stride + q * apart) - middle[q];
      squares[q] += d * d;
      left_over[q] += d;  // what rounding the mean left behind
    }
  }
  const double count = static_cast<double>(n);
  for (int q = 0; q < across; ++q) {
    const Wide<C> rest = __builtin_convertvector(left_over[q], Wide<C>) / count;
    to[q].join(Wide<C>{} + count, __builtin_convertvector(middle[q], Wide<C>) + rest,
               __builtin_convertvector(squares[q], Wide<C>) - count * rest * rest);
  }
}

template <class T>
void look_at_ragged(const T* x, int filled, MomentsInLanes<T>& to) {
  Wide<compute_t<T>> there{}, values{};
  for (int lane = 0; lane < filled; ++lane) there[lane] = 1, values[lane] = as_compute(x[lane]);
  to.join(there, values, Wide<compute_t<T>>{});
}

template <class T>
void moments_of_rows(const T* x, Extent e, double* mean, double* deviation) {
  using C = compute_t<T>;
  constexpr int W = lanes<C>::count;
  parallel(e.channels, e.size() > work_worth_sharing, [&](int64_t c) {
    MomentsInLanes<T> in_lanes;
    for (int64_t o = 0; o < e.outer; ++o) {
      const T* row = x + (o * e.channels + c) * e.inner;
      along_row<C>(e.inner, sum_length, [&](int64_t i, int64_t n, int filled) {
        if (filled == W) look<T, 1>(row + i, n, W, W, &in_lanes);
        else look_at_ragged(row + i, filled, in_lanes);
      });
    }
    Moments<double> whole;
    for (int lane = 0; lane < W; ++lane) whole.join(in_lanes.count[lane], in_lanes.mean[lane], in_lanes.deviation[lane]);
    mean[c] = whole.mean, deviation[c] = whole.deviation;
  });
}

template <class T>
void moments_of_matrix(const T* x, Extent e, double* mean, double* deviation) {
  constexpr int W = lanes<compute_t<T>>::count;
  const Columns<compute_t<T>> columns(e);
  std::vector<MomentsInLanes<T>> parts(columns.row_tasks * columns.vectors);
  parallel(columns.tasks(), e.size() > work_worth_sharing, [&](int64_t task) {
    MomentsInLanes<T>* mine = parts.data() + task / columns.blocks * columns.vectors;
    columns.tiles(task, sum_length, columns_at_a_time, [&](int64_t i, int64_t v, int64_t across, int64_t n, int filled) {
      if (filled < W) return look_at_ragged(x + i, filled, mine[v]);
      if (across == columns_at_a_time) return look<T, columns_at_a_time>(x + i, n, columns.width, W, mine + v);
      for (int64_t q = 0; q < across; ++q) look<T, 1>(x + i + q * W, n, columns.width, W, mine + v + q);
    });
  });
  for (int64_t v = 0; v < columns.vectors; ++v)
    for (int64_t task = 1; task < columns.row_tasks; ++task) parts[v].join(parts[task * columns.vectors + v]);
  if (columns.fold == 1) {  // each lane has a channel of its own
    for (int64_t v = 0; v < columns.vectors; ++v)
      std::memcpy(mean + v * W, &parts[v].mean, W * sizeof(double)), std::memcpy(deviation + v * W, &parts[v].deviation, W * sizeof(double));
    return;
  }
  std::vector<Moments<double>> whole(e.channels);
  for (int64_t v = 0; v < columns.vectors; ++v)
    for (int lane = 0; lane < W; ++lane) {
      const Moments<double> part{parts[v].count[lane], parts[v].mean[lane], parts[v].deviation[lane]};
      Moments<double>& all = whole[(v * W + lane) % e.channels];
      if (all.count == 0) all = part;
      else all.join(part);
    }
  for (int64_t c = 0; c < e.channels; ++c) mean[c] = whole[c].mean, deviation[c] = whole[c].deviation;
}

}  // namespace

template <class T>
void moments(const T* x, Extent e, double* mean, double* variance) {
  if (e.inner > 1) moments_of_rows(x, e, mean, variance);
  else moments_of_matrix(x, e, mean, variance);
  const double count = static_cast<double>(e.outer * e.inner);
  for (int64_t c = 0; c < e.channels; ++c) variance[c] /= count;
}

template <class T>
void moments_of_columns(const T* x, int64_t rows, int64_t pitch, int64_t apart, int columns, double* mean, double* variance) {
  constexpr int W = lanes<compute_t<T>>::count;
  const auto look_at = [&]<int across>(int first) SPLASH_INLINE_LAMBDA {
    MomentsInLanes<T> found[across];
    for (int64_t row = 0; row < rows; row += sum_length)
      look<T, across>(x + first * apart + row * pitch, std::min(sum_length, rows - row), pitch, apart, found);
    for (int q = 0; q < across; ++q) {
      const auto variances = found[q].deviation / static_cast<double>(rows);
      std::memcpy(mean + (first + q) * W, &found[q].mean, W * sizeof(double)), std::memcpy(variance + (first + q) * W, &variances, W * sizeof(double));
    }
  };
  int first = 0;
  for (; first + columns_at_a_time <= columns; first += columns_at_a_time) look_at.template operator()<columns_at_a_time>(first);
  for (; first + 2 <= columns; first += 2) look_at.template operator()<2>(first);
  if (first < columns) look_at.template operator()<1>(first);
}

// The pointers as parameters: only of those the compiler believes that they do not overlap.
template <class C>
static void normalise(int64_t channels, const double* mean, const double* variance, double eps, const C* weight, const C* bias,
                      C* __restrict mean_kept, C* __restrict inverse_std, C* __restrict scale, C* __restrict shift) {
  for (int64_t c = 0; c < channels; ++c) {
    const double inverse = 1 / std::sqrt(variance[c] + eps), by = inverse * (weight ? weight[c] : 1);
    mean_kept[c] = static_cast<C>(mean[c]), inverse_std[c] = static_cast<C>(inverse);
    scale[c] = static_cast<C>(by);
    shift[c] = static_cast<C>((bias ? bias[c] : 0) - mean[c] * by);
  }
}
template <class C>
void normalise(int64_t channels, const ByBatch<C>& of) {
  normalise(channels, of.mean, of.variance, of.eps, of.weight, of.bias, of.mean_kept, of.inverse_std, of.scale, of.shift);
}

template <class C>
static void move_with_batch(int64_t channels, double count, const C* inverse_std, const C* scale, const double* dz, const double* dz_x,
                            C* __restrict from_x, C* __restrict constant) {
  for (int64_t c = 0; c < channels; ++c) {
    const double share = scale[c] / count, s = inverse_std[c];
    // Statistics that no number moves pass on no NaN or infinity either.
    from_x[c] = share == 0 ? 0 : static_cast<C>(-share * s * s * dz_x[c]);
    constant[c] = share == 0 ? 0 : static_cast<C>(-share * dz[c]);
  }
}
template <class C>
void move_with_batch(int64_t channels, const C* scale, const double* dz, const double* dz_x, const Moves<C>& moves) {
  move_with_batch(channels, moves.count, moves.inverse_std, scale, dz, dz_x, moves.from_x, moves.constant);
}

// Some rows at a time, which the coefficients of a channel are loaded once for: of the registers of AVX-512 a core may load no more
// than one a cycle.
template <class C>
void finish_rows(const C* x, C* dx, int64_t rows, int64_t pitch, int64_t channels, const Norm<C>& of_channels) {
  constexpr int W = lanes<C>::count;
  constexpr int64_t at_a_time = has_masks ? 4 : 1;
  const Norm<C> norm = of_channels;  // a copy: for all the compiler knows, a store may change the original
  const int64_t whole = channels / W * W;
  const auto load = [](const C* from) SPLASH_INLINE_LAMBDA { return stored<C>::load(from); };
  for (int64_t row = 0; row < rows; row += at_a_time) {
    const int64_t first = row * pitch, last = std::min(row + at_a_time, rows) * pitch;
    for (int64_t c = 0; c < whole; c += W) {
      const Vec<C> from_grad = load(norm.from_grad + c), from_x = load(norm.from_x + c), mean = load(norm.mean + c), constant = load(norm.constant + c);
      for (int64_t i = first + c; i < last; i += pitch)
        stored<C>::store(dx + i, load(dx + i) * from_grad + ((load(x + i) - mean) * from_x + constant));
    }
    for (int64_t i = first; i < last; i += pitch) {
      C* __restrict out = dx + i;
      for (int64_t c = whole; c < channels; ++c)
        out[c] = out[c] * norm.from_grad[c] + ((x[i + c] - norm.mean[c]) * norm.from_x[c] + norm.constant[c]);
    }
  }
}

template <class C>
void finish(const C* x, C* dx, Extent e, const Norm<C>& norm) {
  const int64_t parts = parts_of(e);
  parallel(parts, e.size() > work_worth_sharing, [&](int64_t part) {
    const int64_t begin = e.outer * part / parts, end = e.outer * (part + 1) / parts;
    finish_rows(x + begin * e.channels, dx + begin * e.channels, end - begin, e.channels, e.channels, norm);
  });
}

#define SPLASH_FOR(T)                                          \
  template void moments(const T*, Extent, double*, double*); \
  template void moments_of_columns(const T*, int64_t, int64_t, int64_t, int, double*, double*);
SPLASH_FOR(float)
SPLASH_FOR(double)
SPLASH_FOR(bfloat16)
SPLASH_FOR(float16)
#define SPLASH_IN(C)                                                                                                       \
  template void normalise(int64_t, const ByBatch<C>&);                                                                     \
  template void move_with_batch(int64_t, const C*, const double*, const double*, const Moves<C>&);                         \
  template void finish_rows(const C*, C*, int64_t, int64_t, int64_t, const Norm<C>&);                                     \
  template void finish(const C*, C*, Extent, const Norm<C>&);
SPLASH_IN(float)
SPLASH_IN(double)

}  // namespace splash_units
