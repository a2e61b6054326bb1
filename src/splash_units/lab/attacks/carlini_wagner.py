"""Carlini and Wagner's L2 attack (2017): the smallest change of an image that changes its class.

For a constant c it minimises ||x' - x||^2 + c max(0, lead of the true class + confidence) with
Adam, x' being a tanh of the variable (written as a sigmoid, which is faster) so that it stays in
[0, 1], and searches for the c that gives the smallest change.

Departures: the SPLASH paper prints the second term with the sign reversed and without its floor at
0; the original's is used. From foolbox 3, whose settings the paper uses: an image stops early when
*its own* loss stalls, not the sum over whoever shares the batch, and an image for which nothing was
found is returned unchanged and counted as a failure, not as a black image that happens to be
classified differently.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from splash_units.lab.attacks import slots
from splash_units.lab.attacks.attack import Attack, Task
from splash_units.lab.attacks.gradient import column
from splash_units.lab.attacks.threat import positive, whole
from splash_units.lab.attacks.victim import Victim, margin

# Adam's, as in every implementation of this attack.
FIRST_DECAY, SECOND_DECAY, STABILISER = 0.9, 0.999, 1e-8
# Keeps arctanh finite for black and white pixels.
SHRINK = 0.999999
# A search ends for an image whose loss has not fallen by this part within this part of the steps,
# and not within this many: at first, the loss rises.
PROGRESS, PATIENCE, FEWEST_STEPS = 1e-3, 0.03, 20
# The last of many searches is spent on the smallest constant known to work.
MANY_SEARCHES, LARGEST_CONSTANT = 10, 1e10


@dataclass
class CarliniWagnerRows(slots.Rows):
    start: Tensor  #: the clean image as the optimiser sees it, doubled
    shift: Tensor  #: what the optimiser adds to it
    first_moment: Tensor
    second_moment: Tensor
    best_l2: Tensor
    constant: Tensor
    lower: Tensor  #: the largest constant known to be too small
    upper: Tensor  #: the smallest constant known to be enough
    found: Tensor  #: whether the present constant is enough
    best_loss: Tensor  #: of the present search
    since_progress: Tensor  #: steps since it fell by enough
    step: Tensor
    search: Tensor


@dataclass(frozen=True)
class CarliniWagnerL2(Attack):
    """The nearest misclassified image in L2, by `binary_search_steps` searches of up to `steps`
    steps.

    `abort_early` ends a search of an image when its loss has not fallen by 0.1 % within 3 % of the
    steps. `confidence` is by how many logits another class must lead.
    """

    binary_search_steps: int = 7
    steps: int = 1000
    step_size: float = 0.01
    confidence: float = 0.0
    initial_constant: float = 1e-3
    abort_early: bool = True

    def __post_init__(self) -> None:
        whole("binary_search_steps", self.binary_search_steps)
        whole("steps", self.steps)
        positive("step_size", self.step_size)
        positive("initial_constant", self.initial_constant)
        if not (0 <= self.confidence < math.inf):
            raise ValueError(f"confidence must be at least 0 and finite, got {self.confidence!r}")

    @property
    def budget(self) -> None:
        return None

    def perturb(self, victim: Victim, task: Task) -> Tensor:
        def advance(rows: CarliniWagnerRows) -> Tensor:
            stalled = self._descend(victim, rows)
            ended = stalled | (rows.step == self.steps)
            if bool(ended.any()):
                self._next_search(rows, ended)
            return rows.search >= self.binary_search_steps

        return slots.run(victim, task, begin=self._begin, advance=advance)

    def _begin(self, task: Task) -> CarliniWagnerRows:
        clean, one = task.images, task.images.new_ones(len(task))
        return CarliniWagnerRows(
            clean=clean,
            label=task.labels,
            best=clean.clone(),
            start=2 * torch.atanh((2 * clean - 1) * SHRINK),
            shift=torch.zeros_like(clean),
            first_moment=torch.zeros_like(clean),
            second_moment=torch.zeros_like(clean),
            best_l2=one * math.inf,
            constant=one * self.initial_constant,
            lower=one * 0,
            upper=one * math.inf,
            found=one < 0,
            best_loss=one * math.inf,
            since_progress=torch.zeros_like(task.labels),
            step=torch.zeros_like(task.labels),
            search=torch.zeros_like(task.labels),
        )

    def _descend(self, victim: Victim, rows: CarliniWagnerRows) -> Tensor:
        """One step of Adam; say whose loss has stalled."""
        images = torch.add(rows.start, rows.shift, alpha=2).sigmoid_()
        leads = []

        def lack(logits: Tensor) -> Tensor:
            """What is missing for a misclassification, times the constant."""
            lead = margin(logits, rows.label) + self.confidence
            leads.append(lead.detach())
            return lead.clamp(min=0) * rows.constant

        _, gradient = victim.gradient(images, lack)
        (lead,) = leads
        change = images - rows.clean
        l2 = torch.linalg.vector_norm(change.flatten(1), dim=1)
        self._remember(rows, images, lead < 0, l2)
        # d loss / d shift = (d lack / d image + 2 change) 2 image (1 - image)
        slope = gradient.add_(change, alpha=2).mul_(images).mul_(images.neg_().add_(1)).mul_(2)
        self._adam(rows, slope)
        return self._stalled(rows, l2.square() + lead.clamp(min=0) * rows.constant)

    def _remember(
        self, rows: CarliniWagnerRows, images: Tensor, fooled: Tensor, l2: Tensor
    ) -> None:
        """Keep the nearest misclassified image seen."""
        rows.found |= fooled
        nearer = fooled & (l2 < rows.best_l2)
        if bool(nearer.any()):
            rows.best[nearer] = images[nearer]
            rows.best_l2 = torch.where(nearer, l2, rows.best_l2)

    def _adam(self, rows: CarliniWagnerRows, slope: Tensor) -> None:
        rows.step += 1
        step = rows.step.to(slope.dtype)
        # Adam's corrections for its zero start and the step size, as one factor a row.
        stretch = (1 - FIRST_DECAY**step) / self.step_size
        rows.first_moment.lerp_(slope, 1 - FIRST_DECAY)
        rows.second_moment.mul_(SECOND_DECAY).addcmul_(slope, slope, value=1 - SECOND_DECAY)
        scale = rows.second_moment.sqrt().mul_(column(stretch / (1 - SECOND_DECAY**step).sqrt()))
        scale.add_(column(stretch * STABILISER))
        rows.shift.addcdiv_(rows.first_moment, scale, value=-1)

    def _stalled(self, rows: CarliniWagnerRows, loss: Tensor) -> Tensor:
        """Whose loss has not fallen by enough for too long."""
        fallen = loss <= (1 - PROGRESS) * rows.best_loss
        rows.best_loss = torch.where(fallen, loss, rows.best_loss)
        rows.since_progress = torch.where(fallen, 0, rows.since_progress + 1)
        patience = max(PATIENCE * self.steps, FEWEST_STEPS)
        return (rows.since_progress >= patience) & self.abort_early

    def _next_search(self, rows: CarliniWagnerRows, ended: Tensor) -> None:
        """Close in on the smallest constant that is enough; begin again from the clean image."""
        rows.upper = torch.where(ended & rows.found, rows.constant, rows.upper)
        rows.lower = torch.where(ended & ~rows.found, rows.constant, rows.lower)
        closer = torch.where(rows.upper.isinf(), rows.constant * 10, (rows.lower + rows.upper) / 2)
        rows.search += ended
        if self.binary_search_steps >= MANY_SEARCHES:
            last = rows.search == self.binary_search_steps - 1
            closer = torch.where(last, rows.upper.clamp(max=LARGEST_CONSTANT), closer)
        rows.constant = torch.where(ended, closer, rows.constant)
        rows.found &= ~ended
        rows.best_loss[ended] = math.inf
        rows.since_progress[ended] = 0
        rows.step[ended] = 0
        for tensor in (rows.shift, rows.first_moment, rows.second_moment):
            tensor[ended] = 0
