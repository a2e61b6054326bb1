"""A network while it is attacked: in eval mode, its weights fixed, and cheaper for it.

Weights that ask for gradients cost a backward pass up to 1.6 times its price. And a third of a
small network's forward pass on a CPU is torch's max-pool, which looks for indices; while frozen,
pools of 2 x 2 compare four slices of their input instead. Values and gradients are those of torch,
bit for bit, also where values are equal and the first one gets the gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Model = Callable[[Tensor], Tensor]
"""Any callable that takes images in [0, 1], shape (N, C, H, W), to logits, shape (N, classes)."""

Forward = Callable[[Tensor], Tensor]

FEWEST_CHANNELS = 16


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
        for module, forward in cheaper_pools(model):
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


def cheaper_pools(model: nn.Module) -> Iterator[tuple[nn.Module, Forward]]:
    """The pools of a network that can be had for less, and how.

    None of a network that was compiled, which would be compiled anew, and no pool whose forward
    somebody has replaced already.
    """
    modules = list(model.modules())
    if any(hasattr(module, "_orig_mod") for module in modules):
        return
    for module in modules:
        if type(module) is nn.MaxPool2d and halves(module) and "forward" not in vars(module):
            yield module, max_pool(module)


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
