// Tensors as the kernel sees them: dense memory, an extent, and parameters in the type computed in.
#pragma once

#include <ATen/ATen.h>
#include <ATen/EmptyTensor.h>
#include <c10/util/MaybeOwned.h>

#include <optional>

#include "native.h"

namespace splash_units {
namespace {

using at::Tensor;
using std::optional;

// A tensor, or one of the caller's. To count one more reference to a tensor that Python knows takes Python's lock,
// which for a handful of them costs as much as a small layer.
using Held = c10::MaybeOwned<Tensor>;

at::ScalarType compute_dtype(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

template <class F>
void with_type(const Tensor& x, const F& f) {
  switch (x.scalar_type()) {
    case at::kFloat: return f(float{});
    case at::kDouble: return f(double{});
    case at::kBFloat16: return f(bfloat16{});
    case at::kHalf: return f(float16{});
    default: TORCH_CHECK_TYPE(false, "splash: unsupported dtype ", x.scalar_type());
  }
}

template <class Size>
Size product(c10::ArrayRef<Size> sizes, int64_t first, int64_t last) {
  Size n = 1;
  for (int64_t d = first; d < last; ++d) n *= sizes[d];
  return n;
}

// The slopes' own dimensions, as they stand against those of x: dimensions [first, last) of x.
struct Own {
  int64_t first = 0, last = 0;
  bool one_group() const { return first == last; }
};

// Where slopes of shape (hinges, own...) with `trailing` dimensions of x to their right belong. The
// kernel serves one run of whole dimensions, which those where x has one element do not part; nullopt for anything else
// that broadcasts. Sizes are numbers, or what stands for them while a graph is traced.
template <class Size>
optional<Own> own_dimensions(c10::ArrayRef<Size> x, c10::ArrayRef<Size> a, int64_t trailing) {
  const auto count = static_cast<int64_t>(a.size()) - 1, offset = static_cast<int64_t>(x.size()) - trailing - count;
  if (offset < 0) return std::nullopt;
  Own own;
  for (int64_t d = 0; d < count; ++d) {
    if (a[d + 1] == 1) continue;
    if (a[d + 1] != x[offset + d]) return std::nullopt;
    if (own.one_group()) own.first = offset + d;
    else if (product(x, own.last, offset + d) != 1) return std::nullopt;
    own.last = offset + d + 1;
  }
  return own;
}

bool channels_last(const Tensor& x) {
  return (x.dim() == 4 && x.is_contiguous(at::MemoryFormat::ChannelsLast)) ||
         (x.dim() == 5 && x.is_contiguous(at::MemoryFormat::ChannelsLast3d));
}

// Whether the kernel can walk x where it lies, in the order of its memory.
bool walks(const Tensor& x, const Own& own) {
  if (own.one_group()) return x.is_non_overlapping_and_dense();
  return x.is_contiguous() || (own.first == 1 && own.last == 2 && channels_last(x));
}

template <class Word>
void turn_words(const Tensor& from, const Tensor& to, int64_t rows, int64_t columns) {
  turn_around(static_cast<const Word*>(from.const_data_ptr()), static_cast<Word*>(to.mutable_data_ptr()), from.size(0), rows, columns);
}

// from's numbers in the order that `to` has them in. Between the two usual ones torch would take several times as long.
Tensor copied(const Tensor& from, Tensor to) {
  const bool to_last = from.is_contiguous() && channels_last(to), from_last = channels_last(from) && to.is_contiguous();
  const bool is_walked = from.element_size() > 1;  // the others are refused, but later
  if (from.scalar_type() != to.scalar_type() || !(to_last || from_last) || !is_walked) {
    to.copy_(from);
    return to;
  }
  const int64_t channels = from.size(1), positions = product(from.sizes(), 2, from.dim());
  const int64_t rows = to_last ? channels : positions, columns = to_last ? positions : channels;
  switch (from.element_size()) {
    case 2: turn_words<uint16_t>(from, to, rows, columns); break;
    case 4: turn_words<uint32_t>(from, to, rows, columns); break;
    default: turn_words<uint64_t>(from, to, rows, columns);
  }
  return to;
}

// x in memory that the kernel can walk, and how: as it is where possible, else a contiguous copy.
struct View {
  Held x;
  Extent extent;
};

View view_of(const Tensor& x, const Own& own) {
  Held dense = walks(x, own) ? Held::borrowed(x) : Held::owned(copied(x, at::detail::empty_cpu(x.sizes(), x.scalar_type())));
  if (own.one_group()) return {std::move(dense), {1, 1, x.numel()}};
  const auto sizes = x.sizes();
  const int64_t channels = product(sizes, own.first, own.last);
  if (!dense->is_contiguous()) return {std::move(dense), {channels ? x.numel() / channels : 0, channels, 1}};
  return {std::move(dense), {product(sizes, 0, own.first), channels, product(sizes, own.last, x.dim())}};
}

// The gradient that arrives may have any strides, expanded ones too; the kernel walks it beside x.
Held like(const Tensor& grad, const Tensor& x) {
  TORCH_CHECK_VALUE(grad.sizes() == x.sizes(), "splash: a gradient of shape ", grad.sizes(), " for x of shape ", x.sizes());
  if (grad.strides() == x.strides() && grad.scalar_type() == x.scalar_type()) return Held::borrowed(grad);
  return Held::owned(copied(grad, at::detail::empty_strided_cpu(x.sizes(), x.strides(), x.scalar_type())));
}

// Without torch's dispatcher, which takes longer than the memory itself.
Tensor result_like(const View& view, const Tensor& x) {
  return at::detail::empty_strided_cpu(view.x->sizes(), view.x->strides(), x.scalar_type());
}

// As it is where possible: even conversions that change nothing take their time.
Held contiguous_as(at::ScalarType type, const Tensor& t) {
  return t.scalar_type() == type && t.is_contiguous() ? Held::borrowed(t) : Held::owned(t.to(type).contiguous());
}

// Slopes and hinges in the type of the computation, kept alive while the kernel reads them.
struct HeldUnit {
  Held at, pos, neg;
  HeldUnit(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges)
      : at(contiguous_as(compute_dtype(x), hinges)),
        pos(contiguous_as(compute_dtype(x), a_pos)),
        neg(contiguous_as(compute_dtype(x), a_neg)) {}
  template <class C>
  Unit<C> as() const {
    return {static_cast<int>(at->numel()), pos->numel() / at->numel(), at->const_data_ptr<C>(), pos->const_data_ptr<C>(),
            neg->const_data_ptr<C>()};
  }
};

template <class T> const T* read(const Tensor& t) { return static_cast<const T*>(t.const_data_ptr()); }
template <class T> T* write(const Tensor& t) { return static_cast<T*>(t.mutable_data_ptr()); }

// What the arithmetic relies on: strips keep sums of most_hinges at most.
void check_unit(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges) {
  TORCH_CHECK_VALUE(x.device().is_cpu() && a_pos.device().is_cpu() && a_neg.device().is_cpu() && hinges.device().is_cpu(),
                    "splash: the native kernel needs x, slopes and hinges on the CPU");
  TORCH_CHECK_TYPE(at::isFloatingType(x.scalar_type()) && at::isFloatingType(a_pos.scalar_type()) &&
                       at::isFloatingType(a_neg.scalar_type()) && at::isFloatingType(hinges.scalar_type()),
                   "splash: floating-point tensors are needed");
  TORCH_CHECK_VALUE(hinges.dim() == 1 && hinges.numel() > 0 && hinges.numel() <= most_hinges && a_pos.dim() >= 1 &&
                        a_pos.size(0) == hinges.numel() && a_pos.sizes() == a_neg.sizes(),
                    "splash: slopes must have one row for each of 1 to ", most_hinges, " hinges");
}

Own checked(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges, int64_t trailing) {
  check_unit(x, a_pos, a_neg, hinges);
  const auto own = own_dimensions(x.sizes(), a_pos.sizes(), trailing);
  TORCH_CHECK_VALUE(own.has_value(), "splash: slopes of shape ", a_pos.sizes(), " for x of shape ", x.sizes(),
                    " are no run of whole dimensions");
  return *own;
}

}  // namespace
}  // namespace splash_units
