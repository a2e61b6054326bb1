// From one order of memory to another: a gradient that arrives as (N, C, H, W) where x lies as (N, H, W, C), or the
// other way round.
//
// Both are matrices, one a sample, that must be turned around. torch's own copy does so number by number, which takes
// six to eleven times as long as a plain copy.

#include <algorithm>
#include <cstring>

#include "native.h"
#include "room.h"
#include "simd.h"
#include "walk.h"

namespace splash_units {
namespace {

// Registers that every instruction set has: longer ones would have to move numbers across their halves.
constexpr int bytes_a_side = 16;

template <class T>
struct Block {
  typedef T Row __attribute__((vector_size(bytes_a_side)));
  static constexpr int side = bytes_a_side / sizeof(T);

  // The first halves of two rows, number by number in turn, or the second halves.
  template <int half>
  static SPLASH_INLINE Row in_turn(Row a, Row b) {
    return [&]<int... i>(std::integer_sequence<int, i...>) SPLASH_INLINE_LAMBDA {
#if defined(__clang__)  // which has no other, as GCC had none of this name before 12
      return __builtin_shufflevector(a, b, (half * side / 2 + i / 2 + i % 2 * side)...);
#else
      return __builtin_shuffle(a, b, Row{static_cast<T>(half * side / 2 + i / 2 + i % 2 * side)...});
#endif
    }(std::make_integer_sequence<int, side>{});
  }
  // to[c][r] = from[r][c] for `side` rows and columns. To take rows i and i + side / 2 in turn moves the first bit of a
  // number's place to the end; as often as there are bits, rows and columns have changed places.
  static SPLASH_INLINE void turn(const T* from, int64_t from_pitch, T* to, int64_t to_pitch) {
    Row rows[side], next[side];
    for (int i = 0; i < side; ++i) std::memcpy(&rows[i], from + i * from_pitch, bytes_a_side);
    SPLASH_UNROLLED
    for (int bit = 1; bit < side; bit *= 2) {
      SPLASH_UNROLLED
      for (int i = 0; i < side / 2; ++i) {
        next[2 * i] = in_turn<0>(rows[i], rows[i + side / 2]);
        next[2 * i + 1] = in_turn<1>(rows[i], rows[i + side / 2]);
      }
      std::copy_n(next, side, rows);
    }
    for (int i = 0; i < side; ++i) std::memcpy(to + i * to_pitch, &rows[i], bytes_a_side);
  }
};

// A piece of a matrix: rows and columns [first, last).
struct Range {
  int64_t first, last;
};

template <class T>
void turn_piece(const T* from, T* to, int64_t rows, int64_t columns, Range r, Range c) {
  constexpr int side = Block<T>::side;
  int64_t row = r.first;
  for (; row + side <= r.last; row += side) {
    int64_t column = c.first;
    for (; column + side <= c.last; column += side)
      Block<T>::turn(from + row * columns + column, columns, to + column * rows + row, rows);
    for (; column < c.last; ++column)
      for (int i = 0; i < side; ++i) to[column * rows + row + i] = from[(row + i) * columns + column];
  }
  for (; row < r.last; ++row)
    for (int64_t column = c.first; column < c.last; ++column) to[column * rows + row] = from[row * columns + column];
}

// Calls f for so many columns at a time as a block has.
template <class T, class F>
void by_blocks(int64_t columns, const F& f) {
  for (int64_t c = 0; c < columns; c += Block<T>::side) f(Range{c, std::min<int64_t>(c + Block<T>::side, columns)});
}

}  // namespace

template <class T>
void turn_around(const T* from, T* to, int64_t matrices, int64_t rows, int64_t columns) {
  // On the longer side, whose neighbours lie far apart in the other matrix, some lines of the cache: with one, what is
  // asked for ahead of time is mostly of no use; with more, the first cache does not hold them for all of the shorter side.
  constexpr int64_t stretch = 4 * cache_line / sizeof(T), at_a_time = 4 * stretch;
  const int64_t longer = std::max(rows, columns), strips = (longer + at_a_time - 1) / at_a_time;
  parallel(matrices * strips, matrices * rows * columns > worth_sharing, [&](int64_t task) {
    const int64_t begin = task % strips * at_a_time, end = std::min(begin + at_a_time, longer);
    const int64_t offset = task / strips * rows * columns;
    for (int64_t i = begin; i < end; i += stretch) {
      const Range part{i, std::min(i + stretch, end)};
      if (columns >= rows) turn_piece(from + offset, to + offset, rows, columns, {0, rows}, part);
      else by_blocks<T>(columns, [&](Range few) { turn_piece(from + offset, to + offset, rows, columns, part, few); });
    }
  });
}

template void turn_around(const uint16_t*, uint16_t*, int64_t, int64_t, int64_t);
template void turn_around(const uint32_t*, uint32_t*, int64_t, int64_t, int64_t);
template void turn_around(const uint64_t*, uint64_t*, int64_t, int64_t, int64_t);

}  // namespace splash_units
