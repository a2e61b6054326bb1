"""Where a unit starts: its hinges, and the slopes that give it a starting shape.

The paper prints the hinges for S = 7 only. The lists for the other S are nested around it and
contain the paper's own S = 5 list for APL; an S without a list gets evenly spaced hinges from 0 to
2.5, the outermost hinge of the paper.
"""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from torch import Tensor

Function = Callable[[Tensor], Tensor]

OUTERMOST = 2.5
DEFAULT_HINGES: dict[int, tuple[float, ...]] = {
    3: (0.0, 1.0),
    5: (0.0, 1.0, 2.0),
    7: (0.0, 1.0, 2.0, 2.5),
    9: (0.0, 0.5, 1.0, 2.0, 2.5),
    11: (0.0, 0.5, 1.0, 1.5, 2.0, 2.5),
}

# (a₊¹, a₋¹) of the shapes that need no other hinge than the one at zero.
ONE_HINGE_STARTS = {
    "relu": (1.0, 0.0),
    "leaky_relu": (1.0, -0.1),
    "identity": (1.0, -1.0),
    "abs": (1.0, 1.0),
}
INTERPOLATED_STARTS: dict[str, Function] = {
    "tanh": torch.tanh,
    "elu": torch.nn.functional.elu,
}
RANDOM_STD = 0.1
STARTS = (*ONE_HINGE_STARTS, *INTERPOLATED_STARTS, "random")


def default_hinges(num_hinges: int) -> tuple[float, ...]:
    """b¹ = 0 < b² < ... for an odd number S of hinges on the whole axis, (S + 1)/2 of them."""
    if not isinstance(num_hinges, int) or isinstance(num_hinges, bool):
        raise TypeError(f"num_hinges must be an odd whole number, got {num_hinges!r}")
    if num_hinges < 1 or num_hinges % 2 == 0:
        raise ValueError(
            f"num_hinges must be odd and positive (one hinge is at 0, the others come in pairs), "
            f"got {num_hinges}"
        )
    if num_hinges in DEFAULT_HINGES:
        return DEFAULT_HINGES[num_hinges]
    count = (num_hinges + 1) // 2
    return tuple(OUTERMOST * s / max(count - 1, 1) for s in range(count))


def checked_hinges(hinges: Sequence[float] | Tensor) -> tuple[float, ...]:
    """`hinges` as the float32 numbers a unit stores, if they are a list b¹ = 0 < b² < ..."""
    try:
        vector = torch.as_tensor(hinges, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"hinges must be a list of numbers, got {hinges!r}") from error
    if vector.dim() != 1:
        raise ValueError(f"hinges must be a flat list of numbers, got {hinges!r}")
    given, stored = vector.tolist(), tuple(vector.to(torch.float32).tolist())
    if not stored:
        raise ValueError("hinges must not be empty; (0.0,) is the least")
    if not all(math.isfinite(b) for b in stored):
        raise ValueError(f"hinges must be finite float32 numbers, got {given}")
    if stored[0] != 0.0:
        raise ValueError(
            f"the first hinge must be 0 (h is grounded there) and the others positive, got {given}"
        )
    if any(right <= left for left, right in pairwise(stored)):
        raise ValueError(f"hinges must increase strictly, in float32 too, got {given}")
    return stored


def starting_slopes(
    init: str | Function, hinges: Sequence[float], features: Sequence[int] = ()
) -> tuple[Tensor, Tensor]:
    """a₊ and a₋ of the shape `init`, a name or a function: float64, (len(hinges), *features)."""
    if init == "random":  # the one start that gives each of `features` a shape of its own
        a_pos, a_neg = RANDOM_STD * torch.randn(2, len(hinges), *features, dtype=torch.float64)
        return a_pos, a_neg
    a_pos, a_neg = (
        a.reshape(-1, *(1 for _ in features)).expand(-1, *features)
        for a in _one_shape(init, hinges)
    )
    return a_pos, a_neg


def _one_shape(init: str | Function, hinges: Sequence[float]) -> tuple[Tensor, Tensor]:
    if callable(init):
        return interpolating_slopes(init, hinges)
    if not isinstance(init, str) or init not in STARTS:
        raise ValueError(
            f"unknown init {init!r}: "
            f"choose one of {', '.join(STARTS)}, or a function f with f(0) = 0"
        )
    if init in INTERPOLATED_STARTS:
        return interpolating_slopes(INTERPOLATED_STARTS[init], hinges)
    slopes = torch.zeros(2, len(hinges), dtype=torch.float64)
    slopes[:, 0] = torch.tensor(ONE_HINGE_STARTS[init], dtype=torch.float64)
    return slopes[0], slopes[1]


def interpolating_slopes(f: Function, hinges: Sequence[float]) -> tuple[Tensor, Tensor]:
    """a₊ and a₋ of the unit that equals f at every hinge, and once more beyond the outermost.

    That last point, one more step out, is what settles the slope of the two unbounded segments.
    """
    at_zero = sampled(f, [0.0]).item()
    if at_zero != 0.0:
        raise ValueError(
            f"a SPLASH unit is grounded, h(0) = 0, so it can't start as a function with "
            f"f(0) = {at_zero:g}; subtract f(0) and leave it to a bias"
        )
    last_step = hinges[-1] - hinges[-2] if len(hinges) > 1 else 1.0
    points = torch.tensor([*hinges, hinges[-1] + last_step], dtype=torch.float64)
    return _changes_of_slope(f, points), _changes_of_slope(f, -points)


def _changes_of_slope(f: Function, points: Tensor) -> Tensor:
    """a of one side, whose `points` lead away from zero."""
    values = sampled(f, points.tolist())
    if not values.isfinite().all():
        raise ValueError(
            f"the function is not finite at {points[~values.isfinite()].tolist()}, "
            "where a hinge needs its value"
        )
    segment_slopes = values.diff() / points.abs().diff()
    return segment_slopes.diff(prepend=torch.zeros(1, dtype=torch.float64))


def sampled(f: Function, points: Sequence[float]) -> Tensor:
    """f at each point, in float64 (one call a point: `math.sin` is as welcome as `torch.sin`)."""
    with torch.no_grad():
        values = [float(f(torch.tensor(p, dtype=torch.float64))) for p in points]
    return torch.tensor(values, dtype=torch.float64)
