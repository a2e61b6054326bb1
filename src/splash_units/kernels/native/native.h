// What the CPU kernel offers, free of torch: raw pointers to dense memory and plain numbers.
#pragma once

#include <cstdint>

namespace splash_units {

// Dense memory seen as (outer, channels, inner): element (o, c, i) lies at (o * channels + c) * inner + i.
// channels_last and (N, C) have inner = 1.
struct Extent {
  int64_t outer, channels, inner;
  int64_t size() const { return outer * channels * inner; }
};

// The slopes and hinges, in the type that is computed in. Slope s of channel c: pos[s * groups + c],
// where groups is the number of channels, or 1 when all channels share.
template <class C>
struct Unit {
  int hinges;
  int64_t groups;
  const C *at, *pos, *neg;
};

constexpr int most_hinges = 64;
constexpr int hinges_at_a_time = 4;  // where their number is not known to the compiler

// Batch norm in front of the unit, per channel. Forward: z = scale * x + shift is what the unit sees.
// Backward: dx = from_grad * dz + from_x * (x - mean) + constant, and sums are taken of dz and dz * (x - mean).
template <class C>
struct Norm {
  const C *scale, *shift;
  const C *mean = nullptr, *from_grad = nullptr, *from_x = nullptr, *constant = nullptr;
};

// Sums in double over everything that shares a slope (pos, neg: hinges * groups) or a channel.
struct Sums {
  double *pos, *neg;
  double *dz, *dz_x;  // with a Norm only
};

// float32 in memory, to be computed with in double.
struct widened { float number; };

template <class T> struct compute_type { using type = float; };
template <> struct compute_type<double> { using type = double; };
template <> struct compute_type<widened> { using type = double; };
template <class T> using compute_t = typename compute_type<T>::type;

struct bfloat16 { uint16_t bits; };
struct float16 { uint16_t bits; };

template <class T>
void forward(const T* x, T* y, Extent, const Unit<compute_t<T>>&, const Norm<compute_t<T>>*);

// Without a Norm, dx and sums are both computed. With one, either is null: the sums of a first pass are
// what dx of the second is made of. Or both are there, and dz is left in dx.
template <class T>
void backward(const T* x, const T* grad, T* dx, Extent, const Unit<compute_t<T>>&,
              const Norm<compute_t<T>>*, const Sums*);

// Batch norm by the batch's own statistics: of each channel its mean and (biased) variance, and what is kept for the backward,
// its mean and 1/std, and a Norm's scale and shift. weight and bias may be null.
template <class C>
struct ByBatch {
  double *mean, *variance;
  double eps;
  const C *weight, *bias;
  C *mean_kept, *inverse_std, *scale, *shift;

  // The same for channels from that one on.
  ByBatch from(int64_t c) const {
    return {mean + c, variance + c, eps, weight ? weight + c : nullptr, bias ? bias + c : nullptr, mean_kept + c, inverse_std + c, scale + c, shift + c};
  }
};

// From mean and variance all the rest.
template <class C>
void normalise(int64_t channels, const ByBatch<C>&);

// Statistics, then y.
template <class T>
void forward_by_batch(const T* x, T* y, Extent, const Unit<compute_t<T>>&, const ByBatch<compute_t<T>>&);

// How the statistics moved with x, where they were those of a batch of `count` numbers a channel: parts of a Norm.
template <class C>
struct Moves {
  double count;
  const C* inverse_std;
  C *from_x, *constant;
};

// Sums, then dx. The Norm needs no more than what the forward kept.
template <class T>
void backward_by_batch(const T* x, const T* grad, T* dx, Extent, const Unit<compute_t<T>>&, const Norm<compute_t<T>>&, const Moves<compute_t<T>>&,
                       const Sums&);

// to[m][c][r] = from[m][r][c], for whole numbers that are as long as what is copied.
template <class T>
void turn_around(const T* from, T* to, int64_t matrices, int64_t rows, int64_t columns);

const char* instruction_set();

}  // namespace splash_units
