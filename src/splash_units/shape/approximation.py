"""The theorem of the paper, made checkable: a unit for any function, and how near it comes.

The paper claims that for any uniformly continuous f on [A, B] and any ε some S gives a unit within
ε of f. Departures, each where the statement or its proof needs one:

- The proof's hinges are evenly spaced on [A, B], where they need be neither symmetric nor at 0.
  Here they are on [−M, M] with M = max(|A|, |B|) and S odd, so the bound is S > 2M/δ − 1.
- f(0) = 0 is asked for, as the proof's last sentence does, if 0 lies in [A, B]. If it doesn't, f
  is continued to the origin by a straight line.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import max_pool1d

from splash_units.shape.piecewise import Shape, segments
from splash_units.shape.search import evaluated, largest, pointwise
from splash_units.starts import Function, checked_hinges, default_hinges
from splash_units.unit import Splash

Modulus = Callable[[float], float]

GROUNDED = 1e-9  # |f(0)| that counts as 0: the rounding of, say, softplus(0) − ln 2
SLIVER = 1e-9  # a part of a segment that is too short to settle a slope, relative to the interval
GRIDS = (2**13, 2**16, 2**19)  # the first that is fine enough serves
FINE_ENOUGH = 64  # steps within δ: then rounding δ down to the grid costs little
BISECTIONS = 200
PROBED = 64  # points at which to see whether a function can be asked for many at once
ROUNDED_DOWN = 1e-12  # what 2M/δ may have lost to rounding


@dataclass(frozen=True, eq=False)
class Fit:
    """The unit that interpolates a function, and its largest error on [low, high].

    `max_error` is that of the unit as it is, float32 slopes included, and `worst_at` its place.
    """

    unit: Splash
    low: float
    high: float
    max_error: float
    worst_at: float

    @property
    def shape(self) -> Shape:
        return segments(self.unit)


def fit(
    f: Function,
    low: float,
    high: float,
    num_hinges: int | None = None,
    *,
    hinges: Sequence[float] | Tensor | None = None,
    **options: Any,
) -> Fit:
    """The SPLASH unit that equals f at its hinges and at both ends of [low, high].

    The S = `num_hinges` hinges (7, if nothing is said) cut [−M, M], M = max(|low|, |high|), into
    S + 1 equal parts; `hinges` puts b¹ = 0 < b² < ... elsewhere. f is asked for values in
    [low, high] only, and the unit goes straight on beyond. `options` are those of :class:`Splash`.

    The largest error is searched for on every segment: the error is sampled at 64 steps, and around
    the largest samples a golden-section search finds the top. It is found to some 1e-12 unless f
    has peaks narrower than a 64th of a segment.
    """
    low, high = _checked_interval(low, high)
    _check_grounded(f, low, high)
    positions = _positions(low, high, num_hinges, hinges)
    target = _interpolant(f, low, high, positions)
    target.__name__ = getattr(f, "__name__", type(f).__name__)
    unit = Splash(hinges=positions, init=target, **options)
    shape = segments(unit)
    if shape.groups:
        shape = shape[(0,) * len(shape.groups)]  # they are all the same
    inner = [b for b in shape.breakpoints.tolist() if low < b < high]
    exact = pointwise(f, torch.linspace(low, high, PROBED, dtype=torch.float64))
    worst_at, max_error = largest(
        lambda x: (exact(x) - shape(x)).abs(), torch.tensor([low, *inner, high])
    )
    return Fit(unit, low, high, max_error, worst_at)


def hinges_needed(
    f: Function,
    low: float,
    high: float,
    epsilon: float,
    *,
    lipschitz: float | None = None,
    modulus: Modulus | None = None,
) -> int:
    """The S the theorem asks for, so that :func:`fit` is within `epsilon` of f on [low, high].

    The least odd S > 2M/δ − 1, where δ is such that |x − y| ≤ δ makes |f(x) − f(y)| ≤ epsilon. From
    a Lipschitz constant L, δ = epsilon/L; from a modulus of continuity ω, the largest δ with
    ω(δ) ≤ epsilon; from neither, δ is measured on a grid of 8192 steps or more, which can only be
    trusted for an f that is tame between its points.

    The bound needs no derivatives and so asks for many: for an f with a bounded second derivative
    the error is at most h²/8·max|f″|, h being the segments' length.
    """
    low, high = _checked_interval(low, high)
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise ValueError(f"epsilon must be a positive number, got {epsilon!r}")
    if lipschitz is not None and modulus is not None:
        raise ValueError("give lipschitz or modulus, not both")
    _check_grounded(f, low, high)

    if lipschitz is not None:
        if not (math.isfinite(lipschitz) and lipschitz >= 0):
            raise ValueError(f"lipschitz must be a number that isn't negative, got {lipschitz!r}")
        delta = epsilon / lipschitz if lipschitz > 0 else math.inf
    elif modulus is not None:
        delta = _largest_step(modulus, high - low, epsilon)
    else:
        delta = _measured_step(f, low, high, epsilon)
    delta = min(delta, _step_to_origin(f, low, high, epsilon))
    parts = 2 * max(abs(low), abs(high)) / delta * (1 + ROUNDED_DOWN)
    num_hinges = max(math.floor(parts - 1) + 1, 1)  # the least whole number above the bound
    return num_hinges + 1 - num_hinges % 2


def _checked_interval(low: float, high: float) -> tuple[float, float]:
    low, high = float(low), float(high)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise ValueError(f"low and high must be finite, low < high, got low={low:g}, high={high:g}")
    return low, high


def _check_grounded(f: Function, low: float, high: float) -> None:
    if not low <= 0.0 <= high:
        return
    at_zero = evaluated(f, torch.zeros(1, dtype=torch.float64)).item()
    if not abs(at_zero) <= GROUNDED:
        raise ValueError(
            f"a SPLASH unit is 0 at 0, so it can't approximate a function with f(0) = {at_zero:g} "
            f"on an interval with 0 inside; subtract f(0) and leave it to a bias"
        )


def _positions(
    low: float, high: float, num_hinges: int | None, hinges: Sequence[float] | Tensor | None
) -> list[float]:
    """b¹ = 0 < b² < ..., as float32 has them, since that is how the unit keeps them."""
    if hinges is not None:
        if num_hinges is not None:
            raise ValueError("give num_hinges or hinges, not both")
        exact = torch.tensor(checked_hinges(hinges), dtype=torch.float64)
    else:
        count = len(default_hinges(7 if num_hinges is None else num_hinges))
        exact = max(-low, high) * torch.arange(count, dtype=torch.float64) / count
    return exact.to(torch.float32).tolist()


def _interpolant(f: Function, low: float, high: float, positions: list[float]) -> Function:
    """The piecewise-linear function whose line on each segment is the chord of f over it."""
    knots = torch.tensor([*positions, math.inf], dtype=torch.float64)
    right = _chords(f, max(low, 0.0), max(high, 0.0), knots)
    left = _chords(lambda x: f(-x), max(-high, 0.0), max(-low, 0.0), knots)

    def interpolant(x: Tensor) -> Tensor:
        slopes = torch.where(x < 0, left[:, None], right[:, None])
        run = (x.abs().reshape(1, -1) - knots[:-1, None]).clamp(min=0.0)
        run[:-1] = run[:-1].minimum(knots.diff()[:-1, None])  # the last segment has no end
        return (slopes * run).sum(0).reshape(x.shape)

    return interpolant


def _chords(f: Function, near: float, far: float, knots: Tensor) -> Tensor:
    """Slopes of one side's segments, from zero outwards; f is known on [near, far], 0 ≤ near."""
    slopes = torch.zeros(len(knots) - 1, dtype=torch.float64)
    ends = knots.clamp(near, far)  # of each segment, the part where f is known
    known = (ends.diff() > SLIVER * far).nonzero().flatten().tolist()
    if not known:
        return slopes
    values = evaluated(f, ends)
    if not values.isfinite().all():
        raise ValueError(
            f"the function is not finite at {ends[~values.isfinite()].tolist()}, in its interval"
        )
    first, last = known[0], known[-1]
    known_part = slice(first, last + 1)
    slopes[known_part] = (values.diff() / ends.diff())[known_part]
    slopes[last + 1 :] = slopes[last]
    if near > 0.0 and first == 0:  # one line from the origin: only its far end can be met
        slopes[0] = values[1] / ends[1]
    elif near > 0.0:  # continued to the hinge before `near`, and from there straight to the origin
        slopes[:first] = (values[first] - slopes[first] * (ends[first] - knots[first])) / knots[
            first
        ]
    return slopes


def _step_to_origin(f: Function, low: float, high: float, epsilon: float) -> float:
    """δ of the line that continues f to the origin, if 0 is not in [low, high]."""
    if low <= 0.0 <= high:
        return math.inf
    end = low if low > 0 else high
    steepness = abs(evaluated(f, torch.tensor([end], dtype=torch.float64)).item() / end)
    return epsilon / steepness if steepness > 0 else math.inf


def _largest_step(modulus: Modulus, width: float, epsilon: float) -> float:
    """The largest δ with ω(δ) ≤ ε, by bisection: a modulus of continuity never falls."""
    if modulus(width) <= epsilon:
        return math.inf
    fits, exceeds = 0.0, width
    for _ in range(BISECTIONS):
        middle = (fits + exceeds) / 2
        if modulus(middle) <= epsilon:
            fits = middle
        else:
            exceeds = middle
    if fits == 0.0:
        raise ValueError(f"the modulus is above epsilon={epsilon:g} for every step, however small")
    return fits


def _measured_step(f: Function, low: float, high: float, epsilon: float) -> float:
    """δ from the values of f on a grid, fine enough for δ to be many of its steps."""
    for grid in GRIDS:
        values = evaluated(f, torch.linspace(low, high, grid + 1, dtype=torch.float64))
        if not values.isfinite().all():
            raise ValueError(f"the function is not finite everywhere in [{low:g}, {high:g}]")
        if values.max() - values.min() <= epsilon:
            return math.inf
        steps = _steps_within(values, epsilon)
        if steps >= FINE_ENOUGH:
            break
    if steps < 2:
        raise ValueError(
            f"the function varies by more than epsilon={epsilon:g} within "
            f"{2 * (high - low) / grid:.3g}: too steep to measure, give lipschitz or modulus"
        )
    # Two points that are steps − 1 apart, on the grid or not, lie within `steps` steps of it.
    return (steps - 1) * (high - low) / grid


def _steps_within(values: Tensor, epsilon: float) -> int:
    """The most steps of the grid within which f never varies by more than epsilon."""

    def fits(steps: int) -> bool:
        row, window = values[None], steps + 1
        return bool((max_pool1d(row, window, 1) + max_pool1d(-row, window, 1)).max() <= epsilon)

    exceeding = 1
    while fits(exceeding):
        exceeding = min(2 * exceeding, len(values) - 1)
    fitting = exceeding // 2
    while exceeding - fitting > 1:
        middle = (fitting + exceeding) // 2
        fitting, exceeding = (middle, exceeding) if fits(middle) else (fitting, middle)
    return fitting
