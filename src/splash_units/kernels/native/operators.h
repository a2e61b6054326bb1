// The operators as torch's dispatcher knows them: their names and types.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <optional>
#include <tuple>
#include <utility>

namespace splash_units::operators {

using at::Tensor;
using MaybeTensor = const std::optional<Tensor>&;

struct Splash {
  static constexpr char name[] = "splash_units::splash";
  using Signature = Tensor(const Tensor& x, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges, int64_t trailing, double grad_scale);
};

struct SplashBackward {
  static constexpr char name[] = "splash_units::splash_backward";
  using Signature = std::tuple<Tensor, Tensor, Tensor>(const Tensor& grad, const Tensor& x, const Tensor& a_pos, const Tensor& a_neg,
                                                       const Tensor& hinges, int64_t trailing, double grad_scale);
};

struct BatchNormSplash {
  static constexpr char name[] = "splash_units::batch_norm_splash";
  using Signature = std::tuple<Tensor, Tensor>(const Tensor& x, MaybeTensor weight, MaybeTensor bias, MaybeTensor running_mean,
                                               MaybeTensor running_var, const Tensor& a_pos, const Tensor& a_neg, const Tensor& hinges,
                                               bool training, double momentum, double eps, double grad_scale);
};

struct BatchNormSplashBackward {
  static constexpr char name[] = "splash_units::batch_norm_splash_backward";
  using Signature = std::tuple<Tensor, Tensor>(const Tensor& grad, const Tensor& x, const Tensor& kept, c10::SymInt hinges, bool own_slopes,
                                               bool training, double grad_scale);
};

// These two are the plain equation's own, and written in Python.
struct DifferentiableBackward {
  static constexpr char name[] = "splash_units::differentiable_backward";
  using Signature = SplashBackward::Signature;
};

struct DifferentiableBatchNormBackward {
  static constexpr char name[] = "splash_units::differentiable_batch_norm_backward";
  using Signature = std::tuple<Tensor, Tensor, Tensor, Tensor, Tensor>(const Tensor& grad, const Tensor& x, MaybeTensor weight, MaybeTensor bias,
                                                                       const Tensor& statistics, const Tensor& a_pos, const Tensor& a_neg,
                                                                       const Tensor& hinges, bool training, double eps, double grad_scale);
};

template <class Operator, class... A>
auto call(A&&... arguments) {
  static const auto handle = c10::Dispatcher::singleton().findSchemaOrThrow(Operator::name, "").template typed<typename Operator::Signature>();
  return handle.call(std::forward<A>(arguments)...);
}

}  // namespace splash_units::operators
