// A unit's parameters, laid out lane by lane for the strips that use them.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>

#include "bytes.h"
#include "native.h"
#include "room.h"
#include "simd.h"
#include "walk.h"

namespace splash_units {
namespace {

// How a vector of inputs finds its segments.
enum class Finder {
  compare,   // with each hinge, adding up what lies below
  segments,  // count the hinges below, few beside zero, and look up a register
  grid,      // hinges are multiples of a step; the cell number looks up a register for each side
  cells,     // hinges are multiples of a step, up to fifteen: see cells.h
  few_cells,  // forward only, multiples up to seven
  cells_falling,  // forward only, where the first slope on the right is negative
  few_cells_falling,
  wholes,    // forward only, hinges are whole numbers but for one: see wholes.h
  wholes_flat_left,  // the same where the leftmost slope is zero,
  wholes_falling,    // or the first slope on the right negative
  steps,     // forward only, hinges are multiples of a step, up to fifteen, and a number can be rounded down: see steps.h
  steps_flat_left,
  steps_falling,
};
constexpr int finders = static_cast<int>(Finder::steps_falling) + 1;
constexpr int most_masked = has_masks ? 6 : 0;  // hinges of a backward strip that takes all at once: see masked.h
constexpr bool is_wholes(Finder finder) { return finder >= Finder::wholes && finder <= Finder::wholes_falling; }
constexpr bool is_steps(Finder finder) { return finder >= Finder::steps && finder <= Finder::steps_falling; }
constexpr bool is_cells(Finder finder) { return finder >= Finder::cells && finder <= Finder::few_cells_falling; }
constexpr bool is_few(Finder finder) { return finder == Finder::few_cells || finder == Finder::few_cells_falling; }
constexpr bool is_falling(Finder finder) {
  return finder == Finder::cells_falling || finder == Finder::few_cells_falling || finder == Finder::wholes_falling || finder == Finder::steps_falling;
}

// The shape of one group as registers to look up, one for each side. segments: entry -k modulo 4, or 8
// if there are more than four hinges, is the segment beyond k of them. grid: entry 0 is x = 0, entry j is ((j-1) step, j step]. cells: see
// tabulate_cells.
struct Table {
  Vec<float> slope, intercept, slope_neg, intercept_neg;
  float cells_per_unit, last;
  float step_high, step_low;
  CellTable slopes, intercepts;
  // Of cells, for masked_cells.h: the hinge at which one begins, seen from zero, and the slope before it.
  float cells_per_unit_and_more;
  FloatTable inner_hinges, inner_slopes;
};

template <class C>
struct NormLanes {  // the batch norm in front, if any
  Vec<C> scale, shift, mean, from_grad, from_x, constant;
};

// The same for all channels of a line, one after the other.
template <class C>
struct NormLine {
  const C *scale, *shift, *mean, *from_grad, *from_x, *constant;
  NormLine beyond(int64_t vectors) const {
    const int64_t n = vectors * lanes<C>::count;
    return {scale + n, shift + n, mean + n, from_grad + n, from_x + n, constant + n};
  }
};

// Slopes of one vector, or of as many as follow each other: slope s of a lane lies s * pitch beyond its first.
template <class C>
struct Slopes {
  const C* first;
  int64_t pitch;
  SPLASH_INLINE Vec<C> operator[](int s) const { return stored<C>::load(first + s * pitch); }
  SPLASH_INLINE Slopes beyond(int64_t vectors) const { return {first + vectors * lanes<C>::count, pitch}; }
  C at(int s, int lane) const { return first[s * pitch + lane]; }
};

template <class C>
struct Shape {
  int hinges;
  const C* at;
  Slopes<C> pos, neg;
  Finder finder;
  const Table* table;
};

template <class C>
struct Lanes : NormLanes<C>, Shape<C> {
  NormLine<C> line;  // instead of its own, where a strip's vectors are those of a line
  int64_t line_vectors;
};

float cells_per_unit(const Unit<float>& unit) {  // 0 where the hinges lie on no grid that fits
  for (float cells : {1.f, 2.f, 4.f}) {
    bool fits = unit.at[unit.hinges - 1] * cells + 2 <= lanes<float>::count;
    for (int s = 0; fits && s < unit.hinges; ++s) fits = unit.at[s] * cells == std::floor(unit.at[s] * cells);
    if (fits) return cells;
  }
  return 0;
}

// Hinges as multiples of a step, but for rounding.
struct Steps {
  bool fit = false;
  double step;
  float high, low;  // the step, in two parts
  int last;         // the last hinge, in steps
  int number[cells_a_side];

  Steps() = default;  // none
  explicit Steps(const Unit<float>& unit) {
    for (last = unit.hinges - 1; last < cells_a_side; ++last)
      if ((fit = divide(unit))) return;
  }
  static constexpr float nothing = 1e-30f;  // compared with this much less, zero lies beyond the hinge at zero

 private:
  static constexpr double most_float = std::numeric_limits<float>::max();
  bool divide(const Unit<float>& unit) {
    const double steps_per_unit = unit.hinges > 1 ? last / double(unit.at[unit.hinges - 1]) : 1;
    double least = 0, most = std::numeric_limits<double>::infinity();  // steps whose multiples reach hinges, and no number behind
    number[0] = 0;
    for (int s = 1; s < unit.hinges; ++s) {
      number[s] = static_cast<int>(unit.at[s] * steps_per_unit + 0.5);
      least = std::max(least, double(unit.at[s]) / number[s]), most = std::min(most, double(behind(unit.at[s])) / number[s]);
    }
    if (!(least < most)) return false;
    step = unit.hinges > 1 ? (least + most) / 2 : 1;
    if (!(cells_a_side * step <= most_float && 2 / step <= most_float)) return false;  // as strips use them
    high = static_cast<float>(step), low = static_cast<float>(step - high);
    for (int s = 1; s < unit.hinges; ++s)
      if (!reaches(number[s], unit.at[s]) || reaches(number[s], behind(unit.at[s]))) return false;
    return true;
  }
  bool reaches(float steps, float u) const { return std::fma(-steps, high, u) <= std::fma(steps, low, -nothing); }  // as strips compare
  static float behind(float v) {  // the next number
    uint32_t b;
    std::memcpy(&b, &v, 4);
    ++b;
    std::memcpy(&v, &b, 4);
    return v;
  }
};

// Cells of one side where hinges are whole numbers but for one at most: each whole number begins one, and so does
// the hinge that is none.
struct WholeCells {
  float limit, broken = 0;  // where the last cell ends, and the hinge that is no whole number
  bool fit = true;

  explicit WholeCells(const Unit<float>& unit) : limit(std::floor(unit.at[unit.hinges - 1]) + 1) {
    for (int s = 0; s < unit.hinges; ++s) {
      if (unit.at[s] == std::floor(unit.at[s])) continue;
      fit = fit && broken == 0;
      broken = unit.at[s];
    }
    // Four a side in a register; and from three times the broken hinge on, its multiple would round to two.
    fit = fit && limit + (broken > 0) <= 4 && (broken == 0 || limit <= 3 * broken);
  }
  float begin(int cell) const {
    const bool beyond = broken > 0 && cell > broken;
    return beyond && cell - 1 < broken ? broken : cell - beyond;
  }
};

float total(const float* slopes, const Unit<float>& unit, int64_t group) {
  double sum = 0;
  for (int s = 0; s < unit.hinges; ++s) sum += slopes[s * unit.groups + group];
  return static_cast<float>(sum);
}
// Whether a table's outermost slope, which is that total, has the sign of the sum in float: an infinity is to be where the
// equation has it, which adds up in float.
bool has_sign_of_sum(float total, const float* slopes, const Unit<float>& unit, int64_t group) {
  float sum = 0;
  for (int s = 0; s < unit.hinges; ++s) sum += slopes[s * unit.groups + group];
  return std::isfinite(total) && (total > 0) == (sum > 0) && (total < 0) == (sum < 0);
}

// Of finders that do not watch for infinities, the one for a shape. A slope of zero times an infinity is NaN, which is
// provided for on the left only, where ReLU has one. And -0.0 counts as positive, whose sign a falling slope would turn.
struct Unwatched {
  Finder usual, flat_left, falling;

  Finder for_shape(const Unit<float>& unit, int64_t group, Finder otherwise) const {
    const float right = total(unit.pos, unit, group), left = total(unit.neg, unit, group);
    if (right == 0 || !has_sign_of_sum(right, unit.pos, unit, group) || !has_sign_of_sum(left, unit.neg, unit, group)) return otherwise;
    if (unit.pos[group] >= 0) return left == 0 ? flat_left : usual;
    return left == 0 ? otherwise : falling;
  }
};
constexpr Unwatched by_wholes{Finder::wholes, Finder::wholes_flat_left, Finder::wholes_falling};
constexpr Unwatched by_steps{Finder::steps, Finder::steps_flat_left, Finder::steps_falling};

bool has_finite_table(const Unit<float>& unit, int64_t group) {
  double most = 0;  // no slope or intercept is larger
  for (int s = 0; s < unit.hinges; ++s) {
    const double p = unit.pos[s * unit.groups + group], n = unit.neg[s * unit.groups + group];
    most += (std::fabs(p) + std::fabs(n)) * (1 + unit.at[s]);
  }
  return most <= std::numeric_limits<float>::max();
}

Finder cells_for(const Unit<float>& unit, int64_t group, const Steps& steps) {
  const bool few = steps.last < few_cells_a_side;
  if (unit.pos[group] >= 0) return few ? Finder::few_cells : Finder::cells;
  return few ? Finder::few_cells_falling : Finder::cells_falling;
}

Finder forward_finder(const Unit<float>& unit, int64_t group, const Steps& steps) {
  const bool compares = unit.hinges <= 4;
  if (compares && !rounds_down) return WholeCells(unit).fit ? by_wholes.for_shape(unit, group, Finder::segments) : Finder::segments;
  if (!steps.fit || !has_finite_table(unit, group)) return compares ? Finder::segments : Finder::compare;
  const Finder otherwise = compares ? Finder::segments : cells_for(unit, group, steps);
  return rounds_down ? by_steps.for_shape(unit, group, otherwise) : otherwise;
}

// `padded` is the number of hinges strips were compiled for.
Finder backward_finder(const Unit<float>& unit, int padded, const Steps& steps) {
  const bool is_short = unit.hinges <= 4 || padded <= most_masked;
  if (has_masks && !is_short && steps.fit) return Finder::cells;
  if ((has_masks || !is_short) && cells_per_unit(unit) > 0) return Finder::grid;
  if (is_short) return Finder::segments;
  return steps.fit ? Finder::cells : Finder::compare;
}

Finder finder_for(const Unit<float>& unit, int64_t group, bool forward, int padded, const Steps& steps) {
  if (!has_lookup) return Finder::compare;
  return forward ? forward_finder(unit, group, steps) : backward_finder(unit, padded, steps);
}
Finder finder_for(const Unit<double>&, int64_t, bool, int, const Steps&) { return Finder::compare; }

// The hinges' steps, if a finder asks for them.
Steps steps_for(const Unit<float>& unit, bool forward) {
  return has_lookup && (unit.hinges > 4 || (forward && rounds_down)) ? Steps(unit) : Steps();
}
Steps steps_for(const Unit<double>&, bool) { return Steps(); }

// + 0.0 turns a negative zero into a positive one, which torch.relu gives left of zero.
float entry(double value) { return std::isnan(value) ? std::numeric_limits<float>::quiet_NaN() : static_cast<float>(value) + 0.0f; }

// The intercept right of zero: one that keeps the sign of zeros, unless the slope turns it.
float first_or(float intercept, int cell, double slope) { return cell == 0 && slope >= 0 ? -0.0f : intercept; }

// Entry c is the cell from c steps on, for negative ones as well.
void tabulate_cells(Table& t, const Unit<float>& unit, int64_t group, const Steps& steps, bool few) {
  t.cells_per_unit = static_cast<float>(1 / steps.step), t.step_high = steps.high, t.step_low = steps.low;
  t.last = static_cast<float>((cells_a_side - 0.5) * steps.step);
  t.cells_per_unit_and_more = t.cells_per_unit * (1 + 4 * std::numeric_limits<float>::epsilon());
  double right = 0, left = 0, right_at = 0, left_at = 0;
  for (int cell = 0, s = 0; cell < (few ? few_cells_a_side : cells_a_side); ++cell) {
    t.inner_slopes.set(cell, entry(right), false), t.inner_slopes.set(-1 - cell, entry(left), false);  // none at zero
    for (; s < unit.hinges && steps.number[s] <= cell; ++s) {
      const double p = unit.pos[s * unit.groups + group], n = unit.neg[s * unit.groups + group];
      right += p, right_at -= p * unit.at[s], left -= n, left_at -= n * unit.at[s];
      t.inner_hinges.set(cell, unit.at[s], false), t.inner_hinges.set(-1 - cell, unit.at[s], false);
    }
    t.slopes.set(cell, entry(right), few), t.intercepts.set(cell, first_or(entry(right_at), cell, right), few);
    t.slopes.set(-1 - cell, entry(left), few), t.intercepts.set(-1 - cell, entry(left_at), few);
  }
}

// Entry j is the cell that begins at the j-th place on the right, and counted from the end, on the left.
void tabulate_wholes(Table& t, const Unit<float>& unit, int64_t group) {
  const WholeCells cells(unit);
  t.slope = t.intercept = Vec<float>{};  // not all of the table: it is long, and calls are short
  t.last = std::nextafter(cells.limit, 0.f), t.cells_per_unit = cells.broken > 0 ? 0.5f / cells.broken : 0;
  double right = 0, left = 0, right_at = 0, left_at = 0;
  for (int cell = 0, s = 0; cell < 4; ++cell) {
    for (; s < unit.hinges && unit.at[s] <= cells.begin(cell); ++s) {
      const double p = unit.pos[s * unit.groups + group], n = unit.neg[s * unit.groups + group];
      right += p, right_at -= p * unit.at[s], left -= n, left_at -= n * unit.at[s];
    }
    const int mirrored = lanes<float>::count - 1 - cell;
    t.slope[cell] = entry(right), t.intercept[cell] = first_or(entry(right_at), cell, right);
    t.slope[mirrored] = entry(left), t.intercept[mirrored] = entry(left_at);
  }
}

void tabulate(Table& t, const Unit<float>& unit, int64_t group, const Steps& steps, Finder finder) {
  constexpr int W = lanes<float>::count;
  if (is_wholes(finder)) return tabulate_wholes(t, unit, group);
  t = Table{};
  if (is_cells(finder) || is_steps(finder)) return tabulate_cells(t, unit, group, steps, is_few(finder));
  const float cells = finder == Finder::grid ? cells_per_unit(unit) : 0;
  t.cells_per_unit = cells, t.last = unit.at[unit.hinges - 1] * cells + 1;
  const int period = unit.hinges <= 4 ? 4 : 8, entries = finder == Finder::grid ? static_cast<int>(t.last) : period;
  double right = 0, left = 0, right_at = 0, left_at = 0;  // slopes on the way out, and intercepts
  for (int j = 1, s = 0; j <= entries; ++j) {
    for (; s < unit.hinges && (finder == Finder::grid ? unit.at[s] * cells < j : s < j); ++s) {
      const double p = unit.pos[s * unit.groups + group], n = unit.neg[s * unit.groups + group];
      right += p, right_at -= p * unit.at[s], left -= n, left_at -= n * unit.at[s];
    }
    const int first = finder == Finder::grid ? j : (period + 1 - j) % period, step = finder == Finder::grid ? W : period;
    for (int to = first; to < W; to += step) {
      t.slope[to] = entry(right), t.intercept[to] = entry(right_at);
      t.slope_neg[to] = entry(left), t.intercept_neg[to] = entry(left_at);
    }
  }
}
void tabulate(Table&, const Unit<double>&, int64_t, const Steps&, Finder) {}

// values[first], values[first + step], ..., starting again at 0 after `count`.
template <class C>
SPLASH_INLINE Vec<C> spread(const C* values, int64_t first, int64_t step, int64_t count) {
  if (step == 0) return all<C>(values[first]);
  if (first + lanes<C>::count <= count) return stored<C>::load(values + first);
  Vec<C> v;
  for (int lane = 0; lane < lanes<C>::count; ++lane, first = first + 1 == count ? 0 : first + 1) v[lane] = values[first];
  return v;
}

// Values of all channels so often that they fill a line: in their own place where they do.
template <class C>
class Repeated {
 public:
  Repeated(int64_t channels, int64_t width, int64_t rows) : channels_(channels), width_(width), room_(channels < width ? rows * width : 0) {}
  const C* operator()(const C* values) {
    if (channels_ == width_) return values;
    C* const row = room_.data() + used_;
    for (int64_t i = 0; i < width_; i += channels_) std::copy_n(values, channels_, row + i);
    used_ += width_;
    return row;
  }

 private:
  int64_t channels_, width_, used_ = 0;
  Room<C, 1> room_;
};

// Parameters of the vectors of channels that a walk meets. Vector v has channels first(v), first(v) + step, ... in
// its lanes: step 0 for a row of one channel, 1 for columns. A line has all of them at once.
template <class C>
class Parameters {
  static constexpr int W = lanes<C>::count;

 public:
  // `padded` is the number of hinges strips were compiled for; the surplus never bends anything.
  Parameters(const Unit<C>& unit, const Norm<C>* norm, bool forward, int padded, const Walk<C>& walk)
      : in_line_(walk.way == Walk<C>::lines),
        own_(unit.groups > 1),
        steps_(own_ && walk.step ? Steps() : steps_for(unit, forward)),
        at_(padded),
        slopes_(own_ && in_line_ && in_place(unit, padded, walk) ? 0 : 2 * padded * (own_ ? W * walk.vectors : W)),
        tables_(own_ && walk.step ? 0 : own_ ? walk.vectors : 1),
        lanes_(in_line_ ? 2 : walk.vectors),
        repeated_(walk.e.channels, walk.by_line.width, in_line_ && norm ? 6 : 0) {
    std::fill(std::copy_n(unit.at, unit.hinges, at_.data()), at_.data() + padded, std::numeric_limits<C>::infinity());
    if (in_line_) set_line(unit, norm, forward, padded, walk);
    else set_vectors(unit, norm, forward, padded, walk);
  }
  // A shape that all channels share, alone.
  Parameters(const Unit<C>& unit, bool forward, int padded)
      : Parameters(unit, nullptr, forward, padded, Walk<C>({1, 1, W}, sizeof(C), true, false, forward, longest_strip, piece, worth_sharing)) {}
  // On a line: of its first vector, or of the one that its ragged end fills.
  const Lanes<C>& operator[](int64_t v) const { return lanes_[in_line_ ? v > 0 : v]; }

 private:
  void set_vectors(const Unit<C>& unit, const Norm<C>* norm, bool forward, int padded, const Walk<C>& walk) {
    for (int64_t v = 0; v < walk.vectors; ++v) {
      Lanes<C>& p = lanes_[v];
      const int64_t first = v * walk.stride % walk.e.channels;
      if (norm) {
        const auto of = [&](const C* values) { return values ? spread(values, first, walk.step, walk.e.channels) : Vec<C>{}; };
        p.scale = of(norm->scale), p.shift = of(norm->shift), p.mean = of(norm->mean);
        p.from_grad = of(norm->from_grad), p.from_x = of(norm->from_x), p.constant = of(norm->constant);
      } else {
        p.scale = p.shift = p.mean = p.from_grad = p.from_x = p.constant = Vec<C>{};
      }
      if (own_ || v == 0) set_shape(p, unit, forward, padded, own_ ? v : 0, own_ ? first : 0, own_ ? walk.step : 0);
      else static_cast<Shape<C>&>(p) = lanes_[0];
    }
  }

  // The `index`-th shape, whose lanes have the slopes of groups first, first + step, ...
  void set_shape(Shape<C>& p, const Unit<C>& unit, bool forward, int padded, int64_t index, int64_t first, int64_t step) {
    C *pos = slopes_.data() + 2 * padded * W * index, *neg = pos + padded * W;
    for (int s = 0; s < unit.hinges; ++s) {
      stored<C>::store(pos + s * W, spread(unit.pos + s * unit.groups, first, step, unit.groups));
      stored<C>::store(neg + s * W, spread(unit.neg + s * unit.groups, first, step, unit.groups));
    }
    std::fill(pos + unit.hinges * W, neg, C(0)), std::fill(neg + unit.hinges * W, neg + padded * W, C(0));
    // Lanes that differ in their slopes have no table in common.
    p = {padded, at_.data(), {pos, W}, {neg, W}, step ? Finder::compare : finder_for(unit, index, forward, padded, steps_), nullptr};
    if (p.finder == Finder::compare) return;
    p.table = &tables_[index];
    tabulate(tables_[index], unit, index, steps_, p.finder);
  }

  void set_line(const Unit<C>& unit, const Norm<C>* norm, bool forward, int padded, const Walk<C>& walk) {
    Lanes<C>& p = lanes_[0];
    if (!own_) set_shape(p, unit, forward, padded, 0, 0, 0);
    else set_own_shapes(p, unit, padded, walk);
    if (norm) {
      const C* const scale = repeated_(norm->scale);
      const auto of = [&](const C* values) { return values ? repeated_(values) : scale; };  // what nobody uses can be read all the same
      p.line = {scale, of(norm->shift), of(norm->mean), of(norm->from_grad), of(norm->from_x), of(norm->constant)};
    }
    p.line_vectors = walk.vectors;
    const int64_t ragged = walk.e.size() % walk.by_line.width / W;
    Lanes<C>& last = lanes_[1] = p;
    if (own_) last.pos = p.pos.beyond(ragged), last.neg = p.neg.beyond(ragged);
    if (norm) last.line = p.line.beyond(ragged);
  }

  void set_own_shapes(Shape<C>& p, const Unit<C>& unit, int padded, const Walk<C>& walk) {
    const int64_t width = walk.by_line.width;
    p = {padded, at_.data(), {unit.pos, unit.groups}, {unit.neg, unit.groups}, Finder::compare, nullptr};
    if (in_place(unit, padded, walk)) return;
    C *pos = slopes_.data(), *neg = pos + padded * width;
    for (int s = 0; s < unit.hinges; ++s)
      for (int64_t i = 0; i < width; i += unit.groups) {
        std::copy_n(unit.pos + s * unit.groups, unit.groups, pos + s * width + i);
        std::copy_n(unit.neg + s * unit.groups, unit.groups, neg + s * width + i);
      }
    std::fill(pos + unit.hinges * width, neg, C(0)), std::fill(neg + unit.hinges * width, neg + padded * width, C(0));
    p.pos = {pos, width}, p.neg = {neg, width};
  }

  // Whether slopes of a line's own can be read where they are.
  static bool in_place(const Unit<C>& unit, int padded, const Walk<C>& walk) {
    return walk.by_line.width == unit.groups && padded == unit.hinges;
  }

  bool in_line_, own_;
  const Steps steps_;
  Room<C, 8> at_;
  Room<C, 16 * W> slopes_;
  Room<Table, 1> tables_;
  Room<Lanes<C>, 2> lanes_;
  Repeated<C> repeated_;
};

}  // namespace
}  // namespace splash_units
