"""The GPU kernel as differentiable functions, and as torch operators for graphs.

An eager call goes through an autograd.Function of the oldest style, which costs some 20
microseconds where the registered operator's own way through autograd costs 100. In the graphs of
`torch.compile` stand the operators, with their fake rules.

Saved for backward are x, the slopes and the hinges; with batch norm also two numbers a channel.
Where a graph of the gradient is asked for, the plain equation gives it: the kernel's is opaque.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.graph import increment_version
from torch.library import custom_op

from splash_units.kernels.native import second_derivative
from splash_units.kernels.triton import launching
from splash_units.kernels.triton.geometry import own_dimensions, view_of

NAMESPACE: Final = "splash_units_triton"


def _check_hinges(hinges: Tensor) -> None:
    """They would get no gradient, and nobody would be told; the plain equation has one."""
    if torch.is_grad_enabled() and hinges.requires_grad:
        raise ValueError(
            "the Triton kernel has no derivative by the hinges, which require a gradient"
        )


# --- the unit -------------------------------------------------------------------------------------


def splash(
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    trailing: int = 0,
    grad_scale: float = 1.0,
) -> Tensor:
    """h(x), whose slopes receive `grad_scale` times their gradient."""
    _check_hinges(hinges)
    compute: Callable[..., Tensor] = _Splash.apply
    if torch.compiler.is_compiling():
        compute = splash_operator
    return compute(x, a_pos, a_neg, hinges, trailing, grad_scale)


def _save_splash(ctx: Any, inputs: tuple[Any, ...], output: object = None) -> None:
    ctx.save_for_backward(*inputs[:4])
    ctx.how = inputs[4:]


def _splash_gradients(backward: Callable[..., Any]) -> Callable[..., tuple[Tensor | None, ...]]:
    def gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        chosen = second_derivative.splash if torch.is_grad_enabled() else backward
        return (*chosen(grad, *ctx.saved_tensors, *ctx.how), None, None, None)

    return gradients


class _Splash(Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        _save_splash(ctx, inputs)
        return launching.splash(*inputs)

    backward = staticmethod(_splash_gradients(launching.splash_backward))


splash_operator = custom_op(f"{NAMESPACE}::splash", launching.splash, mutates_args=())
splash_backward_operator = custom_op(
    f"{NAMESPACE}::splash_backward", launching.splash_backward, mutates_args=()
)
splash_operator.register_autograd(
    _splash_gradients(splash_backward_operator), setup_context=_save_splash
)


@splash_operator.register_fake
def _(
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    trailing: int = 0,
    grad_scale: float = 1.0,
) -> Tensor:
    return _like_memory(x, own_dimensions(x, a_pos, trailing))


@splash_backward_operator.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    trailing: int,
    grad_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    dx = _like_memory(x, own_dimensions(x, a_pos, trailing))
    return dx, _fake_gradient(a_pos), _fake_gradient(a_neg)


def _like_memory(x: Tensor, own: range) -> Tensor:
    return torch.empty_like(view_of(x, own).memory)


def _fake_gradient(of: Tensor) -> Tensor:
    return of.new_empty(of.shape)


# --- batch norm and the unit in one ---------------------------------------------------------------


def batch_norm_splash(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    grad_scale: float = 1.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """The unit behind batch norm, and the mean and 1/std of each channel that it went by."""
    _check_hinges(hinges)
    launching.check(x, a_pos, a_neg, hinges)
    launching.check_channels(x, a_pos, weight, bias, running_mean, running_var)
    if x.numel() == 0 or (training and x.numel() == x.shape[1]):
        raise ValueError(f"x of shape {tuple(x.shape)} has too few elements for batch statistics")
    if (running_mean is None) != (running_var is None):
        raise ValueError("batch norm needs both running statistics or neither")
    if training:
        mean, inverse_std = _statistics(x.detach(), running_mean, running_var, momentum, eps)
    elif running_mean is not None and running_var is not None:
        mean, variance = (t.to(launching.compute_dtype(x)) for t in (running_mean, running_var))
        inverse_std = (variance + eps).rsqrt()
    else:
        raise ValueError("batch norm without the batch's statistics needs running ones")
    compute: Callable[..., Tensor] = _NormalisedSplash.apply
    if torch.compiler.is_compiling():
        compute = normalised_operator
    how = (training, eps, grad_scale)
    y = compute(x, weight, bias, mean, inverse_std, a_pos, a_neg, hinges, *how)
    return y, mean, inverse_std


def _statistics(
    x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, momentum: float, eps: float
) -> tuple[Tensor, Tensor]:
    compute = launching.statistics
    if torch.compiler.is_compiling():
        compute = statistics_operator
    else:
        for running in (running_mean, running_var):
            if running is not None and not running.is_inference():
                increment_version(running)  # or a backward that saved it would not know
    return compute(x, running_mean, running_var, momentum, eps)


def _save_normalised(ctx: Any, inputs: tuple[Any, ...], output: object = None) -> None:
    ctx.save_for_backward(*inputs[:8])
    ctx.how = inputs[8:]


def _normalised_gradients(backward: Callable[..., Any]) -> Callable[..., tuple[Tensor | None, ...]]:
    def gradients(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, inverse_std, *shape = saved = ctx.saved_tensors
        if torch.is_grad_enabled():
            statistics = torch.stack((mean, inverse_std))
            dx, d_weight, d_bias, d_pos, d_neg = second_derivative.batch_norm_splash(
                grad, x, weight, bias, statistics, *shape, *ctx.how
            )
        else:
            dx, d_weight, d_bias, d_pos, d_neg = backward(grad, *saved, *ctx.how)
        to_weight = None if weight is None else d_weight
        to_bias = None if bias is None else d_bias
        return dx, to_weight, to_bias, None, None, d_pos, d_neg, None, None, None, None

    return gradients


class _NormalisedSplash(Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        _save_normalised(ctx, inputs)
        return launching.normalised_splash(*inputs)

    backward = staticmethod(_normalised_gradients(launching.normalised_splash_backward))


statistics_operator = custom_op(
    f"{NAMESPACE}::statistics",
    launching.statistics,
    mutates_args=("running_mean", "running_var"),
)
normalised_operator = custom_op(
    f"{NAMESPACE}::normalised_splash", launching.normalised_splash, mutates_args=()
)
normalised_backward_operator = custom_op(
    f"{NAMESPACE}::normalised_splash_backward",
    launching.normalised_splash_backward,
    mutates_args=(),
)
normalised_operator.register_autograd(
    _normalised_gradients(normalised_backward_operator), setup_context=_save_normalised
)


@statistics_operator.register_fake
def _(x: Tensor, *others: object) -> tuple[Tensor, Tensor]:
    mean = x.new_empty((x.shape[1],), dtype=launching.compute_dtype(x))
    return mean, torch.empty_like(mean)


@normalised_operator.register_fake
def _(x: Tensor, *others: object) -> Tensor:
    return _like_memory(x, launching.CHANNELS)


@normalised_backward_operator.register_fake
def _(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    inverse_std: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    *others: object,
) -> tuple[Tensor, ...]:
    parameters = (mean if weight is None else weight, mean if bias is None else bias, a_pos, a_neg)
    return _like_memory(x, launching.CHANNELS), *(_fake_gradient(p) for p in parameters)
