// The ways through memory: everything as one row, rows of one channel each, columns, or lines across all channels.
#pragma once

#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <atomic>

#include "native.h"
#include "room.h"
#include "simd.h"

namespace splash_units {
namespace {

constexpr int64_t sum_length = 64;  // float terms a lane sums up before they go to a double
constexpr int64_t piece = 16384;    // elements a thread sums at a time

// Where nothing is summed. A strip costs some 20 ns to begin, yet what is rare makes all of it slow, and threads are to
// end together.
constexpr int64_t longest_strip = 1024;
constexpr int64_t longest_own_strip = 2 * longest_strip;  // where lanes have slopes of their own: more is to be found before it begins

// More elements than these are shared by threads, as torch's own operators do it: two that are awake take one to three
// microseconds to meet, others much longer. Where more is done with each, as behind batch norm, backward, or where each lane
// has slopes of its own, it is worth it sooner; but not with the longest registers, which are through with so many by then.
constexpr int64_t worth_sharing = 32768;
constexpr int64_t work_worth_sharing = register_bytes < 64 ? piece : worth_sharing;

constexpr int64_t fewest_for_lines = 17;  // with fewer channels, columns meet memory in its order too, at less cost
constexpr int64_t most_for_lines = 512;   // whose own slopes the first cache holds

constexpr int64_t most_in_cache = 65536;     // elements in float32, whose gradients the second cache holds too
constexpr int64_t fewest_rows_in_cache = 32;  // or columns would be too short for strips of their own

constexpr int64_t most_parts = 16;  // of rows, each with sums of its own for every channel
int64_t parts_of(Extent e) { return std::clamp<int64_t>(e.size() / piece, 1, most_parts); }

// A worker's share of the tasks. Whoever is done with its own helps the others: cores are not alike, nor are they left
// alone, and all would wait for the slowest.
struct alignas(cache_line) Share {  // none shares a line with another's
  std::atomic<int64_t> next;
  int64_t end;

  // Calls body for some tasks at a time until none are left.
  template <class F>
  void work(int64_t at_a_time, const F& body) {
    for (int64_t i; (i = next.fetch_add(at_a_time, std::memory_order_relaxed)) < end;)
      for (const int64_t last = std::min(i + at_a_time, end); i < last; ++i) body(i);
  }
};

constexpr int64_t turns = 32;       // or more, in which a worker takes its share if it has as many tasks
constexpr int64_t most_helped = 8;  // its own share among them: to ask dozens of others takes longer than it gains

// torch's own pool, through its stable interface: a second one would fight it for the cores.
template <class F>
void parallel(int64_t tasks, bool is_worth_it, const F& body) {
  uint32_t threads = 1;
  if (is_worth_it) torch_get_num_threads(&threads);
  const int64_t workers = std::min<int64_t>(tasks, threads);
  if (workers <= 1) {
    for (int64_t i = 0; i < tasks; ++i) body(i);
    return;
  }
  const int64_t at_a_time = std::max<int64_t>(tasks / workers / turns, 1);
  Room<Share, 8> shares(workers);
  for (int64_t w = 0; w < workers; ++w) shares[w].next = tasks * w / workers, shares[w].end = tasks * (w + 1) / workers;
  const auto work = [&](int64_t worker) {
    for (int64_t w = 0; w < std::min(workers, most_helped); ++w) shares[(worker + w) % workers].work(at_a_time, body);
  };
  torch_parallel_for(0, workers, 1, [](int64_t begin, int64_t end, void* f) {
    for (int64_t i = begin; i < end; ++i) (*static_cast<decltype(work)*>(f))(i);
  }, const_cast<void*>(static_cast<const void*>(&work)));
}

// Calls strip(first element, vectors, filled lanes) over n neighbours; the ragged end comes last, alone.
template <class C, class F>
SPLASH_INLINE void along_row(int64_t n, int64_t longest, const F& strip) {
  constexpr int W = lanes<C>::count;
  const int64_t whole = n / W * W;
  for (int64_t i = 0; i < whole; i += longest * W) strip(i, std::min(longest, (whole - i) / W), W);
  if (whole < n) strip(whole, 1, static_cast<int>(n - whole));
}

// Columns of a (rows, channels) matrix. Channel counts that are no multiple of a vector get several
// rows side by side, so that columns always fill vectors: 6 channels of 8 lanes are 24 columns.
template <class C>
struct Columns {
  static constexpr int W = lanes<C>::count;
  static constexpr int64_t block_width = 128;
  int64_t channels, fold, width, rows, rest, vectors, block, blocks, rows_a_task, row_tasks;

  explicit Columns(Extent e) : channels(e.channels) {
    fold = 1;
    while (fold < W && channels * fold % W) fold *= 2;
    width = channels * fold;
    rows = e.outer / fold;
    rest = e.outer % fold * channels;
    vectors = width / W;
    // Small layers are divided by rows, as lines are: what one core has just met, another would have to fetch from it.
    const int64_t parts = parts_of(e);
    const bool by_rows = are_in_cache(e) && rows >= sum_length * parts;
    block = by_rows ? vectors : std::min<int64_t>(vectors, block_width / W);
    blocks = (vectors + block - 1) / block;
    rows_a_task = by_rows ? (rows + parts - 1) / parts : std::max(sum_length, 2 * piece / (block * W));
    row_tasks = (rows + rows_a_task - 1) / rows_a_task + (rest > 0);
  }
  int64_t tasks() const { return row_tasks * blocks; }

  // Whether the order of memory matters less than sums that stay in registers: in a cache, if a vector takes whole lines of it.
  static bool are_in_cache(Extent e) { return register_bytes == cache_line && e.size() <= most_in_cache; }

  // Calls tile(first element, first vector of columns, vectors, rows, filled lanes) for all of one task, with
  // at most so many rows and vectors.
  template <class F>
  SPLASH_INLINE void tiles(int64_t index, int64_t height, int64_t across, const F& tile) const {
    const int64_t first = index % blocks * block, last = std::min(first + block, vectors);
    if (rest > 0 && index / blocks == row_tasks - 1) {
      for (int64_t v = first; v < last; ++v) {
        const int64_t filled = std::min<int64_t>(W, rest - v * W);
        if (filled > 0) tile(rows * width + v * W, v, int64_t{1}, int64_t{1}, static_cast<int>(filled));
      }
      return;
    }
    const int64_t begin = index / blocks * rows_a_task, end = std::min(begin + rows_a_task, rows);
    for (int64_t row = begin; row < end; row += height)
      for (int64_t v = first; v < last; v += across)
        tile(row * width + v * W, v, std::min(across, last - v), std::min(height, end - row), W);
  }

  // Calls strip(first element, vector of columns, vectors, stride, filled lanes) for all of one task. Few enough rows that
  // the neighbouring columns' strips find them in the first cache; but where these have lines of their own, or half a line
  // of a narrower type, it is better that strips that sum up end less often.
  template <class F>
  SPLASH_INLINE void task(int64_t index, bool sums, const F& strip) const {
    const int64_t height = sums && W * sizeof(C) >= cache_line ? sum_length : std::clamp<int64_t>(2048 / (block * W), 16, sum_length);
    tiles(index, height, 1, [&](int64_t at, int64_t v, int64_t, int64_t n, int filled) { strip(at, v, n, width, filled); });
  }
};

// Rows of one channel each, as they follow each other in memory. Parts divide the outer dimension, and if
// that is too short for many of them, also the channels.
struct Rows {
  Extent e;
  int64_t outer_parts, channel_parts;

  explicit Rows(Extent extent) : e(extent) {
    const int64_t parts = parts_of(e);
    outer_parts = std::min(parts, e.outer);
    channel_parts = outer_parts ? std::min(parts / outer_parts, e.channels) : 0;
  }
  int64_t tasks() const { return outer_parts * channel_parts; }

  // Calls row(first element, channel) for all of one task.
  template <class F>
  SPLASH_INLINE void task(int64_t index, const F& row) const {
    const int64_t of_outer = index / channel_parts, of_channels = index % channel_parts;
    const int64_t last = e.outer * (of_outer + 1) / outer_parts;
    const int64_t begin = e.channels * of_channels / channel_parts, end = e.channels * (of_channels + 1) / channel_parts;
    for (int64_t o = e.outer * of_outer / outer_parts; o < last; ++o)
      for (int64_t c = begin; c < end; ++c) row((o * e.channels + c) * e.inner, c);
  }
};

// Lines of a (rows, channels) matrix: so many rows side by side that a line is long, and each vector of it has
// channels of its own. Unlike columns, they meet memory in its order; but nothing can be summed up in registers.
template <class C>
struct Lines {
  static constexpr int W = lanes<C>::count;
  static constexpr int64_t shortest = 256;
  Extent e;
  int64_t width, rows, parts;

  explicit Lines(Extent extent) : e(extent) {
    width = e.channels;
    while (width % W || width < shortest) width *= 2;
    rows = e.size() / width;
    parts = parts_of(e);
  }
  int64_t vectors() const { return width / W; }

  // Calls strip(first element, first vector of the line, vectors, filled lanes) for all of one part, so many lines at
  // a time, and pause() wherever a lane has summed up enough; who sums up must take one line at a time, or pauses would
  // be missed. What fills no line comes last.
  template <class F, class G>
  SPLASH_INLINE void task(int64_t part, int64_t at_a_time, const F& strip, const G& pause) const {
    const int64_t begin = rows * part / parts, end = rows * (part + 1) / parts;
    for (int64_t row = begin; row < end; row += at_a_time) {
      strip(row * width, 0, std::min(at_a_time, end - row) * vectors(), W);
      if ((row - begin) % sum_length == sum_length - 1) pause();
    }
    const int64_t rest = part == parts - 1 ? e.size() - rows * width : 0;
    if (rest / W) strip(rows * width, 0, rest / W, W);
    if (rest % W) strip(rows * width + rest / W * W, rest / W, 1, static_cast<int>(rest % W));
    pause();
  }
};

// Runs strip(first element, vector of channels, vectors, stride, filled lanes) over everything, side by
// side; task numbers say whose totals are whose. On lines it is the first of as many vectors of channels.
template <class C>
struct Walk {
  enum { flat, rows, columns, lines } way;
  Extent e;
  Rows by_row;
  Columns<C> matrix;
  Lines<C> by_line;
  int64_t longest, piece, least_to_share, tasks, vectors, stride, step, lines_at_a_time;
  bool sums;

  // `size` is that of an element in memory.
  Walk(Extent extent, size_t size, bool one_group, bool normed, bool forward, int64_t longest_strip, int64_t piece, int64_t least_to_share)
      : e(extent), by_row(extent), matrix(extent), by_line(extent), longest(longest_strip), piece(piece), least_to_share(least_to_share), sums(!forward) {
    if (forward && e.size() <= least_to_share) by_line.parts = 1;  // one thread's: nothing is summed up whose order would count
    way = one_group && !normed ? flat : e.inner > 1 ? rows : goes_by_line(size, one_group, forward) ? lines : columns;
    tasks = way == flat    ? (e.size() + piece - 1) / piece
            : way == rows  ? by_row.tasks()
            : way == lines ? by_line.parts
                           : matrix.tasks();
    vectors = way == flat ? 1 : way == rows ? e.channels : way == lines ? by_line.vectors() : matrix.vectors;
    step = way == columns || way == lines, stride = step ? lanes<C>::count : 1;
    lines_at_a_time = one_group ? 1 : std::max<int64_t>(longest / vectors, 1);
  }
  // Whether a matrix is walked by lines.
  bool goes_by_line(size_t size, bool one_group, bool forward) const {
    if (!one_group) return forward && e.channels <= most_for_lines;
    const bool has_good_columns = size == sizeof(C) && Columns<C>::are_in_cache(e) && matrix.rows >= fewest_rows_in_cache;
    return e.channels >= fewest_for_lines && (forward || !has_good_columns);
  }
  // Tasks that share sums with none, but for the channels they have in common: `together` of them.
  int64_t together() const { return way == rows ? by_row.channel_parts : way == columns ? matrix.blocks : 1; }
  int64_t totals() const { return tasks / together() * vectors; }
  int64_t totals_at(int64_t task, int64_t v) const { return task / together() * vectors + v; }

  template <class F>
  void run(const F& strip) const {
    run(strip, [](int64_t) {});
  }
  template <class F, class G>
  void run(const F& strip, const G& pause) const {
    constexpr int W = lanes<C>::count;
    parallel(tasks, e.size() > least_to_share, [&](int64_t task) {
      if (way == columns)
        return matrix.task(task, sums, [&](int64_t at, int64_t v, int64_t n, int64_t across, int filled) {
          strip(task, at, v, n, across, filled);
        });
      if (way == lines)
        return by_line.task(task, lines_at_a_time, [&](int64_t at, int64_t v, int64_t n, int filled) { strip(task, at, v, n, W, filled); }, [&] { pause(task); });
      if (way == flat)
        return along_row<C>(std::min(piece, e.size() - task * piece), longest, [&](int64_t i, int64_t n, int filled) {
          strip(task, task * piece + i, 0, n, W, filled);
        });
      by_row.task(task, [&](int64_t at, int64_t channel) {
        along_row<C>(e.inner, longest, [&](int64_t i, int64_t n, int filled) { strip(task, at + i, channel, n, W, filled); });
      });
    });
  }
};

}  // namespace
}  // namespace splash_units
