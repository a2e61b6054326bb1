"""Max-pools of 2 x 2 that keep no indices, with the values and gradients of torch's, bit for bit.

torch's max-pool looks for indices, which on a CPU is a third of a small network's forward pass.
Where values are equal the first one gets the gradient, as in torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

Forward = Callable[[Tensor], Tensor]
Quarters = Callable[[Tensor], tuple[Tensor, Tensor, Tensor, Tensor]]
"""The upper left, upper right, lower left and lower right values of every 2 x 2, as views."""


def halves(pool: nn.MaxPool2d) -> bool:
    """Whether a pool takes the largest of every 2 x 2 values, and nothing else."""
    twos = all(setting in (2, (2, 2)) for setting in (pool.kernel_size, pool.stride))
    plain = pool.padding in (0, (0, 0)) and pool.dilation in (1, (1, 1))
    return twos and plain and not pool.return_indices


def max_pool(module: nn.MaxPool2d) -> Forward:
    """The forward of a pool that halves, by slices, where it is torch's on a CPU that is slow."""

    def forward(x: Tensor) -> Tensor:
        even = x.ndim == 4 and x.shape[2] % 2 == x.shape[3] % 2 == 0
        if not even or x.device.type != "cpu":
            whole: Tensor = nn.MaxPool2d.forward(module, x)
            return whole
        if torch.is_grad_enabled() and x.requires_grad:
            return largest(x, corners)
        # Two rows lie side by side as a whole, two columns do not: half as many of the latter.
        rows = torch.maximum(x[..., ::2, :], x[..., 1::2, :])
        return torch.maximum(rows[..., ::2], rows[..., 1::2])

    return forward


def corners(x: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The quarters of images, (N, C, H, W)."""
    upper, lower = x[..., ::2, :], x[..., 1::2, :]
    return upper[..., ::2], upper[..., 1::2], lower[..., ::2], lower[..., 1::2]


def largest(x: Tensor, quarters: Quarters) -> Tensor:
    """The largest of every 2 x 2 values, which `quarters` finds in x."""
    if torch.is_grad_enabled() and x.requires_grad:
        found: Tensor = LargestOfFour.apply(x, quarters)  # type: ignore[no-untyped-call]
        return found
    a, b, c, d = quarters(x)
    top, bottom = torch.maximum(a, b), torch.maximum(c, d)
    return torch.maximum(top, bottom, out=top)


def is_greater(x: Tensor, y: Tensor) -> Tensor:
    """1 or 0, in numbers to multiply with: booleans would have to become such first."""
    return torch.gt(x, y, out=torch.empty_like(x))


class LargestOfFour(torch.autograd.Function):
    """`largest`; its backward knows which of two won, three times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, quarters: Quarters) -> Tensor:
        a, b, c, d = quarters(x)
        top, bottom = torch.maximum(a, b), torch.maximum(c, d)
        ctx.save_for_backward(is_greater(b, a), is_greater(d, c), is_greater(bottom, top))
        ctx.quarters, ctx.shape = quarters, x.shape
        return torch.maximum(top, bottom)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        upper_right, lower_right, from_bottom = ctx.saved_tensors
        into = torch.empty_like(gradient).new_empty(ctx.shape)
        bottom = gradient * from_bottom
        a, b, c, d = ctx.quarters(into)
        for part, right, left_slot, right_slot in (
            (gradient - bottom, upper_right, a, b),
            (bottom, lower_right, c, d),
        ):
            torch.mul(part, right, out=right_slot)
            torch.sub(part, right_slot, out=left_slot)
        return into, None
