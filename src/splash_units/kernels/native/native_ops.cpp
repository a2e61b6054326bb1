// The CPU kernel as torch operators, with their gradients.
//
// Autograd lives here, in C++, and not in Python: a Python autograd.Function costs some 40 microseconds
// a call, more than all the arithmetic of an MLP's activation. torch's stable headers, which the kernel
// itself is built on, have no word for a graph node, hence the full ones; they cost the compile time.
//
// Saved for backward: x, the slopes and the hinges; with batch norm also four numbers a channel and copies of slopes and hinges.

#include <ATen/TensorSubclassLikeUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "native.h"
#include "operators.h"
#include "tensors.h"

namespace splash_units {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// What the graph nodes below would leave out without a word; the plain equation has it.
void check_derivatives(const Tensor& hinges, std::initializer_list<const Tensor*> others) {
  TORCH_CHECK_VALUE(!torch::autograd::compute_requires_grad(hinges), "splash: the CPU kernel has no derivative by the hinges, which require a gradient");
  const auto has_tangent = [](const Tensor& t) { return t.defined() && t._fw_grad(0).defined(); };
  bool any = has_tangent(hinges);
  for (const Tensor* t : others) any = any || has_tangent(*t);
  TORCH_CHECK_VALUE(!any, "splash: the CPU kernel has no forward-mode derivative");
}

// --- the unit ----------------------------------------------------------------------------------------------

Tensor splash(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges, int64_t trailing, double) {
  const View view = view_of(x, checked(x, a_pos, a_neg, hinges, trailing));
  const HeldUnit unit(x, a_pos, a_neg, hinges);
  Tensor y = result_like(view, x);
  with_type(x, [&](auto type) {
    using T = decltype(type);
    forward<T>(read<T>(*view.x), write<T>(y), view.extent, unit.as<compute_t<T>>(), nullptr);
  });
  return y;
}

Tensor as_gradient(const std::vector<double>& sums, at::IntArrayRef shape, at::ScalarType type, double scale) {
  const auto wide = type == at::kDouble ? at::kDouble : at::kFloat;
  Tensor g = at::detail::empty_cpu(shape, wide);
  auto fill = [&](auto* out) { for (size_t i = 0; i < sums.size(); ++i) out[i] = sums[i] * scale; };
  if (wide == at::kDouble) fill(g.mutable_data_ptr<double>());
  else fill(g.mutable_data_ptr<float>());
  return wide == type ? g : g.to(type);
}
Tensor as_gradient(const std::vector<double>& sums, const Tensor& a, double scale) { return as_gradient(sums, a.sizes(), a.scalar_type(), scale); }

std::tuple<Tensor, Tensor, Tensor> splash_backward(const Tensor& grad, const Tensor& x, const Tensor& a_pos, const Tensor& a_neg,
                                                   const Tensor& hinges, int64_t trailing, double grad_scale) {
  const View view = view_of(x, checked(x, a_pos, a_neg, hinges, trailing));
  const HeldUnit unit(x, a_pos, a_neg, hinges);
  const Held g = like(grad, *view.x);
  Tensor dx = result_like(view, x);
  std::vector<double> pos(a_pos.numel()), neg(a_neg.numel());
  const Sums sums{pos.data(), neg.data(), nullptr, nullptr};
  with_type(x, [&](auto type) {
    using T = decltype(type);
    backward<T>(read<T>(*view.x), read<T>(*g), write<T>(dx), view.extent, unit.as<compute_t<T>>(), nullptr, &sums);
  });
  return {dx, as_gradient(pos, a_pos, grad_scale), as_gradient(neg, a_neg, grad_scale)};
}

// A graph node of its own, as torch's operators have, and not torch::autograd::Function, which spends
// some 20 microseconds more on a forward and backward.
struct SplashBackward : torch::autograd::Node {
  SavedVariable x, a_pos, a_neg, hinges;
  int64_t trailing;
  double grad_scale;

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return variable_list(3);
    const Tensor x_ = x.unpack(), pos = a_pos.unpack(), neg = a_neg.unpack(), at = hinges.unpack();
    auto [dx, d_pos, d_neg] = at::GradMode::is_enabled()  // a second derivative was asked for
                                  ? operators::call<operators::DifferentiableBackward>(grads[0], x_, pos, neg, at, trailing, grad_scale)
                                  : operators::call<operators::SplashBackward>(grads[0], x_, pos, neg, at, trailing, grad_scale);
    return {dx, d_pos, d_neg};
  }
  std::string name() const override { return "SplashBackward"; }
  void release_variables() override {
    for (SavedVariable* saved : {&x, &a_pos, &a_neg, &hinges}) saved->reset_data();
  }
};

Tensor below_autograd(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges, int64_t trailing, double grad_scale) {
  at::AutoDispatchBelowADInplaceOrView guard;
  return operators::call<operators::Splash>(x, a_pos, a_neg, hinges, trailing, grad_scale);
}

Tensor splash_autograd(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges, int64_t trailing, double grad_scale) {
  check_derivatives(hinges, {&x, &a_pos, &a_neg});
  Tensor y = below_autograd(x, a_pos, a_neg, hinges, trailing, grad_scale);  // before anything is saved: it may refuse
  if (!torch::autograd::compute_requires_grad(x, a_pos, a_neg)) return y;
  auto node = c10::make_intrusive<SplashBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(x, a_pos, a_neg));
  node->x = SavedVariable(x, false), node->a_pos = SavedVariable(a_pos, false);
  node->a_neg = SavedVariable(a_neg, false), node->hinges = SavedVariable(hinges, false);
  node->trailing = trailing, node->grad_scale = grad_scale;
  torch::autograd::set_history(y, node);
  return y;
}

// Also where a stray meta parameter brings a call on an ordinary x.
void on_one_device(const Tensor& x, std::initializer_list<const Tensor*> others) {
  for (const Tensor* t : others)
    TORCH_CHECK_VALUE(t->device() == x.device(), "splash: x is on ", x.device(), ", a parameter on ", t->device());
}

// What result_like gives, for tensors without memory. Slopes that are refused are so when there is some.
Tensor result_meta(const Tensor& x, const optional<Own>& own) {
  return own && walks(x, *own) ? at::empty_like(x) : at::empty_like(x, at::MemoryFormat::Contiguous);
}

Tensor splash_meta(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges, int64_t trailing, double) {
  on_one_device(x, {&a_pos, &a_neg, &hinges});
  return result_meta(x, own_dimensions(x.sym_sizes(), a_pos.sym_sizes(), trailing));
}

std::tuple<Tensor, Tensor, Tensor> splash_backward_meta(const Tensor&, const Tensor& x, const Tensor& a_pos, const Tensor& a_neg,
                                                        const Tensor& hinges, int64_t trailing, double) {
  return {splash_meta(x, a_pos, a_neg, hinges, trailing, 1.0), at::empty_like(a_pos, at::MemoryFormat::Contiguous),
          at::empty_like(a_neg, at::MemoryFormat::Contiguous)};
}

// --- batch norm and the unit in one ------------------------------------------------------------------------

bool is_there(const optional<Tensor>& t) { return t.has_value() && t->defined(); }

// An optional parameter of each channel in the type of the computation.
Held held(const optional<Tensor>& t, at::ScalarType type) {
  return is_there(t) ? contiguous_as(type, *t) : Held::owned(Tensor());
}
template <class C>
const C* read_if_defined(const Held& t) { return t->defined() ? t->const_data_ptr<C>() : nullptr; }

// running <- (1 - momentum) running + momentum factor now, in running's own precision as nn.BatchNorm2d does it.
void follow(const Tensor& running, const double* now, int64_t channels, double factor, double momentum) {
  if (running.scalar_type() == at::kFloat && running.is_contiguous()) {
    float* r = running.mutable_data_ptr<float>();
    for (int64_t c = 0; c < channels; ++c)
      r[c] = static_cast<float>(momentum) * static_cast<float>(now[c] * factor) + (1 - static_cast<float>(momentum)) * r[c];
  } else {
    const Tensor batch = at::empty({channels}, running.options().dtype(at::kDouble));
    std::transform(now, now + channels, batch.mutable_data_ptr<double>(), [&](double v) { return v * factor; });
    running.detach().mul_(1 - momentum).add_(batch.to(running.scalar_type()), momentum);
  }
  running.unsafeGetTensorImpl()->bump_version();
}

constexpr Own by_channel{1, 2};

// (N, C, ...) with slopes shared by the layer (1-D) or a channel (2-D).
View normalised_view(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges) {
  check_unit(x, a_pos, a_neg, hinges);
  TORCH_CHECK_VALUE(x.dim() >= 2 && x.numel() > 0, "batch_norm_splash: x must have a batch and a channel dimension and not be empty, got shape ",
                    x.sizes());
  TORCH_CHECK_VALUE(a_pos.dim() == 1 || (a_pos.dim() == 2 && a_pos.size(1) == x.size(1)),
                    "batch_norm_splash: slopes of shape ", a_pos.sizes(), " for ", x.size(1), " channels");
  return view_of(x, by_channel);
}

// Before anything is changed: the kernel reads and writes as far as there are channels.
void check_channels(const Tensor& x, std::initializer_list<const optional<Tensor>*> per_channel) {
  for (const optional<Tensor>* t : per_channel)
    TORCH_CHECK_VALUE(!is_there(*t) || ((*t)->device().is_cpu() && (*t)->dim() == 1 && (*t)->size(0) == x.size(1)),
                      "batch_norm_splash: what each of ", x.size(1), " channels has one of must be a vector of as many on the CPU, got shape ",
                      (*t)->sizes());
}

// What the backward needs beside x, one after the other, in the type of the computation. One tensor: to save one and to hand it
// on, which a compiled graph does in Python, takes as long as some of a small layer's arithmetic.
template <class C>
struct Kept {
  C *mean, *inverse_std, *scale, *shift, *at, *pos, *neg;

  Kept(C* memory, int64_t channels, int64_t hinges, int64_t groups)
      : mean(memory), inverse_std(mean + channels), scale(inverse_std + channels), shift(scale + channels), at(shift + channels),
        pos(at + hinges), neg(pos + hinges * groups) {}
};
template <class Size>
Size kept_numbers(const Size& channels, const Size& hinges, const Size& groups) { return channels * 4 + hinges * (groups * 2 + 1); }

// y, and what the backward needs.
std::tuple<Tensor, Tensor> batch_norm_splash(const Tensor& x, const optional<Tensor>& weight, const optional<Tensor>& bias,
                                                     const optional<Tensor>& running_mean, const optional<Tensor>& running_var,
                                                     const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges,
                                                     bool training, double momentum, double eps, double) {
  const View view = normalised_view(x, a_pos, a_neg, hinges);
  check_channels(x, {&weight, &bias, &running_mean, &running_var});
  const int64_t channels = view.extent.channels;
  const double count = static_cast<double>(view.extent.outer * view.extent.inner);
  TORCH_CHECK_VALUE(is_there(running_mean) == is_there(running_var), "batch_norm_splash: running statistics are a mean and a variance, or neither");
  TORCH_CHECK_VALUE(training || is_there(running_mean), "batch_norm_splash: evaluation needs running statistics");
  TORCH_CHECK_VALUE(!training || count > 1, "batch_norm_splash: training needs more than one value a channel, got shape ", x.sizes());
  const auto type = compute_dtype(x);
  const HeldUnit unit(x, a_pos, a_neg, hinges);
  const Held w = held(weight, type), b = held(bias, type);
  Tensor y = result_like(view, x);
  const int64_t number = hinges.numel(), groups = a_pos.numel() / number;
  Tensor kept = at::detail::empty_cpu({kept_numbers(channels, number, groups)}, type);
  std::vector<double> moments_of(2 * channels);
  double *mean = moments_of.data(), *variance = mean + channels;
  if (!training) {
    const Held kept_mean = held(running_mean, at::kDouble), kept_var = held(running_var, at::kDouble);
    std::copy_n(kept_mean->const_data_ptr<double>(), channels, mean), std::copy_n(kept_var->const_data_ptr<double>(), channels, variance);
  }
  with_type(x, [&](auto sample) {
    using T = decltype(sample);
    using C = compute_t<T>;
    const Kept<C> keep(kept.mutable_data_ptr<C>(), channels, number, groups);
    const Unit<C> own = unit.as<C>();
    std::copy_n(own.at, number, keep.at), std::copy_n(own.pos, number * groups, keep.pos), std::copy_n(own.neg, number * groups, keep.neg);
    const ByBatch<C> by_batch{mean, variance, eps, read_if_defined<C>(w), read_if_defined<C>(b), keep.mean, keep.inverse_std, keep.scale, keep.shift};
    if (training) return forward_by_batch<T>(read<T>(*view.x), write<T>(y), view.extent, own, by_batch);
    normalise<C>(channels, by_batch);
    const Norm<C> norm{keep.scale, keep.shift};
    forward<T>(read<T>(*view.x), write<T>(y), view.extent, own, &norm);
  });
  if (training && is_there(running_mean)) {
    follow(*running_mean, mean, channels, 1.0, momentum);
    follow(*running_var, variance, channels, count / (count - 1), momentum);
  }
  return {y, kept};
}

// Gradients of all but x, one after the other, in the type of the computation. One tensor for the same reason as above. The
// first is that of what was added to all numbers of a channel in front of the batch norm, as a linear layer's bias is: where
// the batch's own statistics move with it, it is zero, but for a NaN.
template <class Size>
struct Learned {
  Size before, weight, bias, pos, neg, count;  // where each begins, and where all end

  Learned(const Size& channels, const Size& hinges, const Size& groups)
      : before(0), weight(channels), bias(channels * 2), pos(channels * 3), neg(pos + hinges * groups), count(neg + hinges * groups) {}
};

// Gradients of x and of all else.
std::tuple<Tensor, Tensor> batch_norm_splash_backward(const Tensor& grad, const Tensor& x, const Tensor& kept, int64_t hinges, bool own_slopes,
                                                      bool training, double grad_scale) {
  TORCH_CHECK_VALUE(x.dim() >= 2 && x.numel() > 0 && hinges > 0 && hinges <= most_hinges,
                    "batch_norm_splash_backward: x of shape ", x.sizes(), " and ", hinges, " hinges");
  const View view = view_of(x, by_channel);
  const int64_t channels = view.extent.channels, groups = own_slopes ? channels : 1;
  const auto type = compute_dtype(x);
  TORCH_CHECK_VALUE(kept.device().is_cpu() && kept.scalar_type() == type && kept.is_contiguous() && kept.numel() == kept_numbers(channels, hinges, groups),
                    "batch_norm_splash_backward: what the forward kept of ", channels, " channels is a vector of ", kept_numbers(channels, hinges, groups),
                    ", got shape ", kept.sizes());
  // Statistics that were not the batch's own are those of infinitely many numbers: none moves them.
  const double count = training ? static_cast<double>(view.extent.outer * view.extent.inner) : INFINITY;
  const Held g = like(grad, *view.x);
  Tensor dx = result_like(view, x);
  const Learned<int64_t> at(channels, hinges, groups);
  Tensor learned = at::detail::empty_cpu({at.count}, type);
  std::vector<double> sums_of(at.count);
  double *dz = sums_of.data() + at.bias, *dz_x = sums_of.data() + at.weight, *pos = sums_of.data() + at.pos, *neg = sums_of.data() + at.neg;
  const Sums sums{pos, neg, dz, dz_x};
  with_type(x, [&](auto sample) {
    using T = decltype(sample);
    using C = compute_t<T>;
    const Kept<const C> keep(kept.const_data_ptr<C>(), channels, hinges, groups);
    const Unit<C> unit{static_cast<int>(hinges), groups, keep.at, keep.pos, keep.neg};
    std::vector<C> coefficients(2 * channels);
    C *from_x = coefficients.data(), *constant = from_x + channels;
    const Norm<C> norm{keep.scale, keep.shift, keep.mean};
    backward_by_batch<T>(read<T>(*view.x), read<T>(*g), write<T>(dx), view.extent, unit, norm, {count, keep.inverse_std, from_x, constant}, sums);
    C* const out = learned.mutable_data_ptr<C>();
    for (int64_t c = 0; c < channels; ++c) {
      const double before = keep.scale[c] * dz[c];
      out[at.before + c] = training ? 0 * (before + from_x[c] + constant[c]) : before;
      out[at.weight + c] = dz_x[c] * keep.inverse_std[c];
      out[at.bias + c] = dz[c];
    }
    for (int64_t i = at.pos; i < at.count; ++i) out[i] = sums_of[i] * grad_scale;
  });
  return {dx, learned};
}

// Some of `learned`, from one place on: memory that no other gradient has, in a storage that all have. Every operation on tensors that torch would do for it takes as long as a hundred
// numbers of a layer's arithmetic; tracers, which want to see them, get them.
Tensor some_of(const Tensor& learned, const c10::SymInt& from, c10::SymIntArrayRef shape) {
  if (at::isTensorSubclassLike(learned)) return learned.narrow_symint(0, from, c10::multiply_integers(shape)).view_symint(shape);
  Tensor some = at::detail::make_tensor<c10::TensorImpl>(c10::TensorImpl::VIEW, c10::Storage(learned.storage()), learned.key_set(), learned.dtype());
  some.unsafeGetTensorImpl()->set_storage_offset(from.expect_int());
  some.unsafeGetTensorImpl()->set_sizes_contiguous(c10::asIntArrayRefSlow(shape, __FILE__, __LINE__));
  return some;
}

struct BatchNormSplashBackward : torch::autograd::Node {
  SavedVariable x, kept;
  SavedVariable weight, bias, a_pos, a_neg, hinges;  // for a second derivative
  c10::SymInt number;
  bool has_weight, has_bias, own_slopes, training;
  double eps, grad_scale;

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return variable_list(5);
    const Tensor x_ = x.unpack(), kept_ = kept.unpack();
    auto [dx, dw, db, d_pos, d_neg] = at::GradMode::is_enabled() ? differentiable(grads[0], x_, kept_) : gradients(grads[0], x_, kept_);
    return {dx, has_weight ? dw : Tensor(), has_bias ? db : Tensor(), d_pos, d_neg};
  }
  std::string name() const override { return "BatchNormSplashBackward"; }
  void release_variables() override {
    for (SavedVariable* saved : {&x, &kept, &weight, &bias, &a_pos, &a_neg, &hinges}) saved->reset_data();
  }

 private:
  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> gradients(const Tensor& grad, const Tensor& x_, const Tensor& kept_) {
    const auto [dx, learned] = operators::call<operators::BatchNormSplashBackward>(grad, x_, kept_, number, own_slopes, training, grad_scale);
    const c10::SymInt channels = x_.sym_size(1), slopes[] = {number, channels};
    const c10::SymIntArrayRef of_channels(channels), of_slopes(slopes, own_slopes ? 2 : 1);
    const Learned<c10::SymInt> at(channels, number, own_slopes ? channels : c10::SymInt(1));
    return {dx, some_of(learned, at.weight, of_channels), some_of(learned, at.bias, of_channels), some_of(learned, at.pos, of_slopes),
            some_of(learned, at.neg, of_slopes)};
  }
  std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> differentiable(const Tensor& grad, const Tensor& x_, const Tensor& kept_) {
    const auto if_saved = [](bool was, const SavedVariable& saved) { return was ? optional<Tensor>(saved.unpack()) : std::nullopt; };
    const c10::SymInt channels = x_.sym_size(1);
    const Tensor statistics = kept_.narrow_symint(0, 0, channels * 2).view_symint({2, channels});
    return operators::call<operators::DifferentiableBatchNormBackward>(grad, x_, if_saved(has_weight, weight), if_saved(has_bias, bias), statistics,
                                                                       a_pos.unpack(), a_neg.unpack(), hinges.unpack(), training, eps, grad_scale);
  }
};

std::tuple<Tensor, Tensor> batch_norm_splash_autograd(
    const Tensor& x, const optional<Tensor>& weight, const optional<Tensor>& bias, const optional<Tensor>& running_mean,
    const optional<Tensor>& running_var, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges, bool training, double momentum,
    double eps, double grad_scale) {
  const Tensor none, &w = weight.has_value() ? *weight : none, &b = bias.has_value() ? *bias : none;
  check_derivatives(hinges, {&x, &w, &b, &a_pos, &a_neg});
  auto [y, kept] = [&] {  // before anything is saved: it may refuse
    at::AutoDispatchBelowADInplaceOrView guard;
    return operators::call<operators::BatchNormSplash>(x, weight, bias, running_mean, running_var, a_pos, a_neg, hinges, training, momentum, eps, grad_scale);
  }();
  if (!torch::autograd::compute_requires_grad(x, w, b, a_pos, a_neg)) return {y, kept};
  auto node = c10::make_intrusive<BatchNormSplashBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(x, w, b, a_pos, a_neg));
  node->x = SavedVariable(x, false), node->kept = SavedVariable(kept, false), node->hinges = SavedVariable(hinges, false);
  node->a_pos = SavedVariable(a_pos, false), node->a_neg = SavedVariable(a_neg, false);
  node->has_weight = w.defined(), node->has_bias = b.defined();
  if (w.defined()) node->weight = SavedVariable(w, false);
  if (b.defined()) node->bias = SavedVariable(b, false);
  node->number = hinges.sym_numel(), node->own_slopes = a_pos.dim() > 1;
  node->training = training, node->eps = eps, node->grad_scale = grad_scale;
  torch::autograd::set_history(y, node);
  return {y, kept};
}

std::tuple<Tensor, Tensor> batch_norm_splash_meta(const Tensor& x, const optional<Tensor>&, const optional<Tensor>&,
                                                          const optional<Tensor>&, const optional<Tensor>&, const Tensor& a_pos,
                                                          const Tensor& a_neg, const Tensor& hinges, bool, double, double, double) {
  on_one_device(x, {&a_pos, &a_neg, &hinges});
  const c10::SymInt numbers = kept_numbers(x.sym_size(1), hinges.sym_numel(), a_pos.dim() > 1 ? x.sym_size(1) : c10::SymInt(1));
  return {result_meta(x, by_channel), at::empty_symint({numbers}, x.options().dtype(compute_dtype(x)))};
}

std::tuple<Tensor, Tensor> batch_norm_splash_backward_meta(const Tensor&, const Tensor& x, const Tensor& kept, c10::SymInt hinges, bool own_slopes, bool,
                                                           double) {
  const c10::SymInt channels = x.sym_size(1);
  const Learned<c10::SymInt> at(channels, hinges, own_slopes ? channels : c10::SymInt(1));
  return {result_meta(x, by_channel), at::empty_symint({at.count}, kept.options())};
}

}  // namespace

TORCH_LIBRARY(splash_units, m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag, at::Tag::flexible_layout};
  m.def("splash(Tensor x, Tensor a_pos, Tensor a_neg, Tensor hinges, int trailing=0, float grad_scale=1.0) -> Tensor", tags);
  m.def("splash_backward(Tensor grad, Tensor x, Tensor a_pos, Tensor a_neg, Tensor hinges, int trailing=0, "
        "float grad_scale=1.0) -> (Tensor, Tensor, Tensor)", tags);
  m.def("differentiable_backward(Tensor grad, Tensor x, Tensor a_pos, Tensor a_neg, Tensor hinges, int trailing, "
        "float grad_scale) -> (Tensor, Tensor, Tensor)", tags);
  m.def("batch_norm_splash(Tensor x, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor a_pos, "
        "Tensor a_neg, Tensor hinges, bool training, float momentum, float eps, float grad_scale=1.0) -> (Tensor, Tensor)", tags);
  m.def("batch_norm_splash_backward(Tensor grad, Tensor x, Tensor kept, SymInt hinges, bool own_slopes, bool training, "
        "float grad_scale=1.0) -> (Tensor, Tensor)", tags);
  m.def("differentiable_batch_norm_backward(Tensor grad, Tensor x, Tensor? weight, Tensor? bias, Tensor statistics, "
        "Tensor a_pos, Tensor a_neg, Tensor hinges, bool training, float eps, float grad_scale) "
        "-> (Tensor, Tensor, Tensor, Tensor, Tensor)", tags);
  m.def("instruction_set() -> str", [] { return std::string(instruction_set()); });
}

TORCH_LIBRARY_IMPL(splash_units, CPU, m) {
  m.impl("splash", &splash);
  m.impl("splash_backward", &splash_backward);
  m.impl("batch_norm_splash", &batch_norm_splash);
  m.impl("batch_norm_splash_backward", &batch_norm_splash_backward);
}

TORCH_LIBRARY_IMPL(splash_units, Meta, m) {
  m.impl("splash", &splash_meta);
  m.impl("splash_backward", &splash_backward_meta);
  m.impl("batch_norm_splash", &batch_norm_splash_meta);
  m.impl("batch_norm_splash_backward", &batch_norm_splash_backward_meta);
}

TORCH_LIBRARY_IMPL(splash_units, Autograd, m) {
  m.impl("splash", &splash_autograd);
  m.impl("batch_norm_splash", &batch_norm_splash_autograd);
  // Gradients that are to be differentiated come from other operators; called by themselves, these give constants. What
  // torch does for operators that say nothing about it boxes all arguments.
  m.impl("splash_backward", torch::CppFunction::makeFallthrough());
  m.impl("batch_norm_splash_backward", torch::CppFunction::makeFallthrough());
}

}  // namespace splash_units
