"""The unit nearest to a smooth activation: in the largest error, with the right asymptotes.

The two unbounded segments lie on the activation's asymptotes, so that the error stays bounded
however far out an input falls. Between them the hinges are the best that interpolate among a grid
of candidates (dynamic programming), and the values at the hinges are then levelled to the least
largest error (Lawson's algorithm).
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from splash_units.conversion.activations import Asymptotes, Pieces, asymptotes_of

Array = NDArray[np.float64]
Curve = Callable[[Array], Array]

SPAN = 8.0  # fits are made, and errors stated, for inputs in [−SPAN, SPAN]
SAMPLES = 801  # for each sign
COARSE = 0.5  # the grid on which the default hinges lie too, where the kernels are fastest
FINE = 0.1  # beyond that many hinges, which the coarse grid would waste
ENOUGH = 3
LAWSON_STEPS = 100
LINEAR = 1e-12  # a largest error that is rounding: this side of the activation has no curve

_fits: dict[tuple[Any, ...], Pieces] = {}


def fitted_pieces(activation: nn.Module, count: int) -> Pieces:
    """Pieces with `count` positive hinges that come nearest to a smooth activation."""
    options = (getattr(activation, name, None) for name in ("alpha", "approximate"))
    key = (type(activation), *options, count)
    if key not in _fits:
        hinges = best_hinges(_curve(activation), asymptotes_of(activation), count)
        _fits[key] = pieces_on(activation, hinges)
    return _fits[key]


def pieces_on(activation: nn.Module, hinges: Array) -> Pieces:
    """Pieces with these hinges, 0 among them, that come nearest to a smooth activation."""
    curve, asymptotes = _curve(activation), asymptotes_of(activation)
    right = _levelled(curve, hinges, *asymptotes.right)
    slope, intercept = asymptotes.left
    left = _levelled(lambda x: curve(-x), hinges, -slope, intercept)
    return Pieces(
        *(tuple(zip(hinges.tolist(), side.tolist(), strict=True)) for side in (right, left))
    )


def _curve(activation: nn.Module) -> Curve:
    """The activation as a function of numpy arrays, in float64."""

    def curve(x: Array) -> Array:
        with torch.no_grad():
            return np.asarray(activation.forward(torch.tensor(x, dtype=torch.float64)).numpy())

    return curve


def best_hinges(curve: Curve, asymptotes: Asymptotes, count: int) -> Array:
    """0 and the `count` positive candidates whose interpolation has the least largest error."""
    step = COARSE if count <= ENOUGH else FINE
    candidates = np.arange(0.0, SPAN, step)
    inner, last = _segment_errors(curve, asymptotes, candidates)

    reached = np.where(candidates == 0.0, 0.0, np.inf)  # the least error of a way from 0 to each
    came_from = []
    for _ in range(count - 1):
        through = np.maximum(reached[:, None], inner)
        came_from.append(through.argmin(0))
        reached = through.min(0)
    through = np.maximum(reached[:, None], last)
    before, outermost = np.unravel_index(through.argmin(), through.shape)

    way = [int(outermost), int(before)]
    for step_back in reversed(came_from):
        way.append(int(step_back[way[-1]]))
    return candidates[way[::-1]]


def _segment_errors(curve: Curve, asymptotes: Asymptotes, candidates: Array) -> tuple[Array, Array]:
    """[i, j]: the largest error of a segment from candidate i to j; and if j is the outermost."""
    n = len(candidates)
    inner, last = np.full((n, n), np.inf), np.full((n, n), np.inf)
    x = np.linspace(0.0, SPAN, SAMPLES)
    sides = []
    for sign, (slope, intercept) in ((1.0, asymptotes.right), (-1.0, asymptotes.left)):
        line = sign * slope * candidates + intercept
        beyond = np.abs(curve(sign * x) - (sign * slope * x + intercept))
        sides.append((curve(sign * x), curve(sign * candidates), line, beyond))

    for i in range(n):
        for j in range(i + 1, n):
            here = (x >= candidates[i]) & (x <= candidates[j])
            t = (x[here] - candidates[i]) / (candidates[j] - candidates[i])
            inner[i, j] = max(
                np.abs(at[i] + (at[j] - at[i]) * t - f[here]).max() for f, at, _, _ in sides
            )
            last[i, j] = max(
                max(
                    np.abs(at[i] + (line[j] - at[i]) * t - f[here]).max(),
                    beyond[x >= candidates[j]].max(),
                )
                for f, at, line, beyond in sides
            )
    return inner, last


def _levelled(curve: Curve, hinges: Array, slope: float, intercept: float) -> Array:
    """Changes of slope at `hinges` of the best h for x ≥ 0 that ends on slope·x + intercept."""
    values = np.zeros(len(hinges))
    values[-1] = slope * hinges[-1] + intercept if len(hinges) > 1 else 0.0
    if len(hinges) > 2:
        values[1:-1] = _least_largest_error(curve, hinges, values, slope, intercept)
    slopes = np.append(np.diff(values) / np.diff(hinges), slope)
    return np.diff(slopes, prepend=0.0)


def _least_largest_error(
    curve: Curve, hinges: Array, ends: Array, slope: float, intercept: float
) -> Array:
    """Values at the inner hinges; those at both `ends` are settled.

    Lawson: least squares, again and again, each time with the weights times the last errors.
    """
    x = np.linspace(0.0, SPAN, SAMPLES)
    outside = x > hinges[-1]
    settled = np.where(outside, slope * x + intercept, np.interp(x, hinges, ends))
    wanted = curve(x) - settled
    hats = np.stack([np.interp(x, hinges, hat) for hat in np.eye(len(hinges))[1:-1]], axis=1)
    hats[outside] = 0.0

    best, least = np.zeros(hats.shape[1]), np.inf
    weights = np.full(len(x), 1.0 / len(x))
    for _ in range(LAWSON_STEPS):
        root = np.sqrt(weights)
        values = np.linalg.lstsq(root[:, None] * hats, root * wanted, rcond=None)[0]
        errors = np.abs(hats @ values - wanted)
        if errors.max() < least:
            least, best = errors.max(), values
        if least < LINEAR:
            break
        weights *= errors
        weights /= weights.sum()
    return best
