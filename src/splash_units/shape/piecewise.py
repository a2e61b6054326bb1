"""A unit's shape as what it is: S + 1 straight lines, each with its slope and intercept.

Everything here is float64 and on the CPU, whatever the unit is, so that sums of slopes are exact
for all practical purposes. A record may hold many shapes at once, one for each group of elements
that shares slopes; then every answer has one entry a group.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from splash_units.unit import Splash

Index = int | slice | tuple[int | slice, ...]

ROUNDING = 1e-6  # what sums of float32 slopes may be apart and still be called equal


@dataclass(frozen=True, eq=False)
class Shape:
    """h(x) = slope·x + intercept on each segment, left to right.

    Attributes:
        breakpoints: the S hinges −bˢ, ..., 0, ..., bˢ, increasing.
        slopes: shape (*groups, S + 1). `groups` is () for one shape, (C,) for a unit with a shape a
            channel, and the shape of a sample for a unit with a shape an element.
        intercepts: likewise: where each segment's line meets x = 0.

    A hinge belongs to the segment on its right (h is the same on both).
    """

    breakpoints: Tensor
    slopes: Tensor
    intercepts: Tensor

    @property
    def num_hinges(self) -> int:
        """S."""
        return len(self.breakpoints)

    @property
    def groups(self) -> tuple[int, ...]:
        """How many shapes there are: () for a single one."""
        return tuple(self.slopes.shape[:-1])

    @property
    def segment_names(self) -> tuple[str, ...]:
        """The segments as intervals: "(-inf, -1)", "[-1, 0)", ..."""
        inner = [f"{b:.4g}" for b in self.breakpoints.tolist()]
        first, *others = pairwise(["-inf", *inner, "inf"])
        return (f"({first[0]}, {first[1]})", *(f"[{low}, {high})" for low, high in others))

    def __getitem__(self, index: Index) -> "Shape":
        """The shape, or shapes, of some groups."""
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) > len(self.groups):
            raise IndexError(f"index {index!r} has too many numbers for groups {self.groups}")
        return Shape(self.breakpoints, self.slopes[indices], self.intercepts[indices])

    def __call__(self, x: Tensor | float | Sequence[float]) -> Tensor:
        """h at every point of x, in float64: shape (*groups, *x.shape)."""
        points = torch.as_tensor(x, dtype=torch.float64, device="cpu").detach()
        points = points.contiguous()  # bucketize would warn that it has to do it
        segment = torch.bucketize(points, self.breakpoints, right=True)
        slope, intercept = self.slopes[..., segment], self.intercepts[..., segment]
        # At ±∞ a flat segment is its intercept, not 0·∞; NaN stays NaN on every segment.
        flat = (slope == 0) & ~points.isnan()
        return torch.where(flat, intercept, slope * points + intercept)

    @property
    def lipschitz(self) -> Tensor:
        """The least L with |h(x) − h(y)| ≤ L·|x − y| for all x, y: the steepest slope."""
        return self.slopes.abs().amax(-1)

    @property
    def min_slope(self) -> Tensor:
        return self.slopes.amin(-1)

    @property
    def max_slope(self) -> Tensor:
        return self.slopes.amax(-1)

    def is_monotone(self, tol: float = ROUNDING) -> Tensor:
        """Whether h never falls, or never rises, by more than `tol` times the distance."""
        return (self.min_slope >= -tol) | (self.max_slope <= tol)

    def is_odd(self, tol: float = ROUNDING) -> Tensor:
        """Whether |h(x) + h(−x)| ≤ tol·|x| for every x."""
        # That sum is 0 at 0, and its slope is the difference of two mirrored segments' slopes.
        return ((self.slopes - self.slopes.flip(-1)).abs() <= tol).all(-1)

    def is_even(self, tol: float = ROUNDING) -> Tensor:
        """Whether |h(x) − h(−x)| ≤ tol·|x| for every x."""
        return ((self.slopes + self.slopes.flip(-1)).abs() <= tol).all(-1)

    def flat_segments(self, tol: float = 0.0) -> Tensor:
        """Which segments have slope 0, and so pass no gradient on: a mask like `slopes`."""
        return self.slopes.abs() <= tol

    def __str__(self) -> str:
        if self.groups:
            return f"{self.slopes[..., 0].numel()} shapes of {self.num_hinges + 1} segments"
        names = self.segment_names
        width = max(map(len, names))
        lines = zip(names, self.slopes.tolist(), self.intercepts.tolist(), strict=True)
        rows = [f"  {name:<{width}}  {a:+.4f} x {c:+.4f}" for name, a, c in lines]
        return "\n".join([f"{len(names)} segments, Lipschitz {self.lipschitz:.4f}", *rows])


def segments(unit: Splash, index: Index | None = None) -> Shape:
    """The exact piecewise-linear form of a unit, now.

    A unit with many shapes (share="channel" or "unit") gives them all, one row a group of elements
    that shares slopes; `index` picks some: `segments(unit, index=3)` is the shape of channel 3.
    """
    if not isinstance(unit, Splash):
        raise TypeError(f"segments needs a Splash unit, got {type(unit).__name__}")
    shape = shape_of(unit.a_pos, unit.a_neg, unit.hinges)
    return shape if index is None else shape[index]


def shape_of(a_pos: Tensor, a_neg: Tensor, hinges: Tensor) -> Shape:
    """The shape, or shapes, of slopes that have one row a hinge, as the units keep them."""
    right, left, b = (t.detach().to("cpu", torch.float64) for t in (a_pos, a_neg, hinges))
    right, left = right.movedim(0, -1), left.movedim(0, -1)
    # Each a is a change of slope: the k-th segment from the middle has all changes up to the k-th.
    # d/dx of max(0, −x − b) is −1, hence the sign on the left.
    slopes = torch.cat([-left.cumsum(-1).flip(-1), right.cumsum(-1)], dim=-1)
    intercepts = torch.cat([-(left * b).cumsum(-1).flip(-1), -(right * b).cumsum(-1)], dim=-1)
    breakpoints = torch.cat([-b[1:].flip(0), b])
    return Shape(breakpoints, slopes, intercepts + 0.0)  # + 0.0 turns −0 into 0
