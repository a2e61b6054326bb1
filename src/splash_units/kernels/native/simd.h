// Vectors of the widest registers the compiler was told to use, in GCC's vector extension: the same
// source is AVX-512, AVX2 or portable code. Intrinsics only where the extension has no word for it.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "native.h"

namespace splash_units {

#if defined(__AVX512F__)
constexpr int register_bytes = 64;
#elif defined(__AVX2__)
constexpr int register_bytes = 32;
#else
constexpr int register_bytes = 16;
#endif

template <class C> struct lanes {
  static constexpr int count = register_bytes / sizeof(C);
};
template <class C> struct int_of { using type = int32_t; };
template <> struct int_of<double> { using type = int64_t; };

template <class C> struct vector_of {
  typedef C type __attribute__((vector_size(register_bytes)));
  typedef typename int_of<C>::type ints __attribute__((vector_size(register_bytes)));
  typedef double wide __attribute__((vector_size(lanes<C>::count * sizeof(double))));
};
template <class C> using Vec = typename vector_of<C>::type;
template <class C> using Ints = typename vector_of<C>::ints;
template <class C> using Wide = typename vector_of<C>::wide;  // the same lanes in double

#define SPLASH_INLINE inline __attribute__((always_inline))
#define SPLASH_INLINE_LAMBDA __attribute__((always_inline))
#define SPLASH_UNROLLED _Pragma("GCC unroll 8")  // a loop over hinges, or their sums would go through memory
#define SPLASH_ONE_COPY __attribute__((noinline))  // called from several loops; inlined, it takes long to compile

template <class C> SPLASH_INLINE Vec<C> all(C value) { return value - Vec<C>{}; }
template <class C> SPLASH_INLINE Ints<C> bits(Vec<C> v) { return (Ints<C>)v; }

template <class C> SPLASH_INLINE Vec<C> magnitude(Vec<C> v) {
  return (Vec<C>)(bits<C>(v) & std::numeric_limits<typename int_of<C>::type>::max());
}

// max(v, 0), the smaller and the larger of two (the second, if it is NaN), and `negative` where v has its sign bit set, else `positive`. For
// float in AVX2 these are one instruction each, which the compiler does not find by itself.
template <class C> SPLASH_INLINE Vec<C> above_zero(Vec<C> v) { return v > 0 ? v : Vec<C>{}; }
template <class C> SPLASH_INLINE Vec<C> smaller(Vec<C> a, Vec<C> b) { return a < b ? a : b; }
template <class C> SPLASH_INLINE Vec<C> larger(Vec<C> a, Vec<C> b) { return a > b ? a : b; }
template <class C> SPLASH_INLINE Vec<C> by_sign(Vec<C> v, Vec<C> negative, Vec<C> positive) {
  return bits<C>(v) < 0 ? negative : positive;
}
template <class C> SPLASH_INLINE Ints<C> lesser(Ints<C> a, Ints<C> b) { return a < b ? a : b; }
template <class C> SPLASH_INLINE Ints<C> greater(Ints<C> a, Ints<C> b) { return a > b ? a : b; }
// Whether u lies above `least`, both >= 0. Whole numbers of the same bits compare alike, and cheaper.
template <class C> SPLASH_INLINE Ints<C> exceeds(Vec<C> u, Vec<C> least) { return bits<C>(u) > bits<C>(least); }
template <class C> SPLASH_INLINE bool any(Ints<C> flags) {  // of lanes that are all ones or all zeros
#if defined(__AVX2__) && !defined(__AVX512F__)
  return _mm256_movemask_epi8((__m256i)flags) != 0;
#else
  typename int_of<C>::type found = 0;
  for (int i = 0; i < lanes<C>::count; ++i) found |= flags[i];
  return found != 0;
#endif
}
#if defined(__AVX2__) && !defined(__AVX512F__)
template <> SPLASH_INLINE Vec<float> above_zero<float>(Vec<float> v) {
  return (Vec<float>)_mm256_max_ps((__m256)v, _mm256_setzero_ps());
}
template <> SPLASH_INLINE Vec<float> smaller<float>(Vec<float> a, Vec<float> b) {
  return (Vec<float>)_mm256_min_ps((__m256)a, (__m256)b);
}
template <> SPLASH_INLINE Vec<float> larger<float>(Vec<float> a, Vec<float> b) {
  return (Vec<float>)_mm256_max_ps((__m256)a, (__m256)b);
}
template <> SPLASH_INLINE Vec<float> by_sign<float>(Vec<float> v, Vec<float> negative, Vec<float> positive) {
  return (Vec<float>)_mm256_blendv_ps((__m256)positive, (__m256)negative, (__m256)v);
}
#endif

// --- memory: W elements of the stored type as compute lanes and back -------------------------------

template <class T> struct stored {
  using C = T;
  static SPLASH_INLINE Vec<C> load(const T* p) { Vec<C> v; std::memcpy(&v, p, sizeof v); return v; }
  static SPLASH_INLINE void store(T* p, Vec<C> v) { std::memcpy(p, &v, sizeof v); }
};

typedef uint16_t Halves __attribute__((vector_size(register_bytes / 2)));

template <> struct stored<bfloat16> {
  static SPLASH_INLINE Vec<float> load(const bfloat16* p) {
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return (Vec<float>)_mm256_slli_epi32(wide, 16);
#else
    Halves h;
    std::memcpy(&h, p, sizeof h);
    return (Vec<float>)(__builtin_convertvector(h, Ints<float>) << 16);
#endif
  }
  static SPLASH_INLINE void store(bfloat16* p, Vec<float> v) {  // round to nearest even; NaN stays NaN
    const Ints<float> whole = (v == v) ? rounded(v) : Ints<float>{} + 0x7fc00000;
#if defined(__AVX2__) && !defined(__AVX512F__)
    const __m256i upper = _mm256_srli_epi32((__m256i)whole, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0b1000);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_castsi256_si128(packed));
#else
    Halves h = __builtin_convertvector((whole >> 16) & 0xffff, Halves);
    std::memcpy(p, &h, sizeof h);
#endif
  }

  // Neighbours as two vectors, those in even places and those in odd ones: nothing has to cross lanes.
  static SPLASH_INLINE void load_two(const bfloat16* p, Vec<float>& even, Vec<float>& odd) {
    Ints<float> both;
    std::memcpy(&both, p, sizeof both);
    even = (Vec<float>)(both << 16), odd = (Vec<float>)(both & upper_half);
  }
  static SPLASH_INLINE void store_two(bfloat16* p, Vec<float> even, Vec<float> odd) {  // a NaN must be numeric_limits' own
    typedef uint32_t Words __attribute__((vector_size(register_bytes)));
    const Words both = ((Words)rounded(even) >> 16) | (Words)(rounded(odd) & upper_half);
    std::memcpy(p, &both, sizeof both);
  }

 private:
  static constexpr int32_t upper_half = static_cast<int32_t>(0xffff0000);
  static SPLASH_INLINE Ints<float> rounded(Vec<float> v) {
    const Ints<float> b = bits<float>(v);
    return b + 0x8000 + ((b & 0x10000) == 0);  // true is -1; a comparison, since few of a core's units shift
  }
};

SPLASH_INLINE float widen(float16 h) {
#if defined(__F16C__)
  return _cvtsh_ss(h.bits);
#else
  // Shift the magnitude into place and let a multiplication mend the exponent, denormals included.
  uint32_t sign = static_cast<uint32_t>(h.bits & 0x8000) << 16, rest = h.bits & 0x7fff, out;
  if (rest >= 0x7c00) {
    out = sign | 0x7f800000u | (rest & 0x3ff) << 13;
  } else {
    float scaled;
    uint32_t shifted = rest << 13;
    std::memcpy(&scaled, &shifted, 4);
    scaled *= 5.192296858534828e33f;  // 2^112
    std::memcpy(&out, &scaled, 4);
    out |= sign;
  }
  float value;
  std::memcpy(&value, &out, 4);
  return value;
#endif
}

SPLASH_INLINE float16 narrow(float value) {
#if defined(__F16C__)
  return {static_cast<uint16_t>(_cvtss_sh(value, 0))};
#else
  uint32_t b;
  std::memcpy(&b, &value, 4);
  uint16_t sign = static_cast<uint16_t>(b >> 16 & 0x8000);
  b &= 0x7fffffffu;
  if (b > 0x7f800000u) return {static_cast<uint16_t>(sign | 0x7e00)};       // NaN
  if (b >= 0x477ff000u) return {static_cast<uint16_t>(sign | 0x7c00)};      // rounds to infinity
  if (b < 0x38800000u) {                                                    // denormal or zero
    float small;
    std::memcpy(&small, &b, 4);
    small += 0.5f;  // aligns the last place of the half with that of the float; the addition rounds
    uint32_t aligned;
    std::memcpy(&aligned, &small, 4);
    return {static_cast<uint16_t>(sign | (aligned - 0x3f000000u))};
  }
  uint32_t rounded = b + 0xfff + (b >> 13 & 1) - 0x38000000u;
  return {static_cast<uint16_t>(sign | rounded >> 13)};
#endif
}

template <> struct stored<float16> {
  static SPLASH_INLINE Vec<float> load(const float16* p) {
#if defined(__AVX512F__)
    return (Vec<float>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(__AVX2__) && defined(__F16C__)
    return (Vec<float>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    Vec<float> v;
    for (int i = 0; i < lanes<float>::count; ++i) v[i] = widen(p[i]);
    return v;
#endif
  }
  static SPLASH_INLINE void store(float16* p, Vec<float> v) {
#if defined(__AVX512F__)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph((__m512)v, 0));
#elif defined(__AVX2__) && defined(__F16C__)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm256_cvtps_ph((__m256)v, 0));
#else
    for (int i = 0; i < lanes<float>::count; ++i) p[i] = narrow(v[i]);
#endif
  }
};

// `count` vectors, `stride` apart. in_twos: of neighbours, whose order within two vectors does not matter.
template <class T, bool in_twos, int count>
SPLASH_INLINE void load_vectors(const T* p, int64_t stride, Vec<compute_t<T>>* v) {
  SPLASH_UNROLLED
  for (int q = 0; q < count; ++q) {
    if constexpr (!in_twos || count % 2) v[q] = stored<T>::load(p + q * stride);
    else if (q % 2 == 0) stored<T>::load_two(p + q * stride, v[q], v[q + 1]);
  }
}
template <class T, bool in_twos, int count>
SPLASH_INLINE void store_vectors(T* p, int64_t stride, const Vec<compute_t<T>>* v) {
  SPLASH_UNROLLED
  for (int q = 0; q < count; ++q) {
    if constexpr (!in_twos || count % 2) stored<T>::store(p + q * stride, v[q]);
    else if (q % 2 == 0) stored<T>::store_two(p + q * stride, v[q], v[q + 1]);
  }
}

// One element, for the rare places that go one by one.
SPLASH_INLINE float as_compute(float v) { return v; }
SPLASH_INLINE double as_compute(double v) { return v; }
SPLASH_INLINE float as_compute(bfloat16 v) {
  uint32_t b = static_cast<uint32_t>(v.bits) << 16;
  float f;
  std::memcpy(&f, &b, 4);
  return f;
}
SPLASH_INLINE float as_compute(float16 v) { return widen(v); }

SPLASH_INLINE void put(float* p, float v) { *p = v; }
SPLASH_INLINE void put(double* p, double v) { *p = v; }
SPLASH_INLINE void put(bfloat16* p, float v) {
  uint32_t b;
  std::memcpy(&b, &v, 4);
  p->bits = static_cast<uint16_t>(v == v ? (b + 0x7fff + (b >> 16 & 1)) >> 16 : 0x7fc0);
}
SPLASH_INLINE void put(float16* p, float v) { *p = narrow(v); }

// --- lookup in a register --------------------------------------------------------------------------

// Smallest whole number not below v, for small v >= 0.
SPLASH_INLINE Ints<float> ceiling(Vec<float> v) {
#if defined(__AVX512F__)
  return (Ints<float>)_mm512_cvt_roundps_epi32((__m512)v, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
#elif defined(__AVX2__)
  return (Ints<float>)_mm256_cvtps_epi32(_mm256_ceil_ps((__m256)v));
#else
  Ints<float> whole = __builtin_convertvector(v, Ints<float>);
  return whole - (__builtin_convertvector(whole, Vec<float>) < v);
#endif
}

// A register can be indexed by another from AVX2 on; elsewhere hinges are compared one by one.
// lookup: any of its floats. lookup4: one of four, which stand in every 128-bit piece; that is cheaper.
#if defined(__AVX512F__)
constexpr bool has_lookup = true;
SPLASH_INLINE Vec<float> floor_of(Vec<float> v) { return (Vec<float>)_mm512_roundscale_ps((__m512)v, _MM_FROUND_TO_NEG_INF); }
SPLASH_INLINE Vec<float> nearest(Vec<float> v) { return (Vec<float>)_mm512_roundscale_ps((__m512)v, _MM_FROUND_TO_NEAREST_INT); }
SPLASH_INLINE Ints<float> to_whole(Vec<float> v) { return (Ints<float>)_mm512_cvtps_epi32((__m512)v); }
SPLASH_INLINE Vec<float> lookup(Vec<float> table, Ints<float> index) {
  return (Vec<float>)_mm512_permutexvar_ps((__m512i)index, (__m512)table);
}
SPLASH_INLINE Vec<float> lookup4(Vec<float> table, Ints<float> index) {
  return (Vec<float>)_mm512_permutevar_ps((__m512)table, (__m512i)index);
}
#elif defined(__AVX2__)
constexpr bool has_lookup = true;
SPLASH_INLINE Vec<float> floor_of(Vec<float> v) { return (Vec<float>)_mm256_floor_ps((__m256)v); }
SPLASH_INLINE Vec<float> nearest(Vec<float> v) { return (Vec<float>)_mm256_round_ps((__m256)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
SPLASH_INLINE Ints<float> to_whole(Vec<float> v) { return (Ints<float>)_mm256_cvtps_epi32((__m256)v); }
SPLASH_INLINE Vec<float> lookup(Vec<float> table, Ints<float> index) {
  return (Vec<float>)_mm256_permutevar8x32_ps((__m256)table, (__m256i)index);
}
SPLASH_INLINE Vec<float> lookup4(Vec<float> table, Ints<float> index) {
  return (Vec<float>)_mm256_permutevar_ps((__m256)table, (__m256i)index);
}
#else
constexpr bool has_lookup = false;
SPLASH_INLINE Vec<float> floor_of(Vec<float> v) { return v; }
SPLASH_INLINE Vec<float> nearest(Vec<float> v) { return v; }
SPLASH_INLINE Ints<float> to_whole(Vec<float> v) { return bits<float>(v); }
SPLASH_INLINE Vec<float> lookup(Vec<float> table, Ints<float>) { return table; }
SPLASH_INLINE Vec<float> lookup4(Vec<float> table, Ints<float>) { return table; }
#endif

}  // namespace splash_units
