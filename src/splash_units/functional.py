"""The SPLASH function, and the only place that picks the kernel that computes it."""

import torch.nn.functional as F
from torch import Tensor

from splash_units.kernels import reference
from splash_units.kernels.reference import scale_gradient as scale_gradient


def splash(x: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor) -> Tensor:
    """h(x) = Σₛ a₊ˢ max(0, x − bˢ) + Σₛ a₋ˢ max(0, −x − bˢ), with exact gradients.

    `hinges` are b¹ = 0 < b² < ...; `a_pos` and `a_neg` have one row a hinge. A row is a number, or
    broadcasts against `x` as any tensor does: slopes of shape (4, 16, 1, 1) give each of the 16
    channels of an (N, 16, H, W) tensor its own unit.
    """
    return scaled_splash(x, a_pos, a_neg, hinges)


def scaled_splash(
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    trailing: int = 0,
    grad_scale: float = 1.0,
) -> Tensor:
    """:func:`splash` whose slopes receive `grad_scale` times their gradient.

    `trailing` is the number of dimensions of x that stand to the right of the slopes' own; it saves
    the modules a reshape of their parameters in every call.
    """
    _check(x, a_pos, a_neg, hinges, trailing)
    return reference.scaled_splash(x, a_pos, a_neg, hinges, trailing, grad_scale)


def batch_norm_splash(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    training: bool,
    momentum: float,
    eps: float,
    grad_scale: float = 1.0,
) -> Tensor:
    """``splash(F.batch_norm(x, ...), ...)``, in one pass where the kernel offers it.

    Slopes are shared by the layer, of shape (hinges,), or by channel, (hinges, C).
    """
    z = F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    return scaled_splash(
        z, a_pos, a_neg, hinges, 0 if a_pos.dim() == 1 else x.dim() - 2, grad_scale
    )


def _check(x: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor, trailing: int) -> None:
    if not x.is_floating_point():
        raise TypeError(
            f"splash needs a float64, float32, bfloat16 or float16 tensor, got {x.dtype}"
        )
    for name, t in (("a_pos", a_pos), ("a_neg", a_neg), ("hinges", hinges)):
        if not t.is_floating_point():
            raise TypeError(f"{name} must be a floating-point tensor, got {t.dtype}")
        if t.device != x.device:
            raise ValueError(
                f"{name} is on {t.device}, x is on {x.device}: "
                "move the unit with .to(x.device) or x to the unit's device"
            )
    if hinges.dim() != 1 or len(hinges) == 0:
        raise ValueError(f"hinges must be a non-empty vector, got shape {tuple(hinges.shape)}")
    for name, a in (("a_pos", a_pos), ("a_neg", a_neg)):
        if a.dim() == 0 or a.shape[0] != len(hinges):
            raise ValueError(
                f"{name} must have one row for each of the {len(hinges)} hinges, "
                f"got shape {tuple(a.shape)}"
            )
    if a_pos.shape != a_neg.shape:
        raise ValueError(
            "a_pos and a_neg must have the same shape, "
            f"got {tuple(a_pos.shape)} and {tuple(a_neg.shape)}"
        )
    own = tuple(a_pos.shape[1:]) + (1,) * trailing
    fits = len(own) <= x.dim() and all(
        p in (1, n) for p, n in zip(reversed(own), reversed(x.shape), strict=False)
    )
    if not fits:
        raise ValueError(
            f"slopes of shape {tuple(a_pos.shape)} don't broadcast against x of shape "
            f"{tuple(x.shape)}"
        )
