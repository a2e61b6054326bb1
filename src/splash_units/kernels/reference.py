"""The SPLASH equation, literally, differentiated by torch.

    h(x) = Σₛ a₊ˢ max(0, x − bˢ) + Σₛ a₋ˢ max(0, −x − bˢ)

This is the oracle that every faster kernel is compared with, and what runs where an opaque operator
would be in the way: inside ``torch.compile`` and ``torch.export``, under ``torch.func`` and for
double backward.

The equation alone is not enough at three kinds of input; each gets what the limit says:

- ±∞: a term with a zero slope would be 0·∞ and terms of opposite sign ∞ − ∞, both NaN, where the
  function has a plain limit. See :func:`_at_infinity`.
- −0.0: a sum of zeros loses the sign that ``torch.relu`` keeps; h(±0) = ±0.
- bfloat16, float16: the sum is taken in float32 and rounded once.

At a hinge, as ``torch.relu`` has it, max(0, ·) has derivative 0: the inner segment's slope counts
there, and at x = 0 the derivative is 0.
"""

import math

import torch
from torch import Tensor


def splash(x: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor) -> Tensor:
    """h(x); the slopes have shape (len(hinges), ...), the rest of which broadcasts against x."""
    wide = torch.promote_types(x.dtype, torch.float32)
    z, a_pos, a_neg, b = (t.to(wide) for t in (x, a_pos, a_neg, hinges))

    finite = z.masked_fill(z.isinf(), 0.0)
    h = torch.zeros_like(z)
    for s in range(len(b)):
        h = h + a_pos[s] * torch.relu(finite - b[s])
    for s in range(len(b)):
        h = h + a_neg[s] * torch.relu(-finite - b[s])

    h = h + _at_infinity(z, a_pos, b) + _at_infinity(-z, a_neg, b)
    return torch.where(z == 0, z.detach(), h).to(x.dtype)


def _at_infinity(z: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Σ aˢ(z − bˢ) in the form (Σ aˢ)·z − Σ aˢbˢ where z = +∞, and 0 elsewhere."""
    slope = a.sum(0)
    # Not tensordot: a matrix product would be rounded to bfloat16 under autocast.
    intercept = -(b.reshape(-1, *(1 for _ in a.shape[1:])) * a).sum(0)
    here = z == math.inf
    # The inner `where` keeps 0·∞ out of the product, and so out of its gradient.
    return slope * torch.where(here & (slope != 0), z, 0.0) + torch.where(here, intercept, 0.0)


def scaled_splash(
    x: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor, trailing: int, grad_scale: float
) -> Tensor:
    """:func:`splash` whose slopes receive `grad_scale` times their gradient.

    `trailing` dimensions of x stand to the right of the slopes' own.
    """
    a_pos, a_neg = (
        scale_gradient(a, grad_scale).reshape(a.shape + (1,) * trailing) for a in (a_pos, a_neg)
    )
    return splash(x, a_pos, a_neg, hinges)


def scale_gradient(a: Tensor, factor: float) -> Tensor:
    """`a` to the last bit, with its gradient times `factor` (a·f + a·(1 − f) would round)."""
    if factor == 1.0:
        return a
    constant = a.detach()
    return constant + (a - constant) * factor
