"""A function's values, one call for many points where it can; and where it is largest."""

import torch
from torch import Tensor

from splash_units.starts import Function, sampled

SAMPLES = 64
BRACKETS = 32
GOLDEN = (5**0.5 - 1) / 2
NARROWINGS = 40  # of a bracket of two samples, by 0.618 each: to 4e-9 of it


def evaluated(f: Function, points: Tensor) -> Tensor:
    """f at every point, in float64: in one call, if that is safe."""
    return pointwise(f, points)(points)


def pointwise(f: Function, like: Tensor) -> Function:
    """f for any number of points, in float64; `like` are such as it will be asked for.

    It is called once for all points if it takes tensors, and gives for three of `like` what it
    gives for each alone; else once a point, so that `math.sin`, or a function with an `if`, is
    welcome too.
    """
    several = like.flatten()
    takes_many = len(several) > 0 and _takes_many(f, several.to(torch.float64))

    def every(points: Tensor) -> Tensor:
        flat = points.flatten().to(torch.float64, copy=True)
        if not takes_many:
            return sampled(f, flat.tolist()).reshape(points.shape)
        with torch.no_grad():
            return f(flat).to("cpu", torch.float64).reshape(points.shape)

    return every


def _takes_many(f: Function, points: Tensor) -> bool:
    probes = torch.tensor([0, len(points) // 2, len(points) - 1])
    try:
        with torch.no_grad():
            values = f(points.clone())
    except (TypeError, ValueError, RuntimeError):  # what tensors raise where one number was meant
        return False
    if not (isinstance(values, Tensor) and values.shape == points.shape):
        return False
    alone = sampled(f, points[probes].tolist())
    together = values.to("cpu", torch.float64)[probes]
    return torch.allclose(together, alone, rtol=1e-9, atol=1e-12, equal_nan=True)


def largest(g: Function, edges: Tensor) -> tuple[float, float]:
    """Where g is largest on [edges[0], edges[-1]], and how large; smooth between the edges."""
    steps = torch.linspace(0.0, 1.0, SAMPLES + 1, dtype=torch.float64)
    left, right = edges[:-1, None].double(), edges[1:, None].double()
    points = left + (right - left) * steps
    points[:, -1] = right[:, 0]  # to the last bit
    values = g(points)

    # Only what tops its neighbours can hide a top; the edges are known exactly as they are.
    tops = (values[:, 1:-1] >= values[:, :-2]) & (values[:, 1:-1] >= values[:, 2:])
    candidates = values[:, 1:-1].masked_fill(~tops, -torch.inf).flatten()
    order = candidates.topk(min(BRACKETS, len(candidates))).indices
    piece, step = order // (SAMPLES - 1), order % (SAMPLES - 1)
    refined, at = _golden_section(g, points[piece, step], points[piece, step + 2])

    values, points = torch.cat([values.flatten(), refined]), torch.cat([points.flatten(), at])
    best = int(values.argmax())
    return points[best].item(), values[best].item()


def _golden_section(g: Function, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The largest value of g in each bracket [low, high], where it has one top; and its place."""
    for _ in range(NARROWINGS):
        inner_low, inner_high = high - GOLDEN * (high - low), low + GOLDEN * (high - low)
        at_low, at_high = g(torch.stack([inner_low, inner_high]))
        rising = at_low < at_high
        low, high = torch.where(rising, inner_low, low), torch.where(rising, high, inner_high)
    middle = (low + high) / 2
    return g(middle), middle
