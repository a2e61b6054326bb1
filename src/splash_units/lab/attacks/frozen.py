"""A network while it is attacked: in eval mode, its weights fixed, and cheaper for it.

What is fixed can be had for less, and these two layers cost the small networks a third of their
time on a CPU: a 2 x 2 max-pool that keeps no indices but compares four slices of its input, and
batch norm whose backward is one factor a channel. Values are those of torch, bit for bit, and so is
the pool's gradient, where equal values send it to the first; batch norm's differs in the last bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

Model = Callable[[Tensor], Tensor]
"""Any callable that takes images in [0, 1], shape (N, C, H, W), to logits, shape (N, classes)."""

Forward = Callable[[Tensor], Tensor]

FEWEST_CHANNELS = 16
Norm = nn.BatchNorm1d | nn.BatchNorm2d
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@contextmanager
def frozen(model: Model) -> Iterator[None]:
    """Put a module in eval mode without gradients for its weights, then restore it exactly.

    A callable that is not a module is left alone.
    """
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    replaced: list[nn.Module] = []
    try:
        model.eval()
        for parameter in trainable:
            parameter.requires_grad_(False)
        for module, forward in cheaper_layers(model):
            module.forward = forward
            replaced.append(module)
        yield
    finally:
        for module in replaced:
            del module.forward
        for module, training in modes:
            module.training = training
        for parameter in trainable:
            parameter.requires_grad_(True)


def layout_of(model: Model) -> torch.memory_format:
    """How images should lie in memory for a network: channels_last if its convolutions are wide.

    With few channels side by side torch's batch norm and standardisation are slow on a CPU.
    """
    if not isinstance(model, nn.Module):
        return torch.contiguous_format
    channels = [m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)]
    wide = min(channels, default=0) >= FEWEST_CHANNELS
    return torch.channels_last if wide else torch.contiguous_format


def cheaper_layers(model: nn.Module) -> Iterator[tuple[nn.Module, Forward]]:
    """The layers of a frozen network that can be had for less, and how.

    None of a network that was compiled, which would be compiled anew, and no layer whose forward
    somebody has replaced already.
    """
    modules = list(model.modules())
    if any(hasattr(module, "_orig_mod") for module in modules):
        return
    for module in modules:
        if "forward" in vars(module):
            continue
        if type(module) is nn.MaxPool2d and halves(module):
            yield module, max_pool(module)
        elif isinstance(module, Norm) and type(module) in NORMS and module.track_running_stats:
            yield module, batch_norm(module)


def halves(pool: nn.MaxPool2d) -> bool:
    """Whether a pool takes the largest of every 2 x 2 values, and nothing else."""
    twos = all(setting in (2, (2, 2)) for setting in (pool.kernel_size, pool.stride))
    plain = pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1))
    return twos and plain and not pool.return_indices


def max_pool(module: nn.MaxPool2d) -> Forward:
    """The pool's forward by slices, where it is torch's on a CPU that is slow."""

    def forward(x: Tensor) -> Tensor:
        even = x.ndim == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0
        if not even or x.device.type != "cpu":
            whole: Tensor = nn.MaxPool2d.forward(module, x)
            return whole
        if torch.is_grad_enabled() and x.requires_grad:
            pooled: Tensor = HalvingPool.apply(x)  # type: ignore[no-untyped-call]
            return pooled
        top, bottom = (torch.maximum(*pair) for pair in corners(x))
        return torch.maximum(top, bottom)

    return forward


def corners(x: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """The upper and the lower two of every 2 x 2 values."""
    upper, lower = x[..., ::2, :], x[..., 1::2, :]
    return (upper[..., ::2], upper[..., 1::2]), (lower[..., ::2], lower[..., 1::2])


class HalvingPool(torch.autograd.Function):
    """The largest of every 2 x 2 values; its backward knows which of two won, three times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        upper, lower = corners(x)
        top, bottom = torch.maximum(*upper), torch.maximum(*lower)
        ctx.save_for_backward(upper[1] > upper[0], lower[1] > lower[0], bottom > top)
        return torch.maximum(top, bottom)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        upper_right, lower_right, from_bottom = ctx.saved_tensors
        count, channels, height, width = gradient.shape
        into = torch.empty_like(gradient).new_empty(count, channels, 2 * height, 2 * width)
        bottom = gradient * from_bottom
        for part, right, (left_slot, right_slot) in zip(
            (gradient - bottom, bottom), (upper_right, lower_right), corners(into), strict=True
        ):
            torch.mul(part, right, out=right_slot)
            torch.sub(part, right_slot, out=left_slot)
        return into


def batch_norm(module: Norm) -> Forward:
    """The forward of a batch norm with fixed statistics."""
    assert module.running_mean is not None
    assert module.running_var is not None
    factor = (module.running_var + module.eps).rsqrt()
    if module.weight is not None:
        factor = factor * module.weight.detach()

    def forward(x: Tensor) -> Tensor:
        if torch.is_grad_enabled() and x.requires_grad:
            normed: Tensor = FixedBatchNorm.apply(x, module, factor)  # type: ignore[no-untyped-call]
            return normed
        return normalise(x, module)

    return forward


def normalise(x: Tensor, module: Norm) -> Tensor:
    mean, variance = module.running_mean, module.running_var
    return F.batch_norm(x, mean, variance, module.weight, module.bias, False, 0.0, module.eps)


class FixedBatchNorm(torch.autograd.Function):
    """Batch norm with fixed statistics and weights, which scales gradients by one factor a
    channel.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, module: Norm, factor: Tensor) -> Tensor:
        ctx.factor = factor.view(-1, *[1] * (x.ndim - 2))
        return normalise(x, module)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return gradient * ctx.factor, None, None
