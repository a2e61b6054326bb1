// Vectors of the widest registers the compiler was told to use, in GCC's vector extension: the same
// source is AVX-512, AVX2 or portable code. Intrinsics only where the extension has no word for it.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "native.h"

namespace splash_units {

// Whose intrinsics serve. Where there are none, plain C++ does.
#if defined(SPLASH_AVX512_EMULATED)  // for tests: its registers, on machines that have none so wide
constexpr int register_bytes = 64;
#elif defined(__AVX512F__)
constexpr int register_bytes = 64;
#define SPLASH_AVX512
#define SPLASH_INTRINSIC(operation) _mm512_##operation
typedef __m512 Floats;
typedef __m512i Words;
#elif defined(__AVX2__)
constexpr int register_bytes = 32;
#define SPLASH_AVX2
#define SPLASH_INTRINSIC(operation) _mm256_##operation
typedef __m256 Floats;
typedef __m256i Words;
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

#if defined(SPLASH_AVX512_EMULATED)  // what is one instruction there, is dozens: calls are quicker to compile
#define SPLASH_INLINE inline
#define SPLASH_INLINE_LAMBDA
#define SPLASH_UNROLLED
#else
#define SPLASH_INLINE inline __attribute__((always_inline))
#define SPLASH_INLINE_LAMBDA __attribute__((always_inline))
#define SPLASH_UNROLLED _Pragma("GCC unroll 8")  // a loop over hinges, or their sums would go through memory
#endif
#define SPLASH_ONE_COPY __attribute__((noinline))  // called from several loops; inlined, it takes long to compile

template <class C> SPLASH_INLINE Vec<C> all(C value) { return value - Vec<C>{}; }
template <class C> SPLASH_INLINE Ints<C> bits(Vec<C> v) { return (Ints<C>)v; }

template <class C> SPLASH_INLINE Vec<C> magnitude(Vec<C> v) {
  return (Vec<C>)(bits<C>(v) & std::numeric_limits<typename int_of<C>::type>::max());
}

// max(v, 0), the smaller and the larger of two (the second, if either is NaN), and `negative` where v has its sign bit
// set, else `positive`. For float these are one instruction each (by_sign in AVX2), which the compiler does not find by
// itself.
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
// j, and one less where it does: a true lane is -1, but AVX-512 would first have to make it from a mask.
template <class C> SPLASH_INLINE Ints<C> count_down(Ints<C> j, Vec<C> u, Vec<C> least) {
  if constexpr (register_bytes < 64) return j + exceeds<C>(u, least);
  else return exceeds<C>(u, least) ? j - 1 : j;
}
template <class C> SPLASH_INLINE bool any(Ints<C> flags) {  // of lanes that are all ones or all zeros
#if defined(SPLASH_AVX512)
  return _mm512_test_epi32_mask((Words)flags, (Words)flags) != 0;
#elif defined(SPLASH_AVX2)
  return _mm256_movemask_epi8((Words)flags) != 0;
#else
  typename int_of<C>::type found = 0;
  for (int i = 0; i < lanes<C>::count; ++i) found |= flags[i];
  return found != 0;
#endif
}
#if defined(SPLASH_INTRINSIC)
template <> SPLASH_INLINE Vec<float> above_zero<float>(Vec<float> v) {
  return (Vec<float>)SPLASH_INTRINSIC(max_ps)((Floats)v, SPLASH_INTRINSIC(setzero_ps)());
}
template <> SPLASH_INLINE Vec<float> smaller<float>(Vec<float> a, Vec<float> b) {
  return (Vec<float>)SPLASH_INTRINSIC(min_ps)((Floats)a, (Floats)b);
}
template <> SPLASH_INLINE Vec<float> larger<float>(Vec<float> a, Vec<float> b) {
  return (Vec<float>)SPLASH_INTRINSIC(max_ps)((Floats)a, (Floats)b);
}
#endif
#if defined(SPLASH_AVX2)
template <> SPLASH_INLINE Vec<float> by_sign<float>(Vec<float> v, Vec<float> negative, Vec<float> positive) {
  return (Vec<float>)_mm256_blendv_ps((__m256)positive, (__m256)negative, (__m256)v);
}
#endif

// above_zero (but for a NaN, which stays if its sign bit is not set) and smaller (of what is >= 0) by whole numbers of the
// same bits: in AVX-512, units of a Zen 4 core that do not multiply can do these.
template <class C> SPLASH_INLINE Vec<C> ramp_of(Vec<C> v) {
  if constexpr (register_bytes < 64) return above_zero<C>(v);
  else return (Vec<C>)greater<C>(bits<C>(v), Ints<C>{});
}
SPLASH_INLINE Vec<float> at_most(Vec<float> most, Vec<float> u) { return (Vec<float>)lesser<float>(bits<float>(u), bits<float>(most)); }

// f(0) to f(count - 1), whose arguments are constants: arrays that are only used so stay in registers.
template <int count, class F> SPLASH_INLINE void unrolled(const F& f) {
  [&]<int... s>(std::integer_sequence<int, s...>) SPLASH_INLINE_LAMBDA { (f(std::integral_constant<int, s>{}), ...); }(std::make_integer_sequence<int, count>{});
}

// v, made here and not later or earlier: the compiler's own order makes steps wait for each other.
template <class V> SPLASH_INLINE V in_order(V v) {
#if defined(SPLASH_INTRINSIC)
  __asm__ volatile("" : "+v"(v));
#endif
  return v;
}

// sum + a * b, made here, and in the register where the sum is: the compiler likes to move sums about.
template <class C> SPLASH_INLINE Vec<C> plus_product(Vec<C> sum, Vec<C> a, Vec<C> b) { return in_order(sum + a * b); }
#if defined(SPLASH_AVX2)
template <> SPLASH_INLINE Vec<float> plus_product<float>(Vec<float> sum, Vec<float> a, Vec<float> b) {
  __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  return sum;
}
#endif

// --- masks: which lanes ----------------------------------------------------------------------------

// AVX-512 keeps them in registers of their own, and its instructions leave out the other lanes at no cost.
constexpr bool has_masks = register_bytes == 64;

// above: u > least. A NaN is on both sides of zero. together: lanes of a mask, moved up to the first.
#if defined(SPLASH_AVX512)
typedef __mmask16 Mask;
SPLASH_INLINE Mask above(Vec<float> u, Vec<float> least) { return _mm512_cmp_ps_mask((Floats)u, (Floats)least, _CMP_GT_OQ); }
SPLASH_INLINE Mask right_of_zero(Vec<float> v) { return _mm512_cmp_ps_mask((Floats)v, _mm512_setzero_ps(), _CMP_NLE_UQ); }
SPLASH_INLINE Mask left_of_zero(Vec<float> v) { return _mm512_cmp_ps_mask((Floats)v, _mm512_setzero_ps(), _CMP_NGE_UQ); }
SPLASH_INLINE int64_t number_of(Mask mask) { return _mm_popcnt_u32(mask); }
SPLASH_INLINE Vec<float> together(Mask mask, Vec<float> v) { return (Vec<float>)_mm512_maskz_compress_ps(mask, (Floats)v); }
SPLASH_INLINE Vec<float> difference_where(Mask mask, Vec<float> a, Vec<float> b) {  // elsewhere 0
  return (Vec<float>)_mm512_maskz_sub_ps(mask, (Floats)a, (Floats)b);
}
SPLASH_INLINE Vec<float> chosen(Mask mask, Vec<float> there, Vec<float> elsewhere) {
  return (Vec<float>)_mm512_mask_blend_ps(mask, (Floats)elsewhere, (Floats)there);
}
SPLASH_INLINE Ints<float> chosen(Mask mask, Ints<float> there, Ints<float> elsewhere) {
  return (Ints<float>)_mm512_mask_blend_epi32(mask, (Words)elsewhere, (Words)there);
}
#else
typedef Ints<float> Mask;
SPLASH_INLINE Mask above(Vec<float> u, Vec<float> least) { return u > least; }
SPLASH_INLINE Mask right_of_zero(Vec<float> v) { return ~(v <= 0); }
SPLASH_INLINE Mask left_of_zero(Vec<float> v) { return ~(v >= 0); }
SPLASH_INLINE int64_t number_of(Mask mask) {
  int64_t number = 0;
  for (int lane = 0; lane < lanes<float>::count; ++lane) number -= mask[lane];
  return number;
}
SPLASH_INLINE Vec<float> together(Mask mask, Vec<float> v) {
  Vec<float> moved{};
  for (int lane = 0, to = 0; lane < lanes<float>::count; ++lane)
    if (mask[lane]) moved[to++] = v[lane];
  return moved;
}
SPLASH_INLINE Vec<float> difference_where(Mask mask, Vec<float> a, Vec<float> b) { return mask ? a - b : Vec<float>{}; }
SPLASH_INLINE Vec<float> chosen(Mask mask, Vec<float> there, Vec<float> elsewhere) { return mask ? there : elsewhere; }
SPLASH_INLINE Ints<float> chosen(Mask mask, Ints<float> there, Ints<float> elsewhere) { return mask ? there : elsewhere; }
#endif

// --- memory: W elements of the stored type as compute lanes and back -------------------------------

template <class T> struct stored {
  using C = T;
  static SPLASH_INLINE Vec<C> load(const T* p) { Vec<C> v; std::memcpy(&v, p, sizeof v); return v; }
  static SPLASH_INLINE void store(T* p, Vec<C> v) { std::memcpy(p, &v, sizeof v); }
};

template <> struct stored<widened> {
  typedef float Floats __attribute__((vector_size(register_bytes / 2)));
  static SPLASH_INLINE Vec<double> load(const widened* p) {
    Floats v;
    std::memcpy(&v, p, sizeof v);
    return __builtin_convertvector(v, Vec<double>);
  }
};

typedef uint16_t Halves __attribute__((vector_size(register_bytes / 2)));

template <> struct stored<bfloat16> {
  static SPLASH_INLINE Vec<float> load(const bfloat16* p) {
#if defined(SPLASH_AVX512)
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    return (Vec<float>)_mm512_slli_epi32(wide, 16);
#elif defined(SPLASH_AVX2)
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
#if defined(SPLASH_AVX512)
    const __m256i packed = _mm512_cvtepi32_epi16(_mm512_srli_epi32((__m512i)whole, 16));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), packed);
#elif defined(SPLASH_AVX2)
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
    part(both, even, odd);
  }
  static SPLASH_INLINE void part(Ints<float> both, Vec<float>& even, Vec<float>& odd) {
    even = (Vec<float>)(both << 16), odd = (Vec<float>)(both & upper_half);
  }
  static SPLASH_INLINE void store_two(bfloat16* p, Vec<float> even, Vec<float> odd) {  // a NaN must be numeric_limits' own
    typedef uint32_t Words __attribute__((vector_size(register_bytes)));
    const Ints<float> both = joined((Ints<float>)((Words)rounded(even) >> 16), rounded(odd));
    std::memcpy(p, &both, sizeof both);
  }

 private:
  static constexpr int32_t upper_half = static_cast<int32_t>(0xffff0000);
  static SPLASH_INLINE Ints<float> rounded(Vec<float> v) {
    const Ints<float> b = bits<float>(v);
#if defined(SPLASH_AVX512)  // where a comparison gives a mask, it takes a unit that multiplies
    const Words odd = _mm512_srli_epi32((Words)b, 16);
    constexpr int not_and_or = 0x15;  // ~(odd & 1 | 0x7ffe)
    return b - (Ints<float>)_mm512_ternarylogic_epi32(odd, _mm512_set1_epi32(1), _mm512_set1_epi32(0x7ffe), not_and_or);
#else
    return b + 0x8000 + ((b & 0x10000) == 0);  // true is -1; a comparison, since few of a core's units shift
#endif
  }
  // The lower half of each word from one, the upper from another; of the first, it must be zero.
  static SPLASH_INLINE Ints<float> joined(Ints<float> lower, Ints<float> upper) {
#if defined(SPLASH_AVX2)
    return (Ints<float>)_mm256_blend_epi16((__m256i)lower, (__m256i)upper, 0b10101010);
#else
    return lower | (upper & upper_half);
#endif
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
#if defined(SPLASH_AVX512)
    return (Vec<float>)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
#elif defined(SPLASH_AVX2)
    return (Vec<float>)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
#else
    Vec<float> v;
    for (int i = 0; i < lanes<float>::count; ++i) v[i] = widen(p[i]);
    return v;
#endif
  }
  static SPLASH_INLINE void store(float16* p, Vec<float> v) {
#if defined(SPLASH_AVX512)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtps_ph((Floats)v, 0));
#elif defined(SPLASH_AVX2)
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

// A register can be indexed by another from AVX2 on; elsewhere hinges are compared one by one.
constexpr bool has_lookup = register_bytes > 16;

// ceiling: for small v >= 0. to_whole: the nearest; where there is none, the least of all whole numbers.
// lookup: any of a register's floats, or of two registers'. lookup4: one of four, which stand in every 128-bit piece; that is cheaper.
#if defined(SPLASH_AVX512)
SPLASH_INLINE Vec<float> floor_of(Vec<float> v) { return (Vec<float>)_mm512_roundscale_ps((Floats)v, _MM_FROUND_TO_NEG_INF); }
SPLASH_INLINE Vec<float> nearest(Vec<float> v) { return (Vec<float>)_mm512_roundscale_ps((Floats)v, _MM_FROUND_TO_NEAREST_INT); }
SPLASH_INLINE Ints<float> ceiling(Vec<float> v) {
  return (Ints<float>)_mm512_cvt_roundps_epi32((Floats)v, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC);
}
SPLASH_INLINE Vec<float> lookup(Vec<float> table, Ints<float> index) {
  return (Vec<float>)_mm512_permutexvar_ps((Words)index, (Floats)table);
}
#elif defined(SPLASH_AVX2)
SPLASH_INLINE Vec<float> floor_of(Vec<float> v) { return (Vec<float>)_mm256_floor_ps((Floats)v); }
SPLASH_INLINE Vec<float> nearest(Vec<float> v) { return (Vec<float>)_mm256_round_ps((Floats)v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
SPLASH_INLINE Ints<float> ceiling(Vec<float> v) { return (Ints<float>)_mm256_cvtps_epi32(_mm256_ceil_ps((Floats)v)); }
SPLASH_INLINE Vec<float> lookup(Vec<float> table, Ints<float> index) {
  return (Vec<float>)_mm256_permutevar8x32_ps((Floats)table, (Words)index);
}
#endif
#if defined(SPLASH_INTRINSIC)
SPLASH_INLINE Ints<float> to_whole(Vec<float> v) { return (Ints<float>)SPLASH_INTRINSIC(cvtps_epi32)((Floats)v); }
SPLASH_INLINE Vec<float> lookup4(Vec<float> table, Ints<float> index) {
  return (Vec<float>)SPLASH_INTRINSIC(permutevar_ps)((Floats)table, (Words)index);
}
#else
template <class V, class F> SPLASH_INLINE V lane_by_lane(const F& value) {
  V v;
  for (int lane = 0; lane < lanes<float>::count; ++lane) v[lane] = value(lane);
  return v;
}
SPLASH_INLINE Vec<float> floor_of(Vec<float> v) {
  return lane_by_lane<Vec<float>>([&](int lane) { return std::floor(v[lane]); });
}
SPLASH_INLINE Vec<float> nearest(Vec<float> v) {
  return lane_by_lane<Vec<float>>([&](int lane) { return std::nearbyint(v[lane]); });
}
SPLASH_INLINE Ints<float> to_whole(Vec<float> v) {
  return lane_by_lane<Ints<float>>([&](int lane) {
    return std::fabs(v[lane]) < 0x1p31f ? static_cast<int32_t>(std::nearbyint(v[lane])) : std::numeric_limits<int32_t>::min();
  });
}
SPLASH_INLINE Ints<float> ceiling(Vec<float> v) {
  return lane_by_lane<Ints<float>>([&](int lane) { return static_cast<int32_t>(std::ceil(v[lane])); });
}
SPLASH_INLINE Vec<float> lookup(Vec<float> table, Ints<float> index) {
  return lane_by_lane<Vec<float>>([&](int lane) { return table[index[lane] & (lanes<float>::count - 1)]; });
}
SPLASH_INLINE Vec<float> lookup4(Vec<float> table, Ints<float> index) {
  return lane_by_lane<Vec<float>>([&](int lane) { return table[lane / 4 * 4 + (index[lane] & 3)]; });
}
#endif

// The one that is nearer to zero, on v's side.
SPLASH_INLINE Vec<float> no_farther(Vec<float> v, Vec<float> limit) {
#if defined(SPLASH_AVX512)
  return (Vec<float>)_mm512_range_ps((Floats)v, (Floats)limit, 0b0010);
#else
  return smaller<float>(limit, larger<float>(-limit, v));
#endif
}

// The one that is farther from zero, as seen from there; the limit for NaN.
SPLASH_INLINE Vec<float> no_nearer(Vec<float> v, Vec<float> limit) {
#if defined(SPLASH_AVX512)
  return (Vec<float>)_mm512_range_ps((Floats)v, (Floats)limit, 0b1011);
#else
  return larger<float>(magnitude<float>(v), limit);
#endif
}
// a * b + c, rounded once, whatever the compiler makes of others.
SPLASH_INLINE Vec<float> product_and(Vec<float> a, Vec<float> b, Vec<float> c) {
#if defined(SPLASH_AVX512)
  return (Vec<float>)_mm512_fmadd_ps((Floats)a, (Floats)b, (Floats)c);
#else
  Vec<float> v;
  for (int lane = 0; lane < lanes<float>::count; ++lane) v[lane] = std::fma(a[lane], b[lane], c[lane]);
  return v;
#endif
}
// a - b, and -0.0 if they are the same.
SPLASH_INLINE Vec<float> difference_down(Vec<float> a, Vec<float> b) {
#if defined(SPLASH_AVX512)
  return (Vec<float>)_mm512_sub_round_ps((Floats)a, (Floats)b, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
#else
  return a == b ? all<float>(-0.f) : a - b;
#endif
}

constexpr float whole_in_low_bits = 12582912;  // 3 * 2^22: its last place counts ones

// An instruction of AVX-512 says for itself how it rounds: floor and ceiling of the product, not too far from zero.
constexpr bool rounds_down = register_bytes == 64;
#if defined(SPLASH_AVX512)
template <int rounding> SPLASH_INLINE Ints<float> product_in_low_bits(Vec<float> a, Vec<float> b) {
  return (Ints<float>)_mm512_fmadd_round_ps((Floats)a, (Floats)b, _mm512_set1_ps(whole_in_low_bits), rounding | _MM_FROUND_NO_EXC);
}
SPLASH_INLINE Ints<float> floor_in_low_bits(Vec<float> a, Vec<float> b) { return product_in_low_bits<_MM_FROUND_TO_NEG_INF>(a, b); }
SPLASH_INLINE Ints<float> ceiling_in_low_bits(Vec<float> a, Vec<float> b) { return product_in_low_bits<_MM_FROUND_TO_POS_INF>(a, b); }
#elif defined(SPLASH_AVX2)
// Nobody takes these, but what is written for AVX-512 must compile; of the rounded product.
SPLASH_INLINE Ints<float> floor_in_low_bits(Vec<float> a, Vec<float> b) { return bits<float>(floor_of(a * b) + whole_in_low_bits); }
SPLASH_INLINE Ints<float> ceiling_in_low_bits(Vec<float> a, Vec<float> b) { return bits<float>(whole_in_low_bits - floor_of(-(a * b))); }
#else
template <class F> SPLASH_INLINE Ints<float> product_in_low_bits(Vec<float> a, Vec<float> b, const F& rounded) {
  const auto whole = [&](int lane) { return static_cast<float>(rounded(double(a[lane]) * b[lane])); };
  return bits<float>(lane_by_lane<Vec<float>>(whole) + whole_in_low_bits);
}
SPLASH_INLINE Ints<float> floor_in_low_bits(Vec<float> a, Vec<float> b) {
  return product_in_low_bits(a, b, [](double v) { return std::floor(v); });
}
SPLASH_INLINE Ints<float> ceiling_in_low_bits(Vec<float> a, Vec<float> b) {
  return product_in_low_bits(a, b, [](double v) { return std::ceil(v); });
}
#endif
SPLASH_INLINE Vec<float> lookup(Vec<float> first, Vec<float> second, Ints<float> index) {
#if defined(SPLASH_AVX512)
  return (Vec<float>)_mm512_permutex2var_ps((Floats)first, (Words)index, (Floats)second);
#else
  return (index & lanes<float>::count) != 0 ? lookup(second, index) : lookup(first, index);
#endif
}

}  // namespace splash_units
