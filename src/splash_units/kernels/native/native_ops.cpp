// The CPU kernel as torch operators, with their gradients.
//
// Autograd lives here, in C++, and not in Python: a Python autograd.Function costs some 40 microseconds
// a call, more than all the arithmetic of an MLP's activation. torch's stable headers, which the kernel
// itself is built on, have no word for a graph node, hence the full ones; they cost the compile time.
//
// Saved for backward: x, the slopes and the hinges; with batch norm also two numbers a channel.

#include <ATen/TensorUtils.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/saved_variable.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <tuple>
#include <vector>

#include "native.h"
#include "tensors.h"

namespace splash_units {
namespace {

using torch::autograd::SavedVariable;
using torch::autograd::variable_list;

// --- the unit ----------------------------------------------------------------------------------------------

Tensor splash(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges, int64_t trailing, double) {
  const View view = view_of(x, checked(x, a_pos, a_neg, hinges, trailing));
  const HeldUnit unit(x, a_pos, a_neg, hinges);
  Tensor y = result_like(view, x);
  with_type(x, [&](auto type) {
    using T = decltype(type);
    forward<T>(read<T>(view.x), write<T>(y), view.extent, unit.as<compute_t<T>>(), nullptr);
  });
  return y;
}

Tensor as_gradient(const std::vector<double>& sums, const Tensor& a, double scale) {
  const auto type = a.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  Tensor g = at::detail::empty_cpu(a.sizes(), type);
  auto fill = [&](auto* out) { for (size_t i = 0; i < sums.size(); ++i) out[i] = sums[i] * scale; };
  if (type == at::kDouble) fill(g.mutable_data_ptr<double>());
  else fill(g.mutable_data_ptr<float>());
  return contiguous_as(a.scalar_type(), g);
}

std::tuple<Tensor, Tensor, Tensor> splash_backward(const Tensor& grad, const Tensor& x, const Tensor& a_pos, const Tensor& a_neg,
                                                   const Tensor& hinges, int64_t trailing, double grad_scale) {
  const View view = view_of(x, checked(x, a_pos, a_neg, hinges, trailing));
  const HeldUnit unit(x, a_pos, a_neg, hinges);
  const Tensor g = like(grad, view.x);
  Tensor dx = result_like(view, x);
  std::vector<double> pos(a_pos.numel()), neg(a_neg.numel());
  const Sums sums{pos.data(), neg.data(), nullptr, nullptr};
  with_type(x, [&](auto type) {
    using T = decltype(type);
    backward<T>(read<T>(view.x), read<T>(g), write<T>(dx), view.extent, unit.as<compute_t<T>>(), nullptr, &sums);
  });
  return {dx, as_gradient(pos, a_pos, grad_scale), as_gradient(neg, a_neg, grad_scale)};
}

template <class F>
c10::TypedOperatorHandle<F> operator_named(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<F>();
}

// A second derivative was asked for: the plain equation's backward, which torch can differentiate again.
variable_list differentiable_backward(const Tensor& grad, const Tensor& x, const Tensor& a_pos, const Tensor& a_neg,
                                      const Tensor& hinges, int64_t trailing, double grad_scale) {
  static const auto op = operator_named<decltype(splash_backward)>("splash_units::differentiable_backward");
  auto [dx, d_pos, d_neg] = op.call(grad, x, a_pos, a_neg, hinges, trailing, grad_scale);
  return {dx, d_pos, d_neg};
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
    if (at::GradMode::is_enabled()) return differentiable_backward(grads[0], x_, pos, neg, at, trailing, grad_scale);
    static const auto op = operator_named<decltype(splash_backward)>("splash_units::splash_backward");
    auto [dx, d_pos, d_neg] = op.call(grads[0], x_, pos, neg, at, trailing, grad_scale);
    return {dx, d_pos, d_neg};
  }
  std::string name() const override { return "SplashBackward"; }
  void release_variables() override {
    for (SavedVariable* saved : {&x, &a_pos, &a_neg, &hinges}) saved->reset_data();
  }
};

Tensor below_autograd(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges, int64_t trailing, double grad_scale) {
  at::AutoDispatchBelowADInplaceOrView guard;
  static const auto op = operator_named<decltype(splash)>("splash_units::splash");
  return op.call(x, a_pos, a_neg, hinges, trailing, grad_scale);
}

Tensor splash_autograd(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges, int64_t trailing, double grad_scale) {
  if (!torch::autograd::compute_requires_grad(x, a_pos, a_neg)) return below_autograd(x, a_pos, a_neg, hinges, trailing, grad_scale);
  auto node = c10::make_intrusive<SplashBackward>();
  node->set_next_edges(torch::autograd::collect_next_edges(x, a_pos, a_neg));
  node->x = SavedVariable(x, false), node->a_pos = SavedVariable(a_pos, false);
  node->a_neg = SavedVariable(a_neg, false), node->hinges = SavedVariable(hinges, false);
  node->trailing = trailing, node->grad_scale = grad_scale;
  Tensor y = below_autograd(x, a_pos, a_neg, hinges, trailing, grad_scale);
  torch::autograd::set_history(y, node);
  return y;
}

// Also where a stray meta parameter brings a call on an ordinary x.
void on_one_device(const Tensor& x, std::initializer_list<const Tensor*> others) {
  for (const Tensor* t : others)
    TORCH_CHECK_VALUE(t->device() == x.device(), "splash: x is on ", x.device(), ", a parameter on ", t->device());
}

Tensor splash_meta(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges, int64_t, double) {
  on_one_device(x, {&a_pos, &a_neg, &hinges});
  return x.is_non_overlapping_and_dense() ? at::empty_like(x) : at::empty_like(x, at::MemoryFormat::Contiguous);
}

std::tuple<Tensor, Tensor, Tensor> splash_backward_meta(const Tensor&, const Tensor& x, const Tensor& a_pos, const Tensor& a_neg,
                                                        const Tensor& hinges, int64_t trailing, double) {
  return {splash_meta(x, a_pos, a_neg, hinges, trailing, 1.0), at::empty_like(a_pos, at::MemoryFormat::Contiguous),
          at::empty_like(a_neg, at::MemoryFormat::Contiguous)};
}

// --- batch norm and the unit in one ------------------------------------------------------------------------

// One value a channel in the type of the computation.
template <class C, class F>
std::vector<C> per_channel(int64_t channels, const F& f) {
  std::vector<C> values(channels);
  for (int64_t c = 0; c < channels; ++c) values[c] = static_cast<C>(f(c));
  return values;
}

// An optional per-channel parameter as doubles, or its default. Read in place where possible: a handful
// of tensor operations on 256 numbers takes longer than normalising an MLP's layer.
std::vector<double> doubles(const optional<Tensor>& t, int64_t channels, double otherwise) {
  std::vector<double> values(channels, otherwise);
  if (!t.has_value() || !t->defined()) return values;
  if (t->scalar_type() == at::kFloat && t->is_contiguous()) {
    std::copy_n(t->const_data_ptr<float>(), channels, values.begin());
  } else {
    const Tensor wide = t->detach().to(at::kDouble).contiguous();
    std::copy_n(wide.const_data_ptr<double>(), channels, values.begin());
  }
  return values;
}

// running <- (1 - momentum) running + momentum now, in running's own precision as nn.BatchNorm2d does it.
void follow(const Tensor& running, const std::vector<double>& now, double momentum) {
  const Tensor values = running.detach();
  if (values.scalar_type() == at::kFloat && values.is_contiguous()) {
    float* r = values.mutable_data_ptr<float>();
    for (size_t c = 0; c < now.size(); ++c)
      r[c] = static_cast<float>(momentum) * static_cast<float>(now[c]) + (1 - static_cast<float>(momentum)) * r[c];
    values.unsafeGetTensorImpl()->bump_version();
  } else {
    const Tensor batch = at::empty({static_cast<int64_t>(now.size())}, values.options().dtype(at::kDouble));
    std::copy(now.begin(), now.end(), batch.mutable_data_ptr<double>());
    values.mul_(1 - momentum).add_(batch.to(values.scalar_type()), momentum);
  }
}

// (N, C, ...) with slopes shared by the layer (1-D) or a channel (2-D).
View normalised_view(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges) {
  check_unit(x, a_pos, a_neg, hinges);
  TORCH_CHECK_VALUE(x.dim() >= 2 && x.numel() > 0, "batch_norm_splash: x must have a batch and a channel dimension and not be empty, got shape ",
                    x.sizes());
  TORCH_CHECK_VALUE(a_pos.dim() == 1 || (a_pos.dim() == 2 && a_pos.size(1) == x.size(1)),
                    "batch_norm_splash: slopes of shape ", a_pos.sizes(), " for ", x.size(1), " channels");
  return view_of(x, {1, 2});
}

// y, and what the backward needs of the statistics: mean and 1/std of each channel.
std::tuple<Tensor, Tensor, Tensor> batch_norm_splash(const Tensor& x, const optional<Tensor>& weight, const optional<Tensor>& bias,
                                                     const optional<Tensor>& running_mean, const optional<Tensor>& running_var,
                                                     const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges,
                                                     bool training, double momentum, double eps, double) {
  const View view = normalised_view(x, a_pos, a_neg, hinges);
  const int64_t channels = view.extent.channels, count = view.extent.outer * view.extent.inner;
  const HeldUnit unit(x, a_pos, a_neg, hinges);
  Tensor y = result_like(view, x);
  Tensor mean = at::empty({channels}, x.options().dtype(compute_dtype(x))), inverse_std = at::empty_like(mean);
  const std::vector<double> w = doubles(weight, channels, 1.0), b = doubles(bias, channels, 0.0);
  std::vector<double> mu, variance(channels);
  if (training) {
    mu.resize(channels);
    with_type(x, [&](auto type) { moments<decltype(type)>(read<decltype(type)>(view.x), view.extent, mu.data(), variance.data()); });
    if (running_mean.has_value() && running_mean->defined()) {
      std::vector<double> unbiased = variance;
      for (double& v : unbiased) v /= static_cast<double>(count - 1);
      follow(*running_mean, mu, momentum);
      follow(*running_var, unbiased, momentum);
    }
    for (double& v : variance) v /= count;
  } else {
    mu = doubles(running_mean, channels, 0.0), variance = doubles(running_var, channels, 1.0);
  }
  with_type(x, [&](auto type) {
    using T = decltype(type);
    using C = compute_t<T>;
    C *m = mean.mutable_data_ptr<C>(), *s = inverse_std.mutable_data_ptr<C>();
    for (int64_t c = 0; c < channels; ++c) m[c] = mu[c], s[c] = 1 / std::sqrt(variance[c] + eps);
    const auto scale = per_channel<C>(channels, [&](int64_t c) { return w[c] / std::sqrt(variance[c] + eps); });
    const auto shift = per_channel<C>(channels, [&](int64_t c) { return b[c] - mu[c] * w[c] / std::sqrt(variance[c] + eps); });
    const Norm<C> norm{scale.data(), shift.data()};
    forward<T>(read<T>(view.x), write<T>(y), view.extent, unit.as<C>(), &norm);
  });
  return {y, mean, inverse_std};
}

// Gradients of x, weight, bias and the slopes.
std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> batch_norm_splash_backward(
    const Tensor& grad, const Tensor& x, const optional<Tensor>& weight, const optional<Tensor>& bias, const Tensor& mean,
    const Tensor& inverse_std, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges, bool training, double grad_scale) {
  const View view = normalised_view(x, a_pos, a_neg, hinges);
  const int64_t channels = view.extent.channels, count = view.extent.outer * view.extent.inner;
  const HeldUnit unit(x, a_pos, a_neg, hinges);
  const Tensor g = like(grad, view.x);
  Tensor dx = result_like(view, x);
  const std::vector<double> w = doubles(weight, channels, 1.0), b = doubles(bias, channels, 0.0);
  std::vector<double> pos(a_pos.numel()), neg(a_neg.numel()), dz(channels), dz_x(channels);
  const Sums sums{pos.data(), neg.data(), dz.data(), dz_x.data()};
  with_type(x, [&](auto type) {
    using T = decltype(type);
    using C = compute_t<T>;
    const C *m = mean.const_data_ptr<C>(), *s = inverse_std.const_data_ptr<C>();
    const auto scale = per_channel<C>(channels, [&](int64_t c) { return w[c] * s[c]; });
    const auto shift = per_channel<C>(channels, [&](int64_t c) { return b[c] - w[c] * s[c] * static_cast<double>(m[c]); });
    Norm<C> norm{scale.data(), shift.data(), m};
    backward<T>(read<T>(view.x), read<T>(g), nullptr, view.extent, unit.as<C>(), &norm, &sums);
    // In training the batch's own statistics moved with x: dx = w/std (dz - mean(dz) - x̂ mean(dz x̂)).
    const double n = training ? static_cast<double>(count) : INFINITY;
    const auto from_x = per_channel<C>(channels, [&](int64_t c) { return -w[c] * s[c] * s[c] * s[c] * dz_x[c] / n; });
    const auto constant = per_channel<C>(channels, [&](int64_t c) {
      return -w[c] * s[c] * dz[c] / n + w[c] * s[c] * s[c] * s[c] * dz_x[c] / n * m[c];
    });
    norm.from_grad = scale.data(), norm.from_x = from_x.data(), norm.constant = constant.data();
    backward<T>(read<T>(view.x), read<T>(g), write<T>(dx), view.extent, unit.as<C>(), &norm, nullptr);
    for (int64_t c = 0; c < channels; ++c) dz_x[c] *= s[c];
  });
  const Tensor like_weight = weight.has_value() && weight->defined() ? *weight : mean;
  return {dx, as_gradient(dz_x, like_weight, 1.0), as_gradient(dz, like_weight, 1.0), as_gradient(pos, a_pos, grad_scale),
          as_gradient(neg, a_neg, grad_scale)};
}

struct BatchNormSplashBackward : torch::autograd::Node {
  SavedVariable x, weight, bias, mean, inverse_std, a_pos, a_neg, hinges;
  bool training, affine;
  double eps, grad_scale;

  variable_list apply(variable_list&& grads) override {
    if (!grads[0].defined()) return variable_list(5);
    optional<Tensor> w, b;
    if (affine) w = weight.unpack(), b = bias.unpack();
    const Tensor x_ = x.unpack(), mean_ = mean.unpack(), std_ = inverse_std.unpack();
    const Tensor pos = a_pos.unpack(), neg = a_neg.unpack(), at = hinges.unpack();
    std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> found;
    if (at::GradMode::is_enabled()) {
      static const auto op = operator_named<std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>(
          const Tensor&, const Tensor&, const optional<Tensor>&, const optional<Tensor>&, const Tensor&, const Tensor&, const Tensor&,
          const Tensor&, const Tensor&, bool, double, double)>("splash_units::differentiable_batch_norm_backward");
      found = op.call(grads[0], x_, w, b, mean_, std_, pos, neg, at, training, eps, grad_scale);
    } else {
      static const auto op = operator_named<decltype(batch_norm_splash_backward)>("splash_units::batch_norm_splash_backward");
      found = op.call(grads[0], x_, w, b, mean_, std_, pos, neg, at, training, grad_scale);
    }
    auto [dx, dw, db, d_pos, d_neg] = found;
    return {dx, affine ? dw : Tensor(), affine ? db : Tensor(), d_pos, d_neg};
  }
  std::string name() const override { return "BatchNormSplashBackward"; }
  void release_variables() override {
    for (SavedVariable* saved : {&x, &weight, &bias, &mean, &inverse_std, &a_pos, &a_neg, &hinges}) saved->reset_data();
  }
};

std::tuple<Tensor, Tensor, Tensor> batch_norm_splash_autograd(
    const Tensor& x, const optional<Tensor>& weight, const optional<Tensor>& bias, const optional<Tensor>& running_mean,
    const optional<Tensor>& running_var, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges, bool training, double momentum,
    double eps, double grad_scale) {
  const Tensor w = weight.value_or(Tensor()), b = bias.value_or(Tensor());
  c10::intrusive_ptr<BatchNormSplashBackward> node;
  if (torch::autograd::compute_requires_grad(x, w, b, a_pos, a_neg)) {
    node = c10::make_intrusive<BatchNormSplashBackward>();
    node->set_next_edges(torch::autograd::collect_next_edges(x, w, b, a_pos, a_neg));
    node->x = SavedVariable(x, false), node->hinges = SavedVariable(hinges, false);
    node->a_pos = SavedVariable(a_pos, false), node->a_neg = SavedVariable(a_neg, false);
    node->affine = w.defined();
    if (node->affine) node->weight = SavedVariable(w, false), node->bias = SavedVariable(b, false);
    node->training = training, node->eps = eps, node->grad_scale = grad_scale;
  }
  auto [y, mean, inverse_std] = [&] {
    at::AutoDispatchBelowADInplaceOrView guard;
    static const auto op = operator_named<decltype(batch_norm_splash)>("splash_units::batch_norm_splash");
    return op.call(x, weight, bias, running_mean, running_var, a_pos, a_neg, hinges, training, momentum, eps, grad_scale);
  }();
  if (node) {
    node->mean = SavedVariable(mean, false), node->inverse_std = SavedVariable(inverse_std, false);
    torch::autograd::set_history(y, node);
  }
  return {y, mean, inverse_std};
}

std::tuple<Tensor, Tensor, Tensor> batch_norm_splash_meta(const Tensor& x, const optional<Tensor>&, const optional<Tensor>&,
                                                          const optional<Tensor>&, const optional<Tensor>&, const Tensor& a_pos,
                                                          const Tensor& a_neg, const Tensor& hinges, bool, double, double, double) {
  on_one_device(x, {&a_pos, &a_neg, &hinges});
  const Tensor mean = at::empty_symint({x.sym_size(1)}, x.options().dtype(compute_dtype(x)));
  return {x.is_non_overlapping_and_dense() ? at::empty_like(x) : at::empty_like(x, at::MemoryFormat::Contiguous), mean, at::empty_like(mean)};
}

std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor> batch_norm_splash_backward_meta(
    const Tensor&, const Tensor& x, const optional<Tensor>& weight, const optional<Tensor>&, const Tensor& mean, const Tensor&,
    const Tensor& a_pos, const Tensor& a_neg, const Tensor&, bool, double) {
  const Tensor like_weight = weight.has_value() && weight->defined() ? *weight : mean;
  return {x.is_non_overlapping_and_dense() ? at::empty_like(x) : at::empty_like(x, at::MemoryFormat::Contiguous),
          at::empty_like(like_weight), at::empty_like(like_weight), at::empty_like(a_pos, at::MemoryFormat::Contiguous),
          at::empty_like(a_neg, at::MemoryFormat::Contiguous)};
}

}  // namespace

TORCH_LIBRARY(splash_units, m) {
  const std::vector<at::Tag> tags{at::Tag::pt2_compliant_tag};
  m.def("splash(Tensor x, Tensor a_pos, Tensor a_neg, Tensor hinges, int trailing=0, float grad_scale=1.0) -> Tensor", tags);
  m.def("splash_backward(Tensor grad, Tensor x, Tensor a_pos, Tensor a_neg, Tensor hinges, int trailing=0, "
        "float grad_scale=1.0) -> (Tensor, Tensor, Tensor)", tags);
  m.def("differentiable_backward(Tensor grad, Tensor x, Tensor a_pos, Tensor a_neg, Tensor hinges, int trailing, "
        "float grad_scale) -> (Tensor, Tensor, Tensor)", tags);
  m.def("batch_norm_splash(Tensor x, Tensor? weight, Tensor? bias, Tensor(a!)? running_mean, Tensor(b!)? running_var, Tensor a_pos, "
        "Tensor a_neg, Tensor hinges, bool training, float momentum, float eps, float grad_scale=1.0) -> (Tensor, Tensor, Tensor)", tags);
  m.def("batch_norm_splash_backward(Tensor grad, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor inverse_std, Tensor a_pos, "
        "Tensor a_neg, Tensor hinges, bool training, float grad_scale=1.0) -> (Tensor, Tensor, Tensor, Tensor, Tensor)", tags);
  m.def("differentiable_batch_norm_backward(Tensor grad, Tensor x, Tensor? weight, Tensor? bias, Tensor mean, Tensor inverse_std, "
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
}

}  // namespace splash_units
