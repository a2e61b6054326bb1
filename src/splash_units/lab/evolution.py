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
    shapes: Mapping[str, Array], times: Sequence[float] | None = None, x: Array = GRID
) -> list[Evolution]:
    """Every SPLASH unit of `Run.shapes()`, first layer first; empty if there is none.

    `times` are epochs: the recorded time nearest to each is shown, once; None shows them all.
    """
    recorded = shapes["time"]
    chosen = list(range(len(recorded))) if times is None else nearest(recorded, times)
    layers = [name.removesuffix(".hinges") for name in shapes if name.endswith(".hinges")]
    return [
        Evolution(
            short_name(layer),
            recorded[chosen],
            x,
            splash_curves(
                shapes[f"{layer}.a_pos"][chosen],
                shapes[f"{layer}.a_neg"][chosen],
                shapes[f"{layer}.hinges"],
                x,
            ),
        )
        for layer in layers
        if len(recorded)
    ]


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
