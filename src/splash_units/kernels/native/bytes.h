// Tables of 32 floats, looked up by entry numbers that stand in bytes.
//
// One instruction of AVX2 looks up a whole register of bytes in a table of sixteen, as fast as any other; one that
// looks up floats in a table of eight takes twice as long, and 32 floats would need four of them. So entry numbers of
// four vectors stand in the bytes of one, each byte of a float has a table of its own, and what they give is put
// together. AVX-512 looks up 32 floats, which are two of its registers, in one instruction.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

#include "simd.h"

namespace splash_units {
namespace {

constexpr int in_bytes = 4;        // vectors whose entry numbers fit into the bytes of one
constexpr int cells_a_side = 16;   // entries -16 to 15, as many as two registers of bytes hold
constexpr int few_cells_a_side = 8;  // entries -8 to 7: one register

// What instructions do with each 128-bit piece of two registers, and in plain C++: number i of the piece they give,
// from numbers of pieces a and b.
#if defined(SPLASH_INTRINSIC)
#define SPLASH_BYTEWISE(name, operation, From, To, number)                                       \
  SPLASH_INLINE Ints<float> name(Ints<float> a, Ints<float> b) {                                 \
    return (Ints<float>)SPLASH_INTRINSIC(operation)((Words)a, (Words)b);                         \
  }
#else
template <class Number> struct Pieces {
  static constexpr int length = 16 / sizeof(Number);
  Number of[register_bytes / 16][length];
};
template <class From, class To, class F>
SPLASH_INLINE Ints<float> by_piece(Ints<float> a, Ints<float> b, const F& number) {
  Pieces<From> in_a, in_b;
  Pieces<To> out;
  std::memcpy(&in_a, &a, sizeof a), std::memcpy(&in_b, &b, sizeof b);
  for (int piece = 0; piece < register_bytes / 16; ++piece)
    for (int i = 0; i < out.length; ++i) out.of[piece][i] = number(in_a.of[piece], in_b.of[piece], i);
  std::memcpy(&a, &out, sizeof a);
  return a;
}
template <class To> SPLASH_INLINE To saturated(int v) {
  return std::clamp<int>(v, std::numeric_limits<To>::min(), std::numeric_limits<To>::max());
}
#define SPLASH_BYTEWISE(name, operation, From, To, number)                                       \
  SPLASH_INLINE Ints<float> name(Ints<float> a, Ints<float> b) {                                 \
    return by_piece<From, To>(a, b, [](const From* a, const From* b, int i) -> To { return number; }); \
  }
#endif
SPLASH_BYTEWISE(lookup_bytes, shuffle_epi8, int8_t, int8_t, b[i] < 0 ? 0 : a[b[i] & 15])
SPLASH_BYTEWISE(to_halves, packs_epi32, int32_t, int16_t, saturated<int16_t>(i < 4 ? a[i] : b[i - 4]))
SPLASH_BYTEWISE(to_bytes, packs_epi16, int16_t, int8_t, saturated<int8_t>(i < 8 ? a[i] : b[i - 8]))
SPLASH_BYTEWISE(larger_bytes, max_epi8, int8_t, int8_t, std::max(a[i], b[i]))
SPLASH_BYTEWISE(smaller_bytes, min_epi8, int8_t, int8_t, std::min(a[i], b[i]))
SPLASH_BYTEWISE(add_bytes, adds_epi8, int8_t, int8_t, saturated<int8_t>(a[i] + b[i]))
SPLASH_BYTEWISE(low_bytes, unpacklo_epi8, int8_t, int8_t, (i % 2 ? b : a)[i / 2])
SPLASH_BYTEWISE(high_bytes, unpackhi_epi8, int8_t, int8_t, (i % 2 ? b : a)[i / 2 + 8])
SPLASH_BYTEWISE(low_halves, unpacklo_epi16, int16_t, int16_t, (i % 2 ? b : a)[i / 2])
SPLASH_BYTEWISE(high_halves, unpackhi_epi16, int16_t, int16_t, (i % 2 ? b : a)[i / 2 + 4])
SPLASH_BYTEWISE(low_words, unpacklo_epi32, int32_t, int32_t, (i % 2 ? b : a)[i / 2])
SPLASH_BYTEWISE(high_words, unpackhi_epi32, int32_t, int32_t, (i % 2 ? b : a)[i / 2 + 2])
SPLASH_BYTEWISE(low_twos, unpacklo_epi64, int64_t, int64_t, (i % 2 ? b : a)[0])
SPLASH_BYTEWISE(high_twos, unpackhi_epi64, int64_t, int64_t, (i % 2 ? b : a)[1])
#undef SPLASH_BYTEWISE

SPLASH_INLINE Ints<float> negative_bytes(Ints<float> b) {  // all ones where a byte is
  typedef int8_t Bytes __attribute__((vector_size(register_bytes)));
  return (Ints<float>)((Bytes)b < 0);
}

SPLASH_INLINE Ints<float> every_byte(int value) { return Ints<float>{} + static_cast<int32_t>(0x01010101u * (value & 0xff)); }

// The numbers of four vectors as bytes; or of one, four times.
template <int count>
SPLASH_INLINE Ints<float> as_bytes(const Ints<float>* j) {
  constexpr int last = count - 1;
  return to_bytes(to_halves(j[0], j[last > 0]), to_halves(j[last > 1 ? 2 : 0], j[last]));
}
// The byte that as_bytes gives lane `lane` of vector q.
constexpr int byte_of(int q, int lane) { return lane / 4 * 16 + 4 * q + lane % 4; }

// Pairs of a and b: of lanes 0 and 1, 4 and 5, ... in the first, of lanes 2 and 3, ... in the second.
SPLASH_INLINE void interleave(Vec<float> a, Vec<float> b, Vec<float>* pairs) {
  pairs[0] = (Vec<float>)low_words(bits<float>(a), bits<float>(b)), pairs[1] = (Vec<float>)high_words(bits<float>(a), bits<float>(b));
}

#if defined(__AVX2__)
// Lanes 4 k to 4 k + 3.
template <int k> SPLASH_INLINE __m128 piece_of(Vec<float> v) {
#if defined(SPLASH_AVX512)
  return _mm512_extractf32x4_ps((Floats)v, k);
#elif defined(SPLASH_AVX2)
  return k == 0 ? _mm256_castps256_ps128((Floats)v) : _mm256_extractf128_ps((Floats)v, k);
#else
  __m128 piece;
  std::memcpy(&piece, reinterpret_cast<const char*>(&v) + k * sizeof piece, sizeof piece);
  return piece;
#endif
}

// The sum of all lanes of each of four vectors. Lanes are summed up half with half, in float, which costs no digits that sums
// of more terms a lane have left.
SPLASH_INLINE __m128 lanes_of_four(const Vec<float>* v) {
  const auto halved = [](auto low, auto high, Vec<float> a, Vec<float> b) SPLASH_INLINE_LAMBDA {
    return (Vec<float>)low(bits<float>(a), bits<float>(b)) + (Vec<float>)high(bits<float>(a), bits<float>(b));
  };
  const Vec<float> first = halved(low_words, high_words, v[0], v[1]), second = halved(low_words, high_words, v[2], v[3]);
  const Vec<float> in_pieces = halved(low_twos, high_twos, first, second);  // each piece has a share in all four
  __m128 sum = piece_of<0>(in_pieces);
  unrolled<register_bytes / 16 - 1>([&](auto k) SPLASH_INLINE_LAMBDA { sum = _mm_add_ps(sum, piece_of<k + 1>(in_pieces)); });
  return sum;
}
#endif

struct ByteTable {
  alignas(register_bytes) uint8_t right[4][register_bytes], left[4][register_bytes];

  void set(int entry, float value, bool few) {
    uint8_t parts[4];
    std::memcpy(parts, &value, 4);
    auto& side = entry < 0 && !few ? left : right;
    for (int place = few ? few_cells_a_side + entry : entry & 15; place < register_bytes; place += 16)
      for (int k = 0; k < 4; ++k) side[k][place] = parts[k];
  }
};

// Numbers of cells, held within the table. Few: its places, whose upper bits do not matter as long as the highest is 0.
template <bool few>
SPLASH_INLINE Ints<float> within_table(Ints<float> cells) {
  if constexpr (few) return larger_bytes(add_bytes(cells, every_byte(0x78)), every_byte(0x70));
  return smaller_bytes(larger_bytes(cells, every_byte(-cells_a_side)), every_byte(cells_a_side - 1));
}

// Where entries of four vectors stand in the tables; a side they are not on gives zeros.
template <bool few>
struct Places {
  const Ints<float> right, left;
  explicit SPLASH_INLINE Places(Ints<float> entries) : right(entries), left(entries ^ every_byte(0x80)) {}

  SPLASH_INLINE Ints<float> look_up(const ByteTable& t, int k) const {
    Ints<float> table;
    std::memcpy(&table, t.right[k], sizeof table);
    const Ints<float> found = in_order(lookup_bytes(table, right));
    if constexpr (few) return found;
    std::memcpy(&table, t.left[k], sizeof table);
    return in_order(found | lookup_bytes(table, left));
  }
};

// Two bytes of each float, the first two vectors' in `low`.
struct TwoBytes {
  Ints<float> low, high;
  template <bool few>
  SPLASH_INLINE TwoBytes(const ByteTable& t, const Places<few>& places, int k) {
    const Ints<float> a = places.look_up(t, k), b = places.look_up(t, k + 1);
    low = in_order(low_bytes(a, b)), high = in_order(high_bytes(a, b));
  }
};
// Entries of `count` vectors. meanwhile: steps of something else, which units of a core do that look nothing up.
template <int count, bool few, class F>
SPLASH_INLINE void look_up(const ByteTable& t, const Places<few>& places, Vec<float>* v, const F& meanwhile) {
  const TwoBytes first(t, places, 0);
  meanwhile();
  const TwoBytes last(t, places, 2);
  v[0] = (Vec<float>)low_halves(first.low, last.low);
  if constexpr (count == in_bytes) {
    v[1] = (Vec<float>)high_halves(first.low, last.low);
    v[2] = (Vec<float>)low_halves(first.high, last.high);
    v[3] = (Vec<float>)high_halves(first.high, last.high);
  }
}

// The same where a register holds sixteen floats.
struct FloatTable {
  alignas(register_bytes) float of[2 * cells_a_side];

  void set(int entry, float value, bool few) { of[few ? few_cells_a_side + entry : entry & 31] = value; }
};

// What lookup_bytes needs to give the numbers of vector q again.
struct Unpacking {
  alignas(register_bytes) int32_t places[in_bytes][lanes<float>::count];
  constexpr Unpacking() : places() {
    for (int q = 0; q < in_bytes; ++q)
      for (int lane = 0; lane < lanes<float>::count; ++lane) places[q][lane] = int32_t(0x80808000) | byte_of(q, lane) % 16;
  }
};
constexpr Unpacking unpacking;

template <int count, bool few, class F>
SPLASH_INLINE void look_up(const FloatTable& t, const Places<few>& places, Vec<float>* v, const F& meanwhile) {
  meanwhile();
  const Vec<float> first = stored<float>::load(t.of), second = stored<float>::load(t.of + lanes<float>::count);
  SPLASH_UNROLLED
  for (int q = 0; q < count; ++q) {
    Ints<float> unpack;
    std::memcpy(&unpack, unpacking.places[q], sizeof unpack);
    const Ints<float> entries = lookup_bytes(places.right, unpack);
    v[q] = in_order(few ? lookup(first, entries) : lookup(first, second, entries));
  }
}

// Such a table for vectors whose entry numbers stand in the low bits of their own lanes.
struct InTwoRegisters {
  const Vec<float> first, second;
  template <class T>
  explicit SPLASH_INLINE InTwoRegisters(const T& table) : first(stored<float>::load(table.of)), second(stored<float>::load(table.of + lanes<float>::count)) {}
  SPLASH_INLINE Vec<float> operator[](Ints<float> entry) const { return lookup(first, second, entry); }
};

using CellTable = std::conditional_t<register_bytes == 64, FloatTable, ByteTable>;

}  // namespace
}  // namespace splash_units
