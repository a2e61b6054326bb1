"""Auto-PGD (Croce and Hein, 2020): gradient ascent with momentum that halves its own step size.

Departures from the reference: an image leaves at its first misclassification, and at the first
check of progress the loss of the start counts as the loss before the first step (the reference
compares with a zero it has not filled in yet).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as F

from splash_units.lab.attacks import slots
from splash_units.lab.attacks.attack import Attack, Task
from splash_units.lab.attacks.gradient import bounds, column, noise, pick
from splash_units.lab.attacks.threat import Budget, positive, whole
from splash_units.lab.attacks.victim import Victim, margin

Loss = Literal["cross-entropy", "dlr"]
MOMENTUM = 0.75
ENOUGH_RISES = 0.75


def dlr(logits: Tensor, labels: Tensor) -> Tensor:
    """The difference of logits ratio: the true class' lead, negated, in units the network cannot
    scale.
    """
    if logits.shape[1] < 3:
        raise ValueError(f"the DLR loss needs at least 3 classes, got {logits.shape[1]}")
    ordered = logits.sort(1, descending=True).values
    return -margin(logits, labels) / (ordered[:, 0] - ordered[:, 2] + 1e-12)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(logits, labels, reduction="none")


@dataclass
class APGDRows(slots.Rows):
    """`best` is the image with the highest loss so far."""

    lowest: Tensor
    highest: Tensor
    starts: Tensor
    restart: Tensor
    image: Tensor
    image_before: Tensor
    best_gradient: Tensor
    best_loss: Tensor
    loss_before: Tensor
    step_size: Tensor
    step: Tensor
    window: Tensor  #: steps between two checks of progress
    since_check: Tensor
    rises: Tensor  #: steps since the last check that raised the loss
    best_at_check: Tensor
    halved: Tensor  #: whether the last check halved the step size


@dataclass(frozen=True)
class APGD(Attack):
    """Misclassification within `eps` in Linf, by `restarts` runs of `steps` steps on the chosen
    loss.
    """

    eps: float
    steps: int = 100
    restarts: int = 1
    loss: Loss = "cross-entropy"

    def __post_init__(self) -> None:
        positive("eps", self.eps)
        whole("steps", self.steps)
        whole("restarts", self.restarts)
        if self.loss not in get_args(Loss):
            raise ValueError(f"loss must be one of {get_args(Loss)}, got {self.loss!r}")

    @property
    def budget(self) -> Budget:
        return Budget("linf", self.eps)

    def perturb(self, victim: Victim, task: Task) -> Tensor:
        objective = cross_entropy if self.loss == "cross-entropy" else dlr

        def begin(part: Task) -> APGDRows:
            starts = noise(part, self.eps, self.restarts)
            return self._rows(part.images, part.labels, starts, torch.zeros_like(part.labels))

        def advance(rows: APGDRows) -> Tensor:
            logits, gradient = victim.gradient(rows.image, lambda z: objective(z, rows.label))
            loss = objective(logits, rows.label)
            fooled = logits.argmax(1) != rows.label
            self._keep_best(rows, loss, gradient, fooled)
            self._check_progress(rows, loss, gradient)
            exhausted = ~fooled & (rows.step == self.steps)
            self._step(rows, gradient)
            again = exhausted & (rows.restart < self.restarts - 1)
            if bool(again.any()):
                fresh = self._rows(
                    rows.clean[again],
                    rows.label[again],
                    rows.starts[again],
                    rows.restart[again] + 1,
                )
                rows.put(again, fresh)
            return fooled | (exhausted & ~again)

        return slots.run(victim, task, begin=begin, advance=advance)

    def _rows(self, clean: Tensor, label: Tensor, starts: Tensor, restart: Tensor) -> APGDRows:
        start, zero = pick(starts, restart), torch.zeros_like(label)
        low, high = bounds(clean, self.eps)
        lowest = clean.new_full(label.shape, -torch.inf)
        return APGDRows(
            clean=clean,
            label=label,
            best=start.clone(),
            lowest=low,
            highest=high,
            starts=starts,
            restart=restart,
            image=start,
            image_before=start.clone(),
            best_gradient=torch.zeros_like(start),
            best_loss=lowest,
            loss_before=lowest.clone(),
            step_size=clean.new_full(label.shape, 2 * self.eps),
            step=zero,
            window=zero + self._share_of_steps(0.22),
            since_check=zero.clone(),
            rises=zero.clone(),
            best_at_check=lowest.clone(),
            halved=torch.ones_like(label, dtype=torch.bool),
        )

    def _share_of_steps(self, share: float) -> int:
        return max(int(share * self.steps), 1)

    def _keep_best(self, rows: APGDRows, loss: Tensor, gradient: Tensor, fooled: Tensor) -> None:
        better = (loss > rows.best_loss) | fooled
        rows.best = torch.where(column(better), rows.image, rows.best)
        rows.best_gradient = torch.where(column(better), gradient, rows.best_gradient)
        rows.best_loss = torch.where(better, loss, rows.best_loss)

    def _check_progress(self, rows: APGDRows, loss: Tensor, gradient: Tensor) -> None:
        """Halve the step size and return to the best image where too few steps raised the loss."""
        moved = rows.step > 0
        rows.rises += moved & (loss > rows.loss_before)
        rows.since_check += moved
        rows.loss_before = loss
        rows.best_at_check = torch.where(moved, rows.best_at_check, loss)
        check = moved & (rows.since_check == rows.window)
        if not bool(check.any()):
            return
        few_rises = rows.rises <= ENOUGH_RISES * rows.window
        no_better = ~rows.halved & (rows.best_at_check >= rows.best_loss)
        halve = check & (few_rises | no_better)
        rows.step_size = torch.where(halve, rows.step_size / 2, rows.step_size)
        rows.image = torch.where(column(halve), rows.best, rows.image)
        gradient[halve] = rows.best_gradient[halve]
        rows.halved = torch.where(check, halve, rows.halved)
        rows.best_at_check = torch.where(check, rows.best_loss, rows.best_at_check)
        shorter = (rows.window - self._share_of_steps(0.03)).clamp(min=self._share_of_steps(0.06))
        rows.window = torch.where(check, shorter, rows.window)
        rows.since_check[check] = 0
        rows.rises[check] = 0

    def _step(self, rows: APGDRows, gradient: Tensor) -> None:
        share = column(torch.where(rows.step > 0, MOMENTUM, 1.0).to(gradient.dtype))
        drift = rows.image - rows.image_before
        ahead = torch.addcmul(rows.image, gradient.sign_(), column(rows.step_size))
        ahead.clamp_(rows.lowest, rows.highest)
        moved = torch.lerp(rows.image, ahead, share).addcmul_(drift, 1 - share)
        rows.image_before = rows.image
        rows.image = moved.clamp_(rows.lowest, rows.highest)
        rows.step += 1
