"""Which classic activation a learned shape resembles most, and how far it is from it.

The distance between a shape h and an activation g is the root of E[(h(x) − g(x))²], with x from the
unit normal that batch normalisation aims at, or from samples that are given. Activations that are
not 0 at 0 are moved there, since h is: sigmoid(x) − 1/2, softplus(x) − ln 2.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from splash_units.shape.piecewise import Shape, segments
from splash_units.unit import Splash

# The plainest first: where several are equally near, the first of them is the nearest.
CLASSICS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda x: x,
    "relu": torch.relu,
    "abs": torch.abs,
    "hardtanh": F.hardtanh,
    "tanh": torch.tanh,
    "sigmoid": lambda x: torch.sigmoid(x) - 0.5,
    "softplus": lambda x: F.softplus(x) - math.log(2.0),
    "elu": F.elu,
    "selu": F.selu,
    "gelu": F.gelu,
    "silu": F.silu,
}
EQUALLY_NEAR = 1e-9
REACH = 10.0  # beyond it the unit normal has a weight of 1e-23
PIECE = 0.5
NODES = 16


@dataclass(frozen=True)
class Nearest:
    """A classic activation, and how far it is from a shape.

    `slope` is the left slope of the leaky ReLU that is nearest, and None for every other name.
    """

    name: str
    distance: float
    slope: float | None = None


def nearest_classic(shape: Shape | Splash, samples: Tensor | None = None) -> Nearest:
    """The classic activation with the least distance to one shape.

    Among them is every leaky ReLU with a left slope from 0 to 1; its best slope is given. `samples`
    are inputs of the unit to measure the distance on, instead of the unit normal.
    """
    shape = shape if isinstance(shape, Shape) else segments(shape)
    if shape.groups:
        raise ValueError(
            f"there are {shape.slopes[..., 0].numel()} shapes (groups {shape.groups}): pick one "
            "with shape[index], or take classic_distances(shape) for all"
        )
    if not shape.slopes.isfinite().all():
        raise ValueError(f"the shape has slopes that are not finite: {shape.slopes.tolist()}")
    points, weights = _where_to_look(shape, samples)
    candidates = {name: float(d) for name, d in _distances(shape, points, weights).items()}
    least = min(candidates.values())
    name = next(n for n, d in candidates.items() if d <= least + EQUALLY_NEAR)
    slope = float(_leaky_slope(shape(points), points, weights)) if name == "leaky_relu" else None
    return Nearest(name, candidates[name], slope)


def classic_distances(shape: Shape | Splash, samples: Tensor | None = None) -> dict[str, Tensor]:
    """The distance to every classic activation by name, one entry a shape."""
    shape = shape if isinstance(shape, Shape) else segments(shape)
    return _distances(shape, *_where_to_look(shape, samples))


def _distances(shape: Shape, points: Tensor, weights: Tensor) -> dict[str, Tensor]:
    h = shape(points)
    curves = {name: g(points) for name, g in CLASSICS.items()}
    slope = _leaky_slope(h, points, weights).unsqueeze(-1)
    curves["leaky_relu"] = torch.where(points < 0, slope * points, points)
    return {name: (weights * (h - g).square()).sum(-1).sqrt() for name, g in curves.items()}


def _leaky_slope(h: Tensor, points: Tensor, weights: Tensor) -> Tensor:
    """Least squares of h against slope·x left of zero, kept where a leaky ReLU has it."""
    left = points < 0
    x, w = points[left], weights[left]
    return ((w * x * h[..., left]).sum(-1) / (w * x * x).sum(-1)).nan_to_num(0.0).clamp(0.0, 1.0)


def _where_to_look(shape: Shape, samples: Tensor | None) -> tuple[Tensor, Tensor]:
    if samples is None:
        return _unit_normal(shape.breakpoints)
    points = samples.detach().to("cpu", torch.float64).flatten()
    if points.numel() == 0 or not points.isfinite().all():
        raise ValueError("samples must be finite and not empty")
    return points, torch.full_like(points, 1.0 / len(points))


def _unit_normal(breakpoints: Tensor) -> tuple[Tensor, Tensor]:
    """Gauss-Legendre nodes under the normal density, on pieces where h and every g are smooth."""
    grid = torch.arange(-REACH, REACH + PIECE, PIECE, dtype=torch.float64)
    edges = torch.cat([grid, breakpoints[breakpoints.abs() < REACH]]).sort().values
    nodes, weights = (torch.from_numpy(t) for t in np.polynomial.legendre.leggauss(NODES))
    half = edges.diff()[:, None] / 2
    points = (edges[:-1, None] + half * (nodes + 1)).flatten()
    density = torch.exp(-0.5 * points.square()) / math.sqrt(2 * math.pi)
    return points, (half * weights).flatten() * density
