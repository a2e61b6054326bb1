"""The backward that torch can differentiate again: the plain equation's own.

The kernel's backward is opaque to autograd. When a graph of the gradient is asked for
(`create_graph=True`), the operators call these instead, by the names they have in the C++ library.
"""

from collections.abc import Callable
from typing import Any, Final

import torch
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


def _on_its_own(t: Tensor) -> Tensor:
    """`t` as an input of its own: slopes may depend on x, but that path is for others to add."""
    return t.view_as(t) if t.requires_grad else t.detach().requires_grad_()


IMPLEMENTATIONS: Final[dict[str, Callable[..., Any]]] = {"differentiable_backward": splash}
