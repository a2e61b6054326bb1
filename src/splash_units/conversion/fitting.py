"""The unit nearest to a smooth activation: in the largest error, with the right asymptotes.

The two unbounded segments lie on the activation's asymptotes, so that the error stays bounded
however far out an input falls. Between them, the hinges that interpolate best are found among a
grid of candidates by dynamic programming, then moved while that helps; the values at the hinges are
those of the least largest error, by Lawson's algorithm.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from splash_units.conversion.activations import Pieces, asymptotes_of

Array = NDArray[np.float64]

SPAN = 8.0  # fits are made, and errors stated, for inputs in [−SPAN, SPAN]
COARSE = 0.5  # the grid that the default hinges lie on too, where the kernels are fastest
FINE = 0.1  # for more hinges than the coarse grid has a use for
ENOUGH = 3
LAWSON_STEPS = 100
LINEAR = 1e-12  # a largest error that is only rounding: there is no curve to fit

_x = np.linspace(0.0, SPAN, 801)
_fits: dict[tuple[Any, ...], Pieces] = {}


@dataclass(frozen=True)
class _Side:
    """An activation on one side of zero, as a function of |x|, and the line that it tends to."""

    of: Callable[[Array], Array]
    slope: float
    intercept: float

    def line(self, x: Array) -> Array:
        return self.slope * x + self.intercept


def fitted_pieces(activation: nn.Module, count: int) -> Pieces:
    """Pieces with `count` positive hinges that come nearest to a smooth activation."""
    options = (getattr(activation, name, None) for name in ("alpha", "approximate"))
    key = (type(activation), *options, count)
    if key not in _fits:
        step = COARSE if count <= ENOUGH else FINE
        sides = _sides(activation)
        hinges = _interpolating_hinges(sides, count, step)
        if count <= ENOUGH:
            hinges = _moved(sides, hinges, step)
        _fits[key] = pieces_on(activation, hinges)
    return _fits[key]


def pieces_on(activation: nn.Module, hinges: Array) -> Pieces:
    """Pieces with these hinges, 0 among them, that come nearest to a smooth activation."""
    changes = (_changes_of_slope(side, hinges) for side in _sides(activation))
    kept = hinges.astype(np.float32).tolist()
    return Pieces(*(tuple(zip(kept, side.tolist(), strict=True)) for side in changes))


def _sides(activation: nn.Module) -> tuple[_Side, _Side]:
    def curve(x: Array) -> Array:
        with torch.no_grad():
            return np.asarray(activation.forward(torch.tensor(x, dtype=torch.float64)).numpy())

    asymptotes = asymptotes_of(activation)
    slope, intercept = asymptotes.left
    return _Side(curve, *asymptotes.right), _Side(lambda x: curve(-x), -slope, intercept)


def _interpolating_hinges(sides: tuple[_Side, _Side], count: int, step: float) -> Array:
    """0 and the `count` positive candidates whose interpolation has the least largest error."""
    candidates = np.arange(0.0, SPAN, step)
    inner, last = _segment_errors(sides, candidates)

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


def _segment_errors(sides: tuple[_Side, _Side], candidates: Array) -> tuple[Array, Array]:
    """[i, j]: the largest error of a segment from candidate i to j; and if j is the outermost."""
    n = len(candidates)
    inner = np.where(np.tri(n, dtype=bool), np.inf, 0.0)
    last = inner.copy()
    for side in sides:
        wanted, at, on_line = side.of(_x), side.of(candidates), side.line(candidates)
        beyond = np.abs(wanted - side.line(_x))
        for i in range(n):
            for j in range(i + 1, n):
                here = (_x >= candidates[i]) & (_x <= candidates[j])
                t = (_x[here] - candidates[i]) / (candidates[j] - candidates[i])
                errors = [
                    np.abs(at[i] + (end - at[i]) * t - wanted[here]).max()
                    for end in (at[j], on_line[j])
                ]
                inner[i, j] = max(inner[i, j], errors[0])
                last[i, j] = max(last[i, j], errors[1], beyond[_x >= candidates[j]].max())
    return inner, last


def _moved(sides: tuple[_Side, _Side], hinges: Array, step: float) -> Array:
    """The hinges after moving one by one step, again and again, as long as the error shrinks."""
    best, least = hinges, _error(sides, hinges)
    while True:
        start = best
        for i in range(1, len(hinges)):
            for by in (-step, step):
                moved = start.copy()
                moved[i] += by
                if (np.diff(moved) > 0).all() and (error := _error(sides, moved)) < least:
                    best, least = moved, error
        if best is start:
            return best


def _error(sides: tuple[_Side, _Side], hinges: Array) -> float:
    errors = []
    for side in sides:
        changes = _changes_of_slope(side, hinges)
        h = np.maximum(_x[:, None] - hinges, 0.0) @ changes
        errors.append(np.abs(h - side.of(_x)).max())
    return float(max(errors))


def _changes_of_slope(side: _Side, hinges: Array) -> Array:
    """Of the best h for x ≥ 0 with these hinges that ends on the side's line."""
    values = np.zeros(len(hinges))
    if len(hinges) > 1:
        values[-1] = side.line(hinges[-1])
        values[1:-1] = _values_of_least_error(side, hinges, values)
    slopes = np.append(np.diff(values) / np.diff(hinges), side.slope)
    return np.diff(slopes, prepend=0.0)


def _values_of_least_error(side: _Side, hinges: Array, ends: Array) -> Array:
    """Values at the inner hinges, given those at both `ends`.

    Lawson: least squares, again and again, each time with the weights times the last errors.
    """
    outside = _x > hinges[-1]
    settled = np.where(outside, side.line(_x), np.interp(_x, hinges, ends))
    wanted = side.of(_x) - settled
    hats = np.array([np.interp(_x, hinges, hat) for hat in np.eye(len(hinges))])[1:-1].T
    hats = np.where(outside[:, None], 0.0, hats)

    best, least = np.zeros(len(hinges) - 2), np.inf
    weights = np.full(len(_x), 1.0 / len(_x))
    for _ in range(LAWSON_STEPS):
        root = np.sqrt(weights)
        values = np.linalg.lstsq(root[:, None] * hats, root * wanted, rcond=None)[0]
        errors = np.abs(hats @ values - wanted)
        if errors.max() < least:
            best, least = values, errors.max()
        if least < LINEAR:
            break
        weights *= errors
        weights /= weights.sum()
    return best
