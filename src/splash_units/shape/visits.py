"""How often a network's inputs fall on each segment of its units."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from splash_units.shape.piecewise import Shape, segments
from splash_units.shape.tapping import Forward, observe_inputs, units_of
from splash_units.unit import Splash


@dataclass(frozen=True, eq=False)
class Occupancy:
    """How many inputs of one unit fell on each segment, left to right.

    Attributes:
        shape: the unit's shape.
        counts: like `shape.slopes`, (*groups, S + 1): one row a group of elements that shares
            slopes. An input on a hinge counts for the segment on its right.
        nans: how many inputs were NaN, which no segment counts; shape (*groups,).
    """

    shape: Shape
    counts: Tensor
    nans: Tensor

    @property
    def total(self) -> Tensor:
        """How many inputs each group had, without NaN."""
        return self.counts.sum(-1)

    @property
    def fractions(self) -> Tensor:
        """`counts` over `total`; NaN for a group that had no input at all."""
        return self.counts / self.total.unsqueeze(-1).to(torch.float64)

    @property
    def dead(self) -> Tensor:
        """Which segments no input fell on: a mask like `counts`."""
        return self.counts == 0

    @property
    def dead_segments(self) -> tuple[str, ...]:
        """The dead segments by name: "[2, 2.5)", or "3: [2, 2.5)" where there are groups."""
        names = self.shape.segment_names
        where = [tuple(i) for i in self.dead.nonzero().tolist()]
        return tuple(f"{_group(i[:-1])}{names[i[-1]]}" for i in where)

    def __str__(self) -> str:
        if self.shape.groups:
            return f"{self.total.sum()} inputs, {int(self.dead.sum())} dead of {self.dead.numel()}"
        names = self.shape.segment_names
        width = max(map(len, names))
        rows = zip(names, self.fractions.tolist(), strict=True)
        return "\n".join(f"{name:<{width}}  {100 * share:7.3f} %" for name, share in rows)


def _group(index: tuple[int, ...]) -> str:
    return f"{', '.join(map(str, index))}: " if index else ""


def occupancy(
    model: nn.Module, batches: Iterable[Any] | Tensor, *, forward: Forward | None = None
) -> dict[str, Occupancy]:
    """How often inputs fall on each segment of every SPLASH unit, by the unit's qualified name.

    The batches run in eval mode and nothing of the network changes. A tensor is one batch; of a
    tuple or list the first is the input; a mapping is given as keywords; `forward(model, batch)`
    runs any other. A unit that serves several places counts them all.
    """
    units = units_of(model)
    bins = {
        name: torch.zeros(*unit.features, unit.num_hinges + 2, dtype=torch.int64)
        for name, unit in units.items()
    }

    def count(name: str, unit: Splash, x: Tensor) -> None:
        bins[name] += _counted(unit, x)

    observe_inputs(model, batches, count, forward)
    return {
        name: Occupancy(segments(unit), bins[name][..., :-1], bins[name][..., -1])
        for name, unit in units.items()
    }


def _counted(unit: Splash, x: Tensor) -> Tensor:
    """Inputs on each segment, and a last bin for NaN: shape (*features, S + 2)."""
    wide = x.to(torch.promote_types(x.dtype, torch.float32)).contiguous()
    b = unit.hinges.to(wide.dtype)
    num_bins = unit.num_hinges + 2
    segment = torch.bucketize(wide, torch.cat([-b[1:].flip(0), b]), right=True)
    bins = torch.where(wide.isnan(), num_bins - 1, segment)
    groups = unit.a_pos[0].numel()
    if unit.share == "channel":
        # Its channels' numbers, along the dimension the slopes belong to.
        number = torch.arange(groups, device=x.device)
        bins = bins.movedim(unit.dim, -1) + num_bins * number
    elif unit.share == "unit":
        bins = bins + num_bins * torch.arange(groups, device=x.device).reshape(unit.features)
    counts = torch.bincount(bins.flatten(), minlength=num_bins * groups)
    return counts.cpu().reshape(*unit.features, num_bins)
