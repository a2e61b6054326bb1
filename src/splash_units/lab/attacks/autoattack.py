"""AutoAttack (Croce and Hein, 2020) through the package `pyautoattack`, in the same outcome.

It is the yardstick for `WorstCase`, not part of it. Unlike the attacks here it draws its random
numbers for a whole batch, so that its results depend on the company of an image, and it does not
say what an image cost: queries are the chunk's total, shared equally.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from splash_units.lab.attacks.attack import Attack, Task
from splash_units.lab.attacks.gradient import bounds
from splash_units.lab.attacks.threat import Budget, positive
from splash_units.lab.attacks.victim import Victim

Member = Literal["apgd-ce", "apgd-dlr", "fab", "square", "apgd-t", "fab-t"]
STANDARD: tuple[Member, ...] = ("apgd-ce", "apgd-t", "fab-t", "square")


@dataclass(frozen=True)
class AutoAttack(Attack):
    """The published ensemble within `eps` in Linf; needs `pip install pyautoattack`."""

    eps: float
    attacks: tuple[Member, ...] = STANDARD
    seed: int = 0

    def __post_init__(self) -> None:
        positive("eps", self.eps)
        for attack in self.attacks:
            if attack not in get_args(Member):
                raise ValueError(f"attacks must be among {get_args(Member)}, got {attack!r}")

    @property
    def budget(self) -> Budget:
        return Budget("linf", self.eps)

    def perturb(self, victim: Victim, task: Task) -> Tensor:
        try:
            from pyautoattack import AutoAttack as Ensemble
        except ImportError as error:
            raise ImportError("AutoAttack needs the package pyautoattack, not installed") from error

        images: Tensor
        shown = graded = 0

        def network(images: Tensor) -> Tensor:
            nonlocal shown, graded
            shown += len(images)
            graded += len(images) if images.requires_grad else 0
            return victim.model(images)

        # The ensemble seeds torch's global generator; whoever called us keeps theirs.
        with torch.random.fork_rng(), torch.enable_grad():
            standard = self.attacks == STANDARD
            ensemble = Ensemble(
                network,
                eps=self.eps,
                seed=self.seed,
                device=task.images.device,
                version="standard" if standard else "custom",
                attacks=None if standard else list(self.attacks),
            )
            images, _ = ensemble.run_standard_evaluation(
                task.images, task.labels, batch_size=victim.width
            )
        victim.queries[task.owners] += math.ceil(shown / len(task))
        victim.gradient_queries[task.owners] += math.ceil(graded / len(task))
        task.ticker.advance(len(task))
        # The ensemble stays within eps up to its own rounding, which is coarser than ours.
        return images.detach().clamp(*bounds(task.images, self.eps))
