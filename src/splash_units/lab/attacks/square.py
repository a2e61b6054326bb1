"""The Square attack (Andriushchenko et al., 2020): random squares, kept when the true class' lead
shrinks.

It asks for logits only, so that it notices where gradients mislead. Departure: every image has its
own squares; the reference gives all images of a batch the same.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from splash_units.lab.attacks import slots
from splash_units.lab.attacks.attack import Attack, Task
from splash_units.lab.attacks.gradient import column, pick
from splash_units.lab.attacks.streams import uniform
from splash_units.lab.attacks.threat import Budget, positive, whole
from splash_units.lab.attacks.victim import Victim, margin

# Of 10,000 queries, those after which the squares' area is halved.
HALVED_AFTER = (10, 50, 200, 500, 1000, 2000, 4000, 6000, 8000)


@dataclass
class SquareRows(slots.Rows):
    draws: Tensor  #: place and signs of every square
    stripes: Tensor  #: the image to begin with
    lead: Tensor  #: of the true class, at `best`
    query: Tensor


@dataclass(frozen=True)
class Square(Attack):
    """Misclassification within `eps` in Linf by up to `queries` random squares.

    The first square covers `area` of the image, the later ones less and less.
    """

    eps: float
    queries: int = 5000
    area: float = 0.8

    def __post_init__(self) -> None:
        positive("eps", self.eps)
        whole("queries", self.queries)
        if not (0 < self.area <= 1):
            raise ValueError(f"area must be above 0 and at most 1, got {self.area!r}")

    @property
    def budget(self) -> Budget:
        return Budget("linf", self.eps)

    def perturb(self, victim: Victim, task: Task) -> Tensor:
        height, width = task.images.shape[2:]
        sides = self._sides(height, width).to(task.images.device)

        def advance(rows: SquareRows) -> Tensor:
            side = sides[rows.query.clamp(max=self.queries - 1)]
            square = self._with_square(rows, side)
            images = torch.where(column(rows.query == 0), rows.stripes, square)
            lead = margin(victim.logits(images), rows.label)
            better = lead < rows.lead
            rows.best = torch.where(column(better), images, rows.best)
            rows.lead = torch.where(better, lead, rows.lead)
            rows.query += 1
            return (rows.lead < 0) | (rows.query >= self.queries)

        return slots.run(victim, task, begin=self._begin, advance=advance)

    def _begin(self, task: Task) -> SquareRows:
        clean = task.images.contiguous()
        channels, width = clean.shape[1], clean.shape[3]
        generators = task.fresh_streams()
        signs = uniform(generators, channels, 1, width, like=clean) < 0.5
        stripes = (clean + torch.where(signs, self.eps, -self.eps)).clamp(0, 1)
        return SquareRows(
            clean=clean,
            label=task.labels,
            best=stripes.clone(),
            draws=uniform(generators, self.queries, 2 + channels, like=clean),
            stripes=stripes,
            lead=clean.new_full((len(task),), torch.inf),
            query=torch.zeros_like(task.labels),
        )

    def _sides(self, height: int, width: int) -> Tensor:
        """The side of every query's square; the area is halved at fixed shares of the queries."""
        sides = []
        for query in range(self.queries):
            of_ten_thousand = int(query / self.queries * 10_000)
            halvings = sum(of_ten_thousand > after for after in HALVED_AFTER)
            side = round(math.sqrt(self.area / 2**halvings * height * width))
            sides.append(min(max(side, 1), height, width))
        return torch.tensor(sides)

    def _with_square(self, rows: SquareRows, side: Tensor) -> Tensor:
        """The best image so far with one square moved to an edge of the budget, by channel."""
        height, width = rows.clean.shape[2:]
        draw = pick(rows.draws, rows.query)
        top = (draw[:, 0] * (height - side + 1)).floor()
        left = (draw[:, 1] * (width - side + 1)).floor()
        inside = (
            between(top, side, height)[:, None, :, None]
            & between(left, side, width)[:, None, None, :]
        )
        moved = torch.where(draw[:, 2:, None, None] < 0.5, self.eps, -self.eps) + rows.clean
        return torch.where(inside, moved.clamp_(0, 1), rows.best)


def between(start: Tensor, length: Tensor, axis: int) -> Tensor:
    """For each row, which coordinates of an axis lie in an interval."""
    coordinates = torch.arange(axis, device=start.device)
    return (coordinates >= start[:, None]) & (coordinates < (start + length)[:, None])
