"""Attacks that follow the sign of the loss gradient within an Linf budget: FGSM, PGD; and noise,
the baseline.

Departures: the paper's Taylor expansion behind FGSM has a sign slip and its loss the wrong
arguments; what is meant, and done here, is a step along `sign(d loss(x, y) / d x)`. `random_start`
is foolbox's: uniform noise within the budget, then one full step, then back into the budget, so
that some values move by less.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from splash_units.lab.attacks import slots
from splash_units.lab.attacks.attack import Attack, Task
from splash_units.lab.attacks.streams import uniform
from splash_units.lab.attacks.threat import Budget, positive, whole
from splash_units.lab.attacks.victim import Victim


def noise(task: Task, eps: float, draws: int) -> Tensor:
    """Images with uniform noise of at most eps, shape (images, draws, C, H, W)."""
    clean = task.images[:, None]
    random = uniform(task.fresh_streams(), draws, *task.images.shape[1:], like=task.images)
    return (clean + eps * (2 * random - 1)).clamp(0, 1)


def bounds(clean: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """The lowest and highest values within eps of the clean ones and within [0, 1]."""
    return (clean - eps).clamp_(0, 1), (clean + eps).clamp_(0, 1)


def pick(choices: Tensor, which: Tensor) -> Tensor:
    """Row i's choice number `which[i]`; a slot that is done with its choices stays at the last."""
    row = torch.arange(len(choices), device=choices.device)
    return choices[row, which.clamp(max=choices.shape[1] - 1)]


def column(rows: Tensor) -> Tensor:
    """One value a row, in a shape that spreads over images."""
    return rows[:, None, None, None]


@dataclass
class NoiseRows(slots.Rows):
    draws: Tensor
    shown: Tensor


@dataclass(frozen=True)
class UniformNoise(Attack):
    """Uniform noise of at most `eps`, the best of `draws`: what an attack must beat to be called
    one.
    """

    eps: float
    draws: int = 1

    def __post_init__(self) -> None:
        positive("eps", self.eps)
        whole("draws", self.draws)

    @property
    def budget(self) -> Budget:
        return Budget("linf", self.eps)

    def perturb(self, victim: Victim, task: Task) -> Tensor:
        def begin(part: Task) -> NoiseRows:
            draws = noise(part, self.eps, self.draws)
            return NoiseRows(
                part.images, part.labels, draws[:, 0].clone(), draws, torch.zeros_like(part.labels)
            )

        def advance(rows: NoiseRows) -> Tensor:
            rows.best = pick(rows.draws, rows.shown)
            rows.shown += 1
            fooled = victim.logits(rows.best).argmax(1) != rows.label
            return fooled | (rows.shown == self.draws)

        return slots.run(victim, task, begin=begin, advance=advance)


@dataclass
class PGDRows(slots.Rows):
    lowest: Tensor
    highest: Tensor
    starts: Tensor
    restart: Tensor
    step: Tensor


@dataclass(frozen=True)
class PGD(Attack):
    """Projected gradient ascent on the cross-entropy (Madry et al., 2018), `restarts` times `steps`
    steps.

    An image that is misclassified on the way is decided and leaves, unless `stop_when_fooled` is
    off; then it takes all its steps, which makes more confident mistakes and may undo one.
    `step_size` is 2.5 `eps` / `steps` if not given: enough to cross the budget and come back.
    """

    eps: float
    steps: int = 40
    restarts: int = 1
    step_size: float | None = None
    random_start: bool = True
    stop_when_fooled: bool = True

    def __post_init__(self) -> None:
        positive("eps", self.eps)
        whole("steps", self.steps)
        whole("restarts", self.restarts)
        if self.step_size is not None:
            positive("step_size", self.step_size)
        if self.restarts > 1 and not self.random_start:
            raise ValueError(f"without random_start, restarts={self.restarts} only repeats itself")

    @property
    def budget(self) -> Budget:
        return Budget("linf", self.eps)

    def perturb(self, victim: Victim, task: Task) -> Tensor:
        step_size = self.step_size or 2.5 * self.eps / self.steps

        def begin(part: Task) -> PGDRows:
            if self.random_start:
                starts = noise(part, self.eps, self.restarts)
            else:
                starts = part.images[:, None]
            return PGDRows(
                part.images,
                part.labels,
                starts[:, 0].clone(),
                *bounds(part.images, self.eps),
                starts,
                torch.zeros_like(part.labels),
                torch.zeros_like(part.labels),
            )

        def advance(rows: PGDRows) -> Tensor:
            logits, gradient = victim.gradient(
                rows.best, lambda logits: F.cross_entropy(logits, rows.label, reduction="sum")
            )
            exhausted = rows.step == self.steps
            stop = (logits.argmax(1) != rows.label) & (exhausted | self.stop_when_fooled)
            restart = exhausted & ~stop
            moved = torch.add(rows.best, gradient.sign_(), alpha=step_size)
            moved.clamp_(rows.lowest, rows.highest)
            moved[stop] = rows.best[stop]
            rows.best = moved
            rows.step += 1
            if bool(restart.any()):
                rows.restart += restart
                rows.best[restart] = pick(rows.starts, rows.restart)[restart]
                rows.step[restart] = 0
            # The very last image is not looked at here: every image returned is checked afresh.
            return stop | ((rows.step == self.steps) & (rows.restart == self.restarts - 1))

        return slots.run(victim, task, begin=begin, advance=advance)


@dataclass(frozen=True)
class FGSM(Attack):
    """One full step along the sign of the loss gradient (Goodfellow et al., 2015): PGD with one
    step of eps.
    """

    eps: float
    random_start: bool = False

    def __post_init__(self) -> None:
        positive("eps", self.eps)

    @property
    def budget(self) -> Budget:
        return Budget("linf", self.eps)

    @property
    def starts_from_clean_gradient(self) -> bool:
        return not self.random_start

    @property
    def is_one_step(self) -> bool:
        return True

    def perturb(self, victim: Victim, task: Task) -> Tensor:
        if not self.random_start and victim.clean_gradient is not None:
            task.ticker.advance(len(task))
            step = victim.clean_gradient[task.owners].sign_()
            return torch.add(task.images, step, alpha=self.eps, out=step).clamp_(0, 1)
        one_step = PGD(
            self.eps,
            steps=1,
            step_size=self.eps,
            random_start=self.random_start,
            stop_when_fooled=False,
        )
        return one_step.perturb(victim, task)
