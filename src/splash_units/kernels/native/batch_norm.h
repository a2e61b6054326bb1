// Batch norm's own part, between native.cpp, which has the units, and batch_norm.cpp.
#pragma once

#include <cstdint>

#include "native.h"

namespace splash_units {

// Mean and (biased) variance of each channel.
template <class T>
void moments(const T* x, Extent, double* mean, double* variance);

// The same for some vectors of channels, `apart` from each other, whose rows follow at a pitch.
template <class T>
void moments_of_columns(const T* x, int64_t rows, int64_t pitch, int64_t apart, int columns, double* mean, double* variance);

// The batch's own statistics moved with x: dx = w/std (dz - mean(dz) - x̂ mean(dz x̂)).
template <class C>
void move_with_batch(int64_t channels, const C* scale, const double* dz, const double* dz_x, const Moves<C>&);

// dx where there is dz.
template <class C>
void finish(const C* x, C* dx, Extent, const Norm<C>&);

// The same for so many channels of some rows, which begin at a pitch.
template <class C>
void finish_rows(const C* x, C* dx, int64_t rows, int64_t pitch, int64_t channels, const Norm<C>&);

}  // namespace splash_units
