"""The backward that torch can differentiate again: the plain equation's own.

The kernel's backward is opaque to autograd. When a graph of the gradient is asked for
(`create_graph=True`), the operators call these instead, by the names they have in the C++ library.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor

from splash_units.kernels import reference


def splash(
    grad: Tensor,
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    trailing: int,
    grad_scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x and both slopes, as functions of `grad`, x and the slopes."""
    with torch.enable_grad():
        x, a_pos, a_neg = (_on_its_own(t) for t in (x, a_pos, a_neg))
        h = reference.scaled_splash(x, a_pos, a_neg, hinges, trailing, grad_scale)
        dx, d_pos, d_neg = torch.autograd.grad(h, (x, a_pos, a_neg), grad, create_graph=True)
    return dx, d_pos, d_neg


def batch_norm_splash(
    grad: Tensor,
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    training: bool,
    eps: float,
    grad_scale: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The same behind batch norm, whose own weight and bias get a zero gradient if it has none."""
    mean, inverse_std = statistics
    with torch.enable_grad():
        x, w, b, a_pos, a_neg = (
            _on_its_own(t)
            for t in (
                x,
                torch.ones_like(mean) if weight is None else weight,
                torch.zeros_like(mean) if bias is None else bias,
                a_pos,
                a_neg,
            )
        )
        if training:
            z = F.batch_norm(x, None, None, w, b, True, 0.0, eps)
        else:
            mean, inverse_std, w_, b_ = (
                t.reshape(-1, *(1 for _ in x.shape[2:])) for t in (mean, inverse_std, w, b)
            )
            z = (x - mean) * inverse_std * w_ + b_
        trailing = 0 if a_pos.dim() == 1 else x.dim() - 2
        h = reference.scaled_splash(z, a_pos, a_neg, hinges, trailing, grad_scale).to(grad.dtype)
        dx, dw, db, d_pos, d_neg = torch.autograd.grad(
            h, (x, w, b, a_pos, a_neg), grad, create_graph=True
        )
    return dx, dw, db, d_pos, d_neg


def _on_its_own(t: Tensor) -> Tensor:
    """`t` as an input of its own: slopes may depend on x, but that path is for others to add."""
    return t.view_as(t) if t.requires_grad else t.detach().requires_grad_()


IMPLEMENTATIONS: Final[dict[str, Callable[..., Any]]] = {
    "differentiable_backward": splash,
    "differentiable_batch_norm_backward": batch_norm_splash,
}
