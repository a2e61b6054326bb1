"""How the shapes of a run's SPLASH units changed while it trained, from its slopes alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

GRID: Array = np.linspace(-4.0, 4.0, 81)


@dataclass(frozen=True, eq=False)
class Evolution:
    """The shape of one unit on `x` at several times (in epochs); channels are averaged."""

    layer: str
    times: Array
    x: Array
    curves: Array


def evolutions(
    shapes: Mapping[str, Array], times: Sequence[float] | None = None, x: Array | None = None
) -> list[Evolution]:
    """Every SPLASH unit of `Run.shapes()`, first layer first; empty if there is none.

    `times` are epochs: the recorded time nearest to each is shown, once; None shows them all.
    Without `x`, a shape is told at its hinges and at the ends of the axis, between which it is
    straight.
    """
    recorded = shapes["time"]
    chosen = list(range(len(recorded))) if times is None else nearest(recorded, times)
    layers = [name.removesuffix(".hinges") for name in shapes if name.endswith(".hinges")]
    found = []
    for layer in layers if len(recorded) else ():
        hinges = shapes[f"{layer}.hinges"]
        places = knots(hinges) if x is None else x
        right, left = (shapes[f"{layer}.{side}"][chosen] for side in ("a_pos", "a_neg"))
        curves = splash_curves(right, left, hinges, places)
        found.append(Evolution(short_name(layer), recorded[chosen], places, curves))
    return found


def knots(hinges: Array) -> Array:
    """The hinges on both sides and the ends of GRID."""
    inside = hinges[hinges < GRID[-1]]
    return np.unique(np.concatenate([[GRID[0]], -inside, inside, [GRID[-1]]]))


def splash_curves(a_pos: Array, a_neg: Array, hinges: Array, x: Array) -> Array:
    """h(x) at each time, for slopes of shape (times, hinges, *features): (times, len(x)).

    The unit is linear in its slopes, so the mean shape is the shape of the mean slopes.
    """
    right = np.maximum(0.0, x[None, :] - hinges[:, None])
    left = np.maximum(0.0, -x[None, :] - hinges[:, None])
    curves: Array = _mean_slopes(a_pos) @ right + _mean_slopes(a_neg) @ left
    return curves


def _mean_slopes(slopes: Array) -> Array:
    mean: Array = slopes.reshape(*slopes.shape[:2], -1).mean(-1)
    return mean


def nearest(recorded: Array, wanted: Sequence[float]) -> list[int]:
    """Where the recorded times nearest to the wanted ones stand, each once, in order."""
    return sorted({int(np.abs(recorded - time).argmin()) for time in wanted})


def short_name(layer: str) -> str:
    """A layer's name without what every layer's has: body.unit1.1 is unit1."""
    parts = [part for part in layer.split(".") if not part.isdigit() and part != "body"]
    return ".".join(parts)
