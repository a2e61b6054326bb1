"""A function's values, one call for many points where it can; and where it is largest."""

import torch
from torch import Tensor

from splash_units.starts import Function, sampled

SAMPLES = 64
BRACKETS = 32
GOLDEN = (5**0.5 - 1) / 2
NARROWINGS = 40  # of a bracket of two samples, by 0.618 each: to 4e-9 of it


def evaluated(f: Function, points: Tensor) -> Tensor:
    """f at every point, in float64.

    In one call if f takes tensors, and gives for three of the points what it gives for each alone;
    else one call a point, so that `math.sin`, or a function with an `if`, is welcome too.
    """
    flat = points.to(torch.float64).flatten()
    if len(flat) == 0:
        return flat.reshape(points.shape)
    probes = torch.tensor([0, len(flat) // 2, len(flat) - 1])
    try:
        with torch.no_grad():
            values = f(flat.clone())
    except (TypeError, ValueError, RuntimeError):  # what tensors raise where one number was meant
        values = None
    if isinstance(values, Tensor) and values.shape == flat.shape:
        values = values.detach().to("cpu", torch.float64)
        alone = sampled(f, flat[probes].tolist())
        if torch.allclose(values[probes], alone, rtol=1e-9, atol=1e-12, equal_nan=True):
            return values.reshape(points.shape)
    return sampled(f, flat.tolist()).reshape(points.shape)


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
