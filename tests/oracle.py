"""What every kernel is held against: the paper's equation as a plain loop, and how far off
rounding alone may be.

Written without torch and without a look at the package, so that a mistake can't be in both.
"""

import numpy as np
import torch
from torch import Tensor


def paper_equation(x: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor) -> np.ndarray:
    """h(x) in extended precision, slopes broadcasting against x row by row."""
    z, right, left, b = (_extended(t) for t in (x, a_pos, a_neg, hinges))
    h = np.zeros_like(z)
    for s in range(len(b)):
        h = h + right[s] * np.maximum(0.0, z - b[s])
        h = h + left[s] * np.maximum(0.0, -z - b[s])
    return h


def paper_gradients(
    x: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor, upstream: Tensor
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """d/dx, and d/da₊, d/da₋ before the sum over those who share a slope: (hinges, *x.shape)."""
    z, right, left, b, g = (_extended(t) for t in (x, a_pos, a_neg, hinges, upstream))
    dx = np.zeros_like(z)
    rows_pos, rows_neg = [], []
    for s in range(len(b)):
        dx = dx + g * right[s] * (z > b[s]) - g * left[s] * (-z > b[s])
        rows_pos.append(g * np.maximum(0.0, z - b[s]))
        rows_neg.append(g * np.maximum(0.0, -z - b[s]))
    return dx, np.stack(rows_pos), np.stack(rows_neg)


def rounding_bound(x: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor) -> np.ndarray:
    """How far rounding can take h(x) from the equation, whichever order it is summed in.

    A sum of n products is off by at most about n roundings of the sum of their magnitudes. That
    covers the literal terms a(x − b) and the segment form (Σa)x − Σab alike; `eps` is two
    roundings. 16-bit inputs are computed in float32 and the result is rounded once more.
    """
    z, right, left, b = (np.abs(_extended(t)) for t in (x, a_pos, a_neg, hinges))
    magnitude = sum((right[s] + left[s]) * (z + b[s]) for s in range(len(b)))
    computed_in = torch.promote_types(x.dtype, torch.float32)
    bound = 2 * len(b) * torch.finfo(computed_in).eps * magnitude
    if computed_in != x.dtype:
        info = torch.finfo(x.dtype)
        # Below `tiny` numbers are evenly spaced, eps·tiny apart.
        bound = bound + info.eps * (np.abs(paper_equation(x, a_pos, a_neg, hinges)) + info.tiny)
    return bound


def assert_follows_paper(
    h: Tensor, x: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor
) -> None:
    """h is the paper's h(x) but for rounding, in x's own dtype and shape."""
    assert h.dtype == x.dtype
    assert h.shape == x.shape
    wrong = np.abs(_extended(h) - paper_equation(x, a_pos, a_neg, hinges))
    assert (wrong <= rounding_bound(x, a_pos, a_neg, hinges)).all(), f"off by {wrong.max()}"


def assert_gradients_follow_paper(
    grads: tuple[Tensor, Tensor, Tensor],
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    upstream: Tensor,
) -> None:
    """`grads` of x, a₊ and a₋ are the equation's but for rounding, each in its tensor's dtype.

    dx is a product with a sum of up to len(hinges) slopes; a slope's gradient is a sum of n
    products, off by at most n roundings of the sum of their magnitudes.
    """
    dx, rows_pos, rows_neg = paper_gradients(x, a_pos, a_neg, hinges, upstream)
    steepest = sum(np.abs(_extended(a)).max() for a in (*a_pos, *a_neg))
    dx_bound = len(hinges) * torch.finfo(x.dtype).eps * steepest * np.abs(_extended(upstream))
    _assert_within(grads[0], x, dx, dx_bound)
    eps = torch.finfo(torch.promote_types(x.dtype, torch.float32)).eps
    for grad, a, rows in zip(grads[1:], (a_pos, a_neg), (rows_pos, rows_neg), strict=True):
        summed, magnitude = _sum_to(rows, a), _sum_to(np.abs(rows), a)
        bound = max(rows.size / max(a.numel(), 1), 1) * eps * magnitude
        _assert_within(grad, a, summed, bound + torch.finfo(a.dtype).eps * np.abs(summed))


def _assert_within(grad: Tensor, of: Tensor, expected: np.ndarray, bound: np.ndarray) -> None:
    assert grad.dtype == of.dtype
    assert grad.shape == of.shape
    wrong = np.abs(_extended(grad) - expected)
    assert (wrong <= bound).all(), f"gradient off by {wrong.max()}"


def _sum_to(rows: np.ndarray, a: Tensor) -> np.ndarray:
    """Sum (hinges, *x.shape) over whoever shares a slope of `a`, (hinges, *features)."""
    missing = rows.ndim - a.dim()
    summed = rows.sum(tuple(range(1, 1 + missing)))
    alone = tuple(d for d in range(1, a.dim()) if a.shape[d] == 1)
    return summed.sum(alone, keepdims=True)


def assert_same_bits(ours: Tensor, theirs: Tensor) -> None:
    """Equal to the last bit, the sign of zero included; NaN equals NaN whatever its payload."""
    assert ours.dtype == theirs.dtype
    assert ours.shape == theirs.shape
    assert torch.equal(ours.isnan(), theirs.isnan())
    numbers = ~theirs.isnan()
    as_integers = {8: torch.int64, 4: torch.int32, 2: torch.int16}[ours.element_size()]
    left, right = (t.detach()[numbers].view(as_integers) for t in (ours, theirs))
    differ = (left != right).nonzero().flatten()[:5]
    assert torch.equal(left, right), (
        f"{ours.detach()[numbers][differ].tolist()} is not {theirs[numbers][differ].tolist()}"
    )


def _extended(t: Tensor) -> np.ndarray:
    return t.detach().to(torch.float64).numpy().astype(np.longdouble)
