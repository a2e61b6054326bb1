// The arithmetic: one strip of vectors forward, and what forward and backward share.
//
// A strip is a run of vectors at a constant stride that share their slopes lane by lane: neighbours along
// a row of one channel, the same columns of successive rows, or a line of all channels that share. Strips
// ignore what is rare: an infinity, a NaN or a -0.0 is only noticed, and then it is done again one by one.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <type_traits>

#include "native.h"
#include "parameters.h"
#include "simd.h"
#include "walk.h"

namespace splash_units {
namespace {

// Notices infinities and NaN, whose magnitudes are the largest of all bit patterns, and -0.0, whose bits are the
// least of all.
template <class C>
struct Watch {
  using I = typename int_of<C>::type;
  Ints<C> least = Ints<C>{} + std::numeric_limits<I>::max(), largest{};
  SPLASH_INLINE void see_least(Vec<C> v) { see_least(bits<C>(v)); }
  SPLASH_INLINE void see_least(Ints<C> b) { least = lesser<C>(least, b); }
  SPLASH_INLINE void see_largest(Vec<C> u) { largest = greater<C>(largest, bits<C>(u)); }
  SPLASH_INLINE bool saw_negative_zero() const { return any<C>(least == std::numeric_limits<I>::min()); }
  SPLASH_INLINE bool saw_infinity_or_nan() const { return any<C>(largest >= bits<C>(all<C>(std::numeric_limits<C>::infinity()))); }
};

// Batch norm in front: none, one for all vectors of a strip, or one for each, whose parameters follow each other.
enum class Affine { none, one, each };

template <class C, Affine affine>
struct Norms {  // a strip's own copy: for all the compiler knows, a store may change the original
  const NormLanes<C> own;
  explicit SPLASH_INLINE Norms(const Lanes<C>& p) : own{p.scale, p.shift, p.mean, p.from_grad, p.from_x, p.constant} {}
  SPLASH_INLINE const NormLanes<C>& operator[](int64_t) const { return own; }
};
template <class C>
struct Norms<C, Affine::each> {
  const NormLine<C> line;
  explicit SPLASH_INLINE Norms(const Lanes<C>& p) : line(p.line) {}
  SPLASH_INLINE NormLanes<C> operator[](int64_t i) const {
    const auto of = [&](const C* values) SPLASH_INLINE_LAMBDA { return stored<C>::load(values + i * lanes<C>::count); };
    return {of(line.scale), of(line.shift), of(line.mean), of(line.from_grad), of(line.from_x), of(line.constant)};
  }
};

template <Affine affine, class C>
SPLASH_INLINE Vec<C> normalised(Vec<C> in, const NormLanes<C>& norm) {
  return affine == Affine::none ? in : in * norm.scale + norm.shift;
}
template <Affine affine, class C>
SPLASH_INLINE C normalised(C in, const NormLanes<C>& norm, int lane) {
  return affine == Affine::none ? in : in * norm.scale[lane] + norm.shift[lane];
}

template <class C>
struct OneByOne {
  const Lanes<C>& p;
  int lane;
  int64_t vector = 0;  // which, where each has slopes of its own

  Slopes<C> side(C z) const { return (z > 0 ? p.pos : p.neg).beyond(vector); }
  C total(const Slopes<C>& a) const {
    C sum = 0;
    for (int s = 0; s < p.hinges; ++s) sum += a.at(s, lane);
    return sum;
  }
  C value(C z) const {
    if (z == 0 || std::isnan(z)) return z;
    const Slopes<C> a = side(z);
    if (std::isinf(z)) {
      C slope = total(a), flat = 0;
      for (int s = 0; s < p.hinges; ++s) flat -= a.at(s, lane) == 0 ? 0 : a.at(s, lane) * p.at[s];
      return slope == 0 ? flat : slope * std::fabs(z);
    }
    C h = 0;
    for (int s = 0; s < p.hinges; ++s) h += a.at(s, lane) * std::max(std::fabs(z) - p.at[s], C(0));
    return h;
  }
  C slope(C z) const {  // torch's convention: at a hinge the inner side counts, a NaN is on all sides
    if (std::isnan(z)) return total(side(1)) - total(side(-1));
    const Slopes<C> a = side(z);
    C sum = 0;
    for (int s = 0; s < p.hinges; ++s) sum += std::fabs(z) > p.at[s] ? a.at(s, lane) : C(0);
    return z > 0 ? sum : -sum;
  }
  C ramp(C z, int s) const {
    return std::isnan(z) ? z : std::max(std::fabs(z) - p.at[s], C(0));
  }
};

// Whether neighbours may change places within two vectors, which for bfloat16 is cheaper: without batch norm
// all lanes of a table's user are alike, and its vectors are neighbours.
template <class T, Affine affine, Finder finder>
constexpr bool goes_in_twos = std::is_same_v<T, bfloat16> && affine == Affine::none && finder != Finder::compare;

// How far a table's users are apart. Only behind a batch norm they may be no neighbours.
template <class C, Affine affine>
SPLASH_INLINE int64_t apart(int64_t stride) {
  return affine == Affine::one ? stride : lanes<C>::count;
}

// --- forward ------------------------------------------------------------------------------------------

// Parameters as a strip uses them: its own copies, since for all the compiler knows a store to y may
// change the originals. K > 0: that many hinges, known to the compiler. K = 0: counted at run time.
template <class C, int K>
struct Hinges {
  static constexpr int count = K;
  Vec<C> at[K], pos[K], neg[K];
  explicit SPLASH_INLINE Hinges(const Lanes<C>& p) {
    for (int s = 0; s < K; ++s) at[s] = all<C>(p.at[s]), pos[s] = p.pos[s], neg[s] = p.neg[s];
  }
};
template <class C>
struct Hinges<C, 0> {
  int count;
  const C* at;
  Slopes<C> pos, neg;
  explicit SPLASH_INLINE Hinges(const Lanes<C>& p) : count(p.hinges), at(p.at), pos(p.pos), neg(p.neg) {}
};

// Where in the table a vector finds itself; a strip's own copy of the registers.
template <Finder finder, int K>
struct Found;

struct Registers {  // of a table: copied one by one, since the whole of it is long
  const Vec<float> slope, intercept, slope_neg, intercept_neg;
  explicit SPLASH_INLINE Registers(const Table* t)
      : slope(t->slope), intercept(t->intercept), slope_neg(t->slope_neg), intercept_neg(t->intercept_neg) {}
};

template <int K>
struct Found<Finder::segments, K> {
  const Registers t;
  explicit SPLASH_INLINE Found(const Table* table) : t(table) {}
  SPLASH_INLINE Ints<float> index(Vec<float> u, const Hinges<float, K>& hinges) const {
    Ints<float> j{};
    for (int s = 1; s < hinges.count; ++s) j = count_down<float>(j, u, hinges.at[s] - Vec<float>{});
    return j;
  }
  static SPLASH_INLINE Vec<float> look_up(Vec<float> table, Ints<float> j) {
    return K > 4 ? lookup(table, j) : lookup4(table, j);  // of up to four hinges every 128-bit piece is the same
  }
  SPLASH_INLINE Vec<float> slope(Vec<float> z, Ints<float> j) const {
    return by_sign<float>(z, look_up(t.slope_neg, j), look_up(t.slope, j));
  }
  SPLASH_INLINE Vec<float> intercept(Vec<float> z, Ints<float> j) const {
    return by_sign<float>(z, lookup4(t.intercept_neg, j), lookup4(t.intercept, j));
  }
};

template <int K>
struct Found<Finder::grid, K> {
  const Registers t;
  const float cells_per_unit, last;
  explicit SPLASH_INLINE Found(const Table* table) : t(table), cells_per_unit(table->cells_per_unit), last(table->last) {}
  SPLASH_INLINE Ints<float> index(Vec<float> u, const Hinges<float, K>&) const {
    return ceiling(smaller<float>(u * cells_per_unit, all<float>(last)));
  }
  SPLASH_INLINE Vec<float> slope(Vec<float> z, Ints<float> j) const {
    return by_sign<float>(z, lookup(t.slope_neg, j), lookup(t.slope, j));
  }
};

template <int K>
struct Found<Finder::compare, K> {
  explicit SPLASH_INLINE Found(const Table*) {}
};

// More arithmetic than a copy has hides the hardware's own prefetching; ask some lines ahead. Not with registers as long as
// a line of the cache: there each vector would ask once for every line it reads or writes, which slows a Zen 4 core down by
// a quarter and saves others next to nothing.
constexpr bool fetches_ahead = register_bytes < cache_line;
template <class T>
SPLASH_INLINE void fetch_ahead(const T* in, const T* out) {
  if constexpr (!fetches_ahead) return;
  __builtin_prefetch(reinterpret_cast<const char*>(in) + 2048);
  __builtin_prefetch(reinterpret_cast<const char*>(out) + 2048, 1);
}

// Calls some<2>(i) for each two of n vectors, and some<1>(i) for one that is left.
template <class F>
SPLASH_INLINE void by_two(int64_t n, const F& some) {
  int64_t i = 0;
  for (; i + 1 < n; i += 2) some.template operator()<2>(i);
  if (i < n) some.template operator()<1>(i);
}

// Once for two vectors that are neighbours in a line of the cache.
template <class T>
SPLASH_INLINE bool are_in_one_line(int64_t stride) {
  constexpr int W = lanes<compute_t<T>>::count;
  return 2 * W * sizeof(T) <= cache_line && stride == W;
}
template <class T>
SPLASH_INLINE void fetch_two_ahead(const T* in, const T* out, int64_t stride) {
  fetch_ahead(in, out);
  if (!are_in_one_line<T>(stride)) fetch_ahead(in + stride, out + stride);
}

// y = value(z, i) for each vector i, z being x behind its batch norm.
template <class T, Affine affine, bool in_twos, class F>
SPLASH_INLINE void forward_by_two(const T* x, T* y, int64_t n, int64_t stride, const Norms<compute_t<T>, affine>& norms, const F& value) {
  by_two(n, [&]<int count>(int64_t i) SPLASH_INLINE_LAMBDA {
    fetch_two_ahead(x + i * stride, y + i * stride, stride);
    Vec<compute_t<T>> v[count];
    load_vectors<T, in_twos, count>(x + i * stride, stride, v);
    SPLASH_UNROLLED
    for (int q = 0; q < count; ++q) v[q] = value(normalised<affine>(v[q], norms[i + q]), i + q);
    store_vectors<T, in_twos, count>(y + i * stride, stride, v);
  });
}

// own: each vector of a line has slopes of its own, which follow each other. A strip may have several lines.
template <class T, Affine affine, bool own>
SPLASH_ONE_COPY void forward_one_by_one(const T* x, T* y, int64_t n, int64_t stride, int filled, const Lanes<compute_t<T>>& p) {
  using C = compute_t<T>;
  const Norms<C, affine> norms(p);
  for (int64_t i = 0; i < n; ++i)
    for (int lane = 0; lane < filled; ++lane) {
      const int64_t in_line = own ? i % p.line_vectors : i;
      const C z = normalised<affine>(as_compute(x[i * stride + lane]), norms[in_line], lane);
      put(y + i * stride + lane, OneByOne<C>{p, lane, own ? in_line : 0}.value(z));
    }
}

template <class T, int K, Affine affine, Finder finder>
SPLASH_ONE_COPY void forward_strip(const T* x, T* y, int64_t n, int64_t stride, int filled, const Lanes<compute_t<T>>& p) {
  using C = compute_t<T>;
  const Hinges<C, K> hinges(p);
  const Found<finder, K> found(p.table);
  const Norms<C, affine> norms(p);
  Watch<C> watch;
  const auto value = [&](Vec<C> z, int64_t) SPLASH_INLINE_LAMBDA {
    const Vec<C> u = magnitude<C>(z);
    watch.see_least(z);
    watch.see_largest(u);
    if constexpr (finder == Finder::compare) {
      Vec<C> right = hinges.pos[0] * u + Vec<C>{}, left = hinges.neg[0] * u + Vec<C>{};  // + 0: h(0) is no -0.0
      for (int s = 1; s < hinges.count; ++s) {
        const Vec<C> r = above_zero<C>(u - hinges.at[s]);
        right += hinges.pos[s] * r;
        left += hinges.neg[s] * r;
      }
      return by_sign<C>(z, left, right);
    } else {
      const Ints<float> j = found.index(u, hinges);
      return found.slope(z, j) * z + found.intercept(z, j);
    }
  };
  forward_by_two<T, affine, goes_in_twos<T, affine, finder>>(x, y, n, stride, norms, value);
  if (!watch.saw_negative_zero() && !watch.saw_infinity_or_nan()) [[likely]] return;
  forward_one_by_one<T, affine, false>(x, y, n, stride, filled, p);
}

}  // namespace
}  // namespace splash_units
