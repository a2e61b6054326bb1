// The CPU kernel: SPLASH forward and backward, alone or behind batch norm, in one pass over memory.
//
//   h(x) = sum_s a+_s max(0, x - b_s) + sum_s a-_s max(0, -x - b_s)
//
// With u = |x| and r_s = max(0, u - b_s), one side's slopes count, chosen by the sign of x:
//   h = sum_s a_s r_s,   dh/dx = +-(sum of a_s over the hinges below u),   dh/da_s = r_s.
// Where all hinges lie on a grid (the default ones do) and its cells fit into a register, a lookup
// gives slope and intercept of the segment instead, and h = slope * x + intercept.
//
// A *strip* is a run of vectors at a constant stride that share their parameters lane by lane:
// neighbours along a row of one channel, or the same columns of successive rows. Strips ignore what
// is rare: an infinity, a NaN or a -0.0 is only noticed, and then the strip is done again one by one.
//
// Slope gradients are summed in float over at most `strip_length` terms a lane, then in double, over
// pieces whose bounds depend on the tensor's shape only: the same bits for any number of threads.

#include "native.h"

#include <torch/csrc/stable/c/shim.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "simd.h"

namespace splash_units {
namespace {

constexpr int strip_length = 128;
constexpr int64_t piece = 16384;  // elements a thread takes at a time

// torch's own pool, through its stable interface: a second one would fight it for the cores.
template <class F>
void parallel(int64_t tasks, const F& body) {
  if (tasks <= 1) {
    if (tasks == 1) body(0);
    return;
  }
  torch_parallel_for(0, tasks, 1, [](int64_t begin, int64_t end, void* f) {
    for (int64_t i = begin; i < end; ++i) (*static_cast<const F*>(f))(i);
  }, const_cast<F*>(&body));
}

// --- parameters, lane by lane ------------------------------------------------------------------------

// How a vector of inputs finds its segments.
enum class Finder {
  compare,   // with each hinge, adding up what lies below
  segments,  // count the hinges below, at most three beside zero, and look up a register of four
  grid,      // hinges are multiples of a step; the cell number looks up a register for each side
};

// The shape of one group as registers to look up, one for each side. segments: entry -k modulo 4 is the
// segment beyond k hinges. grid: entry 0 is x = 0, entry j is ((j-1) step, j step].
struct Table {
  Vec<float> slope, intercept, slope_neg, intercept_neg;
  float cells_per_unit, last;
};

template <class C>
struct Lanes {
  int hinges;
  const C* at;
  const Vec<C>*pos, *neg;
  const Table* table;
  Vec<C> scale, shift, mean, from_grad, from_x, constant;  // of the batch norm in front, if any
};

float cells_per_unit(const Unit<float>& unit) {  // 0 where the hinges lie on no grid that fits
  for (float cells : {1.f, 2.f, 4.f}) {
    bool fits = unit.at[unit.hinges - 1] * cells + 2 <= lanes<float>::count;
    for (int s = 0; fits && s < unit.hinges; ++s) fits = unit.at[s] * cells == std::floor(unit.at[s] * cells);
    if (fits) return cells;
  }
  return 0;
}

Finder finder_for(const Unit<float>& unit) {
  if (!has_lookup) return Finder::compare;
  if (unit.hinges <= 4) return Finder::segments;
  return cells_per_unit(unit) > 0 ? Finder::grid : Finder::compare;
}
Finder finder_for(const Unit<double>&) { return Finder::compare; }

void tabulate(Table& t, const Unit<float>& unit, int64_t group, Finder finder) {
  constexpr int W = lanes<float>::count;
  t = Table{};
  const float cells = finder == Finder::grid ? cells_per_unit(unit) : 0;
  t.cells_per_unit = cells, t.last = unit.at[unit.hinges - 1] * cells + 1;
  const int entries = finder == Finder::grid ? static_cast<int>(t.last) : 4;
  double right = 0, left = 0, right_at = 0, left_at = 0;  // slopes on the way out, and intercepts
  for (int j = 1, s = 0; j <= entries; ++j) {
    for (; s < unit.hinges && (finder == Finder::grid ? unit.at[s] * cells < j : s < j); ++s) {
      const double p = unit.pos[s * unit.groups + group], n = unit.neg[s * unit.groups + group];
      right += p, right_at -= p * unit.at[s], left -= n, left_at -= n * unit.at[s];
    }
    const int first = finder == Finder::grid ? j : (5 - j) % 4, step = finder == Finder::grid ? W : 4;
    for (int to = first; to < W; to += step) {
      // + 0.0 turns a negative zero into a positive one, which torch.relu gives left of zero.
      t.slope[to] = static_cast<float>(right), t.intercept[to] = static_cast<float>(right_at) + 0.0f;
      t.slope_neg[to] = static_cast<float>(left) + 0.0f, t.intercept_neg[to] = static_cast<float>(left_at) + 0.0f;
    }
  }
}
void tabulate(Table&, const Unit<double>&, int64_t, Finder) {}

// values[first], values[first + step], ..., starting again at 0 after `count`.
template <class C>
SPLASH_INLINE Vec<C> spread(const C* values, int64_t first, int64_t step, int64_t count) {
  first %= count;
  if (step == 0 || count == 1) return all<C>(values[first]);
  if (first + lanes<C>::count <= count) return stored<C>::load(values + first);
  Vec<C> v;
  for (int lane = 0; lane < lanes<C>::count; ++lane, first = first + 1 == count ? 0 : first + 1) v[lane] = values[first];
  return v;
}

// Parameters of `count` vectors of channels. Vector v has channels first(v), first(v) + step, ... in
// its lanes: step 0 for a row of one channel, 1 for columns.
template <class C>
class Parameters {
 public:
  // `padded` is the number of hinges strips were compiled for; the surplus never bends anything.
  Parameters(const Unit<C>& unit, const Norm<C>* norm, int padded, int64_t channels, int64_t count, int64_t stride, int64_t step)
      : at_(padded, std::numeric_limits<C>::infinity()), slopes_(2 * padded * count), lanes_(count) {
    std::copy(unit.at, unit.at + unit.hinges, at_.begin());
    finder_ = step && unit.groups > 1 ? Finder::compare : finder_for(unit);
    const bool has_table = finder_ != Finder::compare;
    if (has_table) tables_.resize(unit.groups == 1 ? 1 : count);
    for (int64_t v = 0; v < count; ++v) {
      Lanes<C>& p = lanes_[v];
      Vec<C>*pos = slopes_.data() + 2 * padded * v, *neg = pos + padded;
      p.hinges = padded, p.at = at_.data(), p.pos = pos, p.neg = neg;
      for (int s = 0; s < unit.hinges; ++s) {
        pos[s] = spread(unit.pos + s * unit.groups, v * stride, step, unit.groups);
        neg[s] = spread(unit.neg + s * unit.groups, v * stride, step, unit.groups);
      }
      if (norm) {
        const auto of = [&](const C* values) { return values ? spread(values, v * stride, step, channels) : Vec<C>{}; };
        p.scale = of(norm->scale), p.shift = of(norm->shift), p.mean = of(norm->mean);
        p.from_grad = of(norm->from_grad), p.from_x = of(norm->from_x), p.constant = of(norm->constant);
      }
      const int64_t t = unit.groups == 1 ? 0 : v;
      if (has_table && t == v) tabulate(tables_[t], unit, t, finder_);
      p.table = has_table ? &tables_[t] : nullptr;
    }
  }
  const Lanes<C>& operator[](int64_t v) const { return lanes_[v]; }
  Finder finder() const { return finder_; }

 private:
  std::vector<C> at_;
  std::vector<Vec<C>> slopes_;
  std::vector<Table> tables_;
  std::vector<Lanes<C>> lanes_;
  Finder finder_;
};

// --- what strips don't do -----------------------------------------------------------------------------

// Notices infinities and NaN, whose magnitudes are the largest of all bit patterns, and the least of what
// else it is shown: -0.0 is the least of all numbers' bits, +0.0 the least of all magnitudes'.
template <class C>
struct Watch {
  using I = typename int_of<C>::type;
  Ints<C> least = Ints<C>{} + std::numeric_limits<I>::max(), largest{};
  SPLASH_INLINE void see_least(Vec<C> v) { least = lesser<C>(least, bits<C>(v)); }
  SPLASH_INLINE void see_largest(Vec<C> u) { largest = greater<C>(largest, bits<C>(u)); }
  SPLASH_INLINE bool saw_negative_zero() const { return any<C>(least == std::numeric_limits<I>::min()); }
  SPLASH_INLINE bool saw_zero() const { return any<C>(least == 0); }
  SPLASH_INLINE bool saw_infinity_or_nan() const {
    return any<C>(largest >= bits<C>(all<C>(std::numeric_limits<C>::infinity())));
  }
};

template <class C>
struct OneByOne {
  const Lanes<C>& p;
  int lane;

  C total(const Vec<C>* a) const {
    C sum = 0;
    for (int s = 0; s < p.hinges; ++s) sum += a[s][lane];
    return sum;
  }
  C value(C z) const {
    if (z == 0 || std::isnan(z)) return z;
    const Vec<C>* a = z > 0 ? p.pos : p.neg;
    if (std::isinf(z)) {
      C slope = total(a), flat = 0;
      for (int s = 0; s < p.hinges; ++s) flat -= a[s][lane] == 0 ? 0 : a[s][lane] * p.at[s];
      return slope == 0 ? flat : slope * std::fabs(z);
    }
    C h = 0;
    for (int s = 0; s < p.hinges; ++s) h += a[s][lane] * std::max(std::fabs(z) - p.at[s], C(0));
    return h;
  }
  C slope(C z) const {  // torch's convention: at a hinge the inner side counts, a NaN is on all sides
    if (std::isnan(z)) return total(p.pos) - total(p.neg);
    C sum = 0;
    for (int s = 0; s < p.hinges; ++s) sum += std::fabs(z) > p.at[s] ? (z > 0 ? p.pos : p.neg)[s][lane] : C(0);
    return z > 0 ? sum : -sum;
  }
  C ramp(C z, int s) const {
    return std::isnan(z) ? z : std::max(std::fabs(z) - p.at[s], C(0));
  }
};

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
  const Vec<C>*pos, *neg;
  explicit SPLASH_INLINE Hinges(const Lanes<C>& p) : count(p.hinges), at(p.at), pos(p.pos), neg(p.neg) {}
};

// Where in the table a vector finds itself; a strip's own copy of the registers.
template <Finder finder, int K>
struct Found;

template <int K>
struct Found<Finder::segments, K> {
  const Table t;
  explicit SPLASH_INLINE Found(const Table* table) : t(*table) {}
  SPLASH_INLINE Ints<float> index(Vec<float> u, const Hinges<float, K>& hinges) const {
    Ints<float> j{};
    for (int s = 1; s < hinges.count; ++s) j += u > hinges.at[s];  // a comparison is -1 where it holds
    return j;
  }
  SPLASH_INLINE Vec<float> slope(Vec<float> z, Ints<float> j) const {
    return by_sign<float>(z, lookup4(t.slope_neg, j), lookup4(t.slope, j));
  }
  SPLASH_INLINE Vec<float> intercept(Vec<float> z, Ints<float> j) const {
    return by_sign<float>(z, lookup4(t.intercept_neg, j), lookup4(t.intercept, j));
  }
};

template <int K>
struct Found<Finder::grid, K> {
  const Table t;
  explicit SPLASH_INLINE Found(const Table* table) : t(*table) {}
  SPLASH_INLINE Ints<float> index(Vec<float> u, const Hinges<float, K>&) const {
    return ceiling(smaller<float>(u * t.cells_per_unit, all<float>(t.last)));
  }
  SPLASH_INLINE Vec<float> slope(Vec<float> z, Ints<float> j) const {
    return by_sign<float>(z, lookup(t.slope_neg, j), lookup(t.slope, j));
  }
  SPLASH_INLINE Vec<float> intercept(Vec<float> z, Ints<float> j) const {
    return by_sign<float>(z, lookup(t.intercept_neg, j), lookup(t.intercept, j));
  }
};

template <int K>
struct Found<Finder::compare, K> {
  explicit SPLASH_INLINE Found(const Table*) {}
};

// More arithmetic than a copy has hides the hardware's own prefetching; ask some lines ahead.
template <class T>
SPLASH_INLINE void fetch_ahead(const T* in, const T* out) {
  __builtin_prefetch(reinterpret_cast<const char*>(in) + 2048);
  __builtin_prefetch(reinterpret_cast<const char*>(out) + 2048, 1);
}

template <class T, int K, bool affine, Finder finder>
SPLASH_ONE_COPY void forward_strip(const T* x, T* y, int64_t n, int64_t stride, int filled, const Lanes<compute_t<T>>& p) {
  using C = compute_t<T>;
  const Hinges<C, K> hinges(p);
  const Found<finder, K> found(p.table);
  const Vec<C> scale = p.scale, shift = p.shift;
  Watch<C> watch;
  for (int64_t i = 0; i < n; ++i) {
    fetch_ahead(x + i * stride, y + i * stride);
    Vec<C> z = stored<T>::load(x + i * stride);
    if constexpr (affine) z = z * scale + shift;
    const Vec<C> u = magnitude<C>(z);
    watch.see_least(z);
    watch.see_largest(u);
    if constexpr (finder == Finder::compare) {
      Vec<C> right = hinges.pos[0] * u, left = hinges.neg[0] * u;
      for (int s = 1; s < hinges.count; ++s) {
        const Vec<C> r = above_zero<C>(u - hinges.at[s]);
        right += hinges.pos[s] * r;
        left += hinges.neg[s] * r;
      }
      stored<T>::store(y + i * stride, by_sign<C>(z, left, right));
    } else {
      const Ints<float> j = found.index(u, hinges);
      stored<T>::store(y + i * stride, found.slope(z, j) * z + found.intercept(z, j));
    }
  }
  if (!watch.saw_negative_zero() && !watch.saw_infinity_or_nan()) [[likely]] return;
  for (int64_t i = 0; i < n; ++i)
    for (int lane = 0; lane < filled; ++lane) {
      C z = as_compute(x[i * stride + lane]);
      if constexpr (affine) z = z * p.scale[lane] + p.shift[lane];
      put(y + i * stride + lane, OneByOne<C>{p, lane}.value(z));
    }
}

// --- backward -----------------------------------------------------------------------------------------

// Sums of one vector of channels in double, lane by lane: a pair a hinge, then dz and dz (x - mean).
template <class C>
struct Totals {
  Wide<C>*pos, *neg, *dz, *dz_x;
};

template <class C>
class TotalsOf {
 public:
  TotalsOf(int hinges, int64_t count) : hinges_(hinges), sums_((2 * hinges + 2) * count) {}
  Totals<C> operator[](int64_t v) {
    Wide<C>* first = sums_.data() + v * (2 * hinges_ + 2);
    return {first, first + hinges_, first + 2 * hinges_, first + 2 * hinges_ + 1};
  }

 private:
  int hinges_;
  std::vector<Wide<C>> sums_;
};

template <class T, int K, bool affine, bool writes, bool sums, Finder finder>
SPLASH_ONE_COPY void backward_strip(const T* x, const T* grad, T* dx, int64_t n, int64_t stride, int filled,
                                    const Lanes<compute_t<T>>& p, const Totals<compute_t<T>>& totals) {
  using C = compute_t<T>;
  const Hinges<C, K> hinges(p);
  const Found<finder, K> found(p.table);
  const Vec<C> scale = p.scale, shift = p.shift, mean = p.mean;
  const Vec<C> from_grad = p.from_grad, from_x = p.from_x, constant = p.constant;
  Watch<C> watch;
  Vec<C> pos[K ? K : most_hinges], neg[K ? K : most_hinges], dz_sum{}, dz_x_sum{};
  for (int s = 0; s < hinges.count; ++s) pos[s] = neg[s] = Vec<C>{};

  // Two loops over memory that is in cache the second time: together they would need more registers
  // than there are.
  for (int64_t i = 0; i < n; ++i) {
    if constexpr (writes) fetch_ahead(x + i * stride, dx + i * stride);
    const Vec<C> in = stored<T>::load(x + i * stride), g = stored<T>::load(grad + i * stride);
    const Vec<C> z = affine ? in * scale + shift : in, u = magnitude<C>(z);
    // At x = 0 no slope counts, which comparing knows, a grid has a cell for, and segments do not.
    if constexpr (finder == Finder::segments) watch.see_least(u);
    if constexpr (!sums) watch.see_largest(u);  // sums show it themselves: they are not finite then
    Vec<C> slope;
    if constexpr (finder == Finder::compare) {
      Vec<C> right{}, left{};
      for (int s = 0; s < hinges.count; ++s) {
        right += u > hinges.at[s] ? hinges.pos[s] : Vec<C>{};
        left -= u > hinges.at[s] ? hinges.neg[s] : Vec<C>{};
      }
      slope = by_sign<C>(z, left, right);
    } else {
      slope = found.slope(z, found.index(u, hinges));
    }
    const Vec<C> dz = g * slope + Vec<C>{};  // + 0: a flat segment passes on 0.0, never -0.0, as torch.relu has it
    if constexpr (writes) {
      const Vec<C> out = affine ? dz * from_grad + (in * from_x + constant) : dz;
      stored<T>::store(dx + i * stride, out);
    }
    if constexpr (sums && affine) {
      dz_sum += dz;
      dz_x_sum += dz * (in - mean);
    }
  }
  if constexpr (sums) {
    for (int64_t i = 0; i < n; ++i) {
      const Vec<C> in = stored<T>::load(x + i * stride), g = stored<T>::load(grad + i * stride);
      const Vec<C> z = affine ? in * scale + shift : in, u = magnitude<C>(z);
      const Vec<C> g_neg = by_sign<C>(z, g, Vec<C>{}), g_pos = g - g_neg;
      for (int s = 0; s < hinges.count; ++s) {
        const Vec<C> r = s == 0 ? u : above_zero<C>(u - hinges.at[s]);
        pos[s] += g_pos * r;
        neg[s] += g_neg * r;
      }
    }
  }

  if constexpr (finder == Finder::segments)
    if (watch.saw_zero()) [[unlikely]]
      return backward_strip<T, K, affine, writes, sums, Finder::compare>(x, grad, dx, n, stride, filled, p, totals);
  if constexpr (sums) watch.see_largest(magnitude<C>(pos[0])), watch.see_largest(magnitude<C>(neg[0]));
  if (!watch.saw_infinity_or_nan()) [[likely]] {
    if constexpr (sums) {
      for (int s = 0; s < hinges.count; ++s) {
        totals.pos[s] += __builtin_convertvector(pos[s], Wide<C>);
        totals.neg[s] += __builtin_convertvector(neg[s], Wide<C>);
      }
      *totals.dz += __builtin_convertvector(dz_sum, Wide<C>);
      *totals.dz_x += __builtin_convertvector(dz_x_sum, Wide<C>);
    }
    return;
  }
  for (int64_t i = 0; i < n; ++i)
    for (int lane = 0; lane < filled; ++lane) {
      const OneByOne<C> one{p, lane};
      const C in = as_compute(x[i * stride + lane]), g = as_compute(grad[i * stride + lane]);
      const C z = affine ? in * p.scale[lane] + p.shift[lane] : in, dz = g * one.slope(z) + C(0);
      if constexpr (writes) put(dx + i * stride + lane, affine ? dz * p.from_grad[lane] + (in * p.from_x[lane] + p.constant[lane]) : dz);
      if constexpr (sums) {
        for (int s = 0; s < hinges.count; ++s) {
          const double d = g * one.ramp(z, s);
          if (z > 0 || std::isnan(z)) totals.pos[s][lane] += d;
          if (z < 0 || std::isnan(z)) totals.neg[s][lane] += d;
        }
        if constexpr (affine) {
          (*totals.dz)[lane] += dz;
          (*totals.dz_x)[lane] += static_cast<double>(dz * (in - p.mean[lane]));
        }
      }
    }
}

// --- the two ways through memory -----------------------------------------------------------------------

// Calls strip(first element, vectors, filled lanes) over n neighbours; the ragged end comes last, alone.
template <class C, class F>
SPLASH_INLINE void along_row(int64_t n, const F& strip) {
  constexpr int W = lanes<C>::count;
  const int64_t whole = n / W * W;
  for (int64_t i = 0; i < whole; i += strip_length * W) strip(i, std::min<int64_t>(strip_length, (whole - i) / W), W);
  if (whole < n) strip(whole, 1, static_cast<int>(n - whole));
}

// Columns of a (rows, channels) matrix. Channel counts that are no multiple of a vector get several
// rows side by side, so that columns always fill vectors: 6 channels of 8 lanes are 24 columns.
template <class C>
struct Columns {
  static constexpr int W = lanes<C>::count;
  int64_t channels, fold, width, rows, rest, vectors, block, blocks, rows_a_task, row_tasks;

  explicit Columns(Extent e) : channels(e.channels) {
    fold = 1;
    while (fold < W && channels * fold % W) fold *= 2;
    width = channels * fold;
    rows = e.outer / fold;
    rest = e.outer % fold * channels;
    vectors = width / W;
    block = std::min<int64_t>(vectors, 16);
    blocks = (vectors + block - 1) / block;
    rows_a_task = std::max<int64_t>(strip_length, 2 * piece / (block * W));
    row_tasks = (rows + rows_a_task - 1) / rows_a_task + (rest > 0);
  }
  int64_t tasks() const { return row_tasks * blocks; }

  // Calls strip(first element, vector of columns, vectors, stride, filled lanes) for all of one task.
  template <class F>
  SPLASH_INLINE void task(int64_t index, const F& strip) const {
    const int64_t first = index % blocks * block, last = std::min(first + block, vectors);
    const int64_t begin = index / blocks * rows_a_task;
    if (rest > 0 && index / blocks == row_tasks - 1) {
      for (int64_t v = first; v < last; ++v) {
        const int64_t filled = std::min<int64_t>(W, rest - v * W);
        if (filled > 0) strip(rows * width + v * W, v, 1, width, static_cast<int>(filled));
      }
      return;
    }
    const int64_t end = std::min(begin + rows_a_task, rows);
    // Few enough rows that the neighbouring columns' strips find them in the first cache.
    const int64_t height = std::clamp<int64_t>(2048 / (block * W), 16, strip_length);
    for (int64_t row = begin; row < end; row += height)
      for (int64_t v = first; v < last; ++v)
        strip(row * width + v * W, v, std::min<int64_t>(height, end - row), width, W);
  }
};

// Runs strip(first element, vector of channels, vectors, stride, filled lanes) over everything, side by
// side; task numbers say whose totals are whose.
template <class C>
struct Walk {
  enum { flat, rows, columns } way;
  Extent e;
  Columns<C> matrix;
  int64_t tasks, vectors, stride, step;

  Walk(Extent extent, bool one_group) : e(extent), matrix(extent) {
    way = one_group ? flat : e.inner > 1 ? rows : columns;
    tasks = way == flat ? (e.size() + piece - 1) / piece : way == rows ? e.channels : matrix.tasks();
    vectors = way == flat ? 1 : way == rows ? e.channels : matrix.vectors;
    stride = way == columns ? lanes<C>::count : 1, step = way == columns;
  }
  int64_t totals() const { return way == flat ? tasks : way == rows ? vectors : matrix.row_tasks * vectors; }
  int64_t totals_at(int64_t task, int64_t v) const {
    return way == flat ? task : way == rows ? v : task / matrix.blocks * vectors + v;
  }

  template <class F>
  void run(const F& strip) const {
    constexpr int W = lanes<C>::count;
    parallel(tasks, [&](int64_t task) {
      if (way == columns)
        return matrix.task(task, [&](int64_t at, int64_t v, int64_t n, int64_t across, int filled) {
          strip(task, at, v, n, across, filled);
        });
      if (way == flat)
        return along_row<C>(std::min(piece, e.size() - task * piece), [&](int64_t i, int64_t n, int filled) {
          strip(task, task * piece + i, 0, n, W, filled);
        });
      for (int64_t o = 0; o < e.outer; ++o)
        along_row<C>(e.inner, [&](int64_t i, int64_t n, int filled) {
          strip(task, (o * e.channels + task) * e.inner + i, task, n, W, filled);
        });
    });
  }
};

// The common numbers of hinges are known to the compiler; others are padded up to the next or counted.
template <class T>
constexpr bool compiled_counts = std::is_same_v<T, float> || std::is_same_v<T, bfloat16>;
template <class T>
int padded(int hinges) {
  return !compiled_counts<T> || hinges > 6 ? hinges : hinges <= 4 ? 4 : 6;
}
template <class T, class F>
auto with_count(int hinges, const F& f) {
  if constexpr (compiled_counts<T>) {
    if (hinges == 4) return f(std::integral_constant<int, 4>{});
    if (hinges == 6) return f(std::integral_constant<int, 6>{});
  }
  return f(std::integral_constant<int, 0>{});
}
template <class T, class F>
auto with_finder(Finder finder, const F& f) {
  if constexpr (has_lookup && !std::is_same_v<T, double>) {
    if (finder == Finder::segments) return f(std::integral_constant<Finder, Finder::segments>{});
    if (finder == Finder::grid) return f(std::integral_constant<Finder, Finder::grid>{});
  }
  return f(std::integral_constant<Finder, Finder::compare>{});
}

template <class T>
auto forward_strip_for(int hinges, bool affine, Finder finder) {
  return with_finder<T>(finder, [&](auto by) {
    // On a grid, the number of hinges does not matter.
    return with_count<T>(by == Finder::grid ? 0 : hinges, [&](auto k) {
      return affine ? &forward_strip<T, k, true, by> : &forward_strip<T, k, false, by>;
    });
  });
}

template <class T>
auto backward_strip_for(int hinges, bool affine, bool writes, Finder finder) {
  return with_finder<T>(finder, [&](auto by) {
    return with_count<T>(hinges, [&](auto k) {
      return affine ? (writes ? &backward_strip<T, k, true, true, false, by> : &backward_strip<T, k, true, false, true, by>)
                    : &backward_strip<T, k, false, true, true, by>;
    });
  });
}

// Room for a ragged end: strips read and write whole vectors.
template <class T>
struct Ragged {
  T in[lanes<compute_t<T>>::count]{}, grad[lanes<compute_t<T>>::count]{}, out[lanes<compute_t<T>>::count];
};

}  // namespace

template <class T>
void forward(const T* x, T* y, Extent e, const Unit<compute_t<T>>& unit, const Norm<compute_t<T>>* norm) {
  using C = compute_t<T>;
  if (e.size() == 0) return;
  const Walk<C> walk(e, !norm && unit.groups == 1);
  const int hinges = padded<T>(unit.hinges);
  const Parameters<C> parameters(unit, norm, hinges, e.channels, walk.vectors, walk.stride, walk.step);
  const auto strip = forward_strip_for<T>(hinges, norm, parameters.finder());
  walk.run([&](int64_t, int64_t at, int64_t v, int64_t n, int64_t stride, int filled) {
    if (filled == lanes<C>::count) [[likely]] return strip(x + at, y + at, n, stride, filled, parameters[v]);
    Ragged<T> r;
    std::memcpy(r.in, x + at, filled * sizeof(T));
    strip(r.in, r.out, 1, stride, filled, parameters[v]);
    std::memcpy(y + at, r.out, filled * sizeof(T));
  });
}

template <class T>
void backward(const T* x, const T* grad, T* dx, Extent e, const Unit<compute_t<T>>& unit,
              const Norm<compute_t<T>>* norm, const Sums* sums) {
  using C = compute_t<T>;
  if (e.size() == 0) return;
  const Walk<C> walk(e, !norm && unit.groups == 1);
  const int hinges = padded<T>(unit.hinges);
  const Parameters<C> parameters(unit, norm, hinges, e.channels, walk.vectors, walk.stride, walk.step);
  const auto strip = backward_strip_for<T>(hinges, norm, dx, parameters.finder());
  TotalsOf<C> totals(hinges, walk.totals());
  walk.run([&](int64_t task, int64_t at, int64_t v, int64_t n, int64_t stride, int filled) {
    const Totals<C> mine = totals[walk.totals_at(task, v)];
    if (filled == lanes<C>::count) [[likely]] return strip(x + at, grad + at, dx + at, n, stride, filled, parameters[v], mine);
    Ragged<T> r;
    std::memcpy(r.in, x + at, filled * sizeof(T));
    std::memcpy(r.grad, grad + at, filled * sizeof(T));
    strip(r.in, r.grad, r.out, 1, stride, filled, parameters[v], mine);
    if (dx) std::memcpy(dx + at, r.out, filled * sizeof(T));
  });
  if (!sums) return;
  for (int64_t i = 0; i < walk.totals(); ++i) {
    const Totals<C> t = totals[i];
    int64_t channel = i % walk.vectors * walk.stride % e.channels;
    for (int lane = 0; lane < lanes<C>::count; ++lane, channel = (channel + walk.step == e.channels ? 0 : channel + walk.step)) {
      const int64_t group = unit.groups == 1 ? 0 : channel;
      for (int s = 0; s < unit.hinges; ++s) {
        sums->pos[s * unit.groups + group] += t.pos[s][lane];
        sums->neg[s * unit.groups + group] += t.neg[s][lane];
      }
      if (norm) sums->dz[channel] += (*t.dz)[lane], sums->dz_x[channel] += (*t.dz_x)[lane];
    }
  }
}

// Two passes over each piece while it is in cache, joined in double (Chan et al. 1979): as exact as two
// passes over everything, at the price of one.
struct Moments {
  double count = 0, mean = 0, deviation = 0;
  void join(double n, double m, double d) {
    if (n == 0) return;
    const double both = count + n, gap = m - mean;
    deviation += d + gap * gap * count * n / both;
    mean += gap * n / both;
    count = both;
  }
};

template <class T>
void moments(const T* x, Extent e, double* mean, double* deviation) {
  using C = compute_t<T>;
  constexpr int W = lanes<C>::count;
  auto look = [x](int64_t i, int64_t n, int64_t stride, int filled, Moments* to, int64_t step) {
    if (filled < W) {
      for (int lane = 0; lane < filled; ++lane) to[lane * step].join(1, as_compute(x[i + lane]), 0);
      return;
    }
    Vec<C> sum{}, squares{};
    for (int64_t k = 0; k < n; ++k) sum += stored<T>::load(x + i + k * stride);
    const Vec<C> middle = sum / static_cast<C>(n);
    Vec<C> left_over{};
    for (int64_t k = 0; k < n; ++k) {
      const Vec<C> d = stored<T>::load(x + i + k * stride) - middle;
      squares += d * d;
      left_over += d;  // what rounding the mean left behind
    }
    for (int lane = 0; lane < W; ++lane) {
      const double rest = left_over[lane] / static_cast<double>(n);
      to[lane * step].join(n, middle[lane] + rest, squares[lane] - n * rest * rest);
    }
  };
  auto finish = [&](int64_t c, const Moments& m) { mean[c] = m.mean, deviation[c] = m.deviation; };
  if (e.inner > 1) {
    parallel(e.channels, [&](int64_t c) {
      Moments all_lanes[W];
      for (int64_t o = 0; o < e.outer; ++o)
        along_row<C>(e.inner, [&](int64_t i, int64_t n, int filled) {
          look((o * e.channels + c) * e.inner + i, n, W, filled, all_lanes, 1);
        });
      Moments whole;
      for (const Moments& m : all_lanes) whole.join(m.count, m.mean, m.deviation);
      finish(c, whole);
    });
    return;
  }
  const Columns<C> columns(e);
  std::vector<Moments> parts(columns.row_tasks * columns.width);
  parallel(columns.tasks(), [&](int64_t task) {
    Moments* mine = parts.data() + task / columns.blocks * columns.width;
    columns.task(task, [&](int64_t i, int64_t v, int64_t n, int64_t stride, int filled) {
      look(i, n, stride, filled, mine + v * W, 1);
    });
  });
  std::vector<Moments> whole(e.channels);
  for (size_t i = 0; i < parts.size(); ++i)
    whole[i % columns.width % e.channels].join(parts[i].count, parts[i].mean, parts[i].deviation);
  for (int64_t c = 0; c < e.channels; ++c) finish(c, whole[c]);
}

const char* instruction_set() {
#if defined(__AVX512F__)
  return "avx512";
#elif defined(__AVX2__)
  return "avx2";
#else
  return "portable";
#endif
}

#define SPLASH_FOR(T)                                                                                     \
  template void forward(const T*, T*, Extent, const Unit<compute_t<T>>&, const Norm<compute_t<T>>*);      \
  template void backward(const T*, const T*, T*, Extent, const Unit<compute_t<T>>&,                       \
                         const Norm<compute_t<T>>*, const Sums*);                                         \
  template void moments(const T*, Extent, double*, double*);
SPLASH_FOR(float)
SPLASH_FOR(double)
SPLASH_FOR(bfloat16)
SPLASH_FOR(float16)

}  // namespace splash_units
