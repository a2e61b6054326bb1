"""Several attacks as one: an image stands only if it stands against all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from splash_units.lab.attacks.attack import Attack, Silence, Task
from splash_units.lab.attacks.threat import Budget, distances, positive
from splash_units.lab.attacks.victim import Victim


@dataclass(frozen=True)
class WorstCase(Attack):
    """The attacks one after another, each on the images that still stand; give the cheapest first.

    Every attack keeps to its own budget. One that minimises a distance has none: its images count
    if they lie within `l2`, which must then be given. In the outcome, `winner` says which attack
    fooled an image, and an image that stands carries the last attack's attempt.
    """

    attacks: Sequence[Attack]
    l2: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "attacks", tuple(self.attacks))
        if not self.attacks:
            raise ValueError("WorstCase needs at least one attack")
        for attack in self.attacks:
            if not isinstance(attack, Attack):
                raise TypeError(f"WorstCase takes attacks, got {attack!r}")
        if self.l2 is not None:
            positive("l2", self.l2)
        elif any(attack.budget is None for attack in self.attacks):
            raise ValueError("an attack that minimises a distance needs an l2 to be judged by")

    @property
    def budget(self) -> Budget | None:
        """What all attacks keep to, or None where they differ."""
        budgets = {self._budget_of(attack) for attack in self.attacks}
        return budgets.pop() if len(budgets) == 1 else None

    @property
    def starts_from_clean_gradient(self) -> bool:
        return any(attack.starts_from_clean_gradient for attack in self.attacks)

    def _budget_of(self, attack: Attack) -> Budget:
        if attack.budget is not None:
            return attack.budget
        assert self.l2 is not None
        return Budget("l2", self.l2)

    def check(self, images: Tensor) -> None:
        for attack in self.attacks:
            attack.check(images)

    def perturb(self, victim: Victim, task: Task) -> Tensor:
        results = task.images.clone()
        standing = torch.arange(len(task), device=task.images.device)
        for number, attack in enumerate(self.attacks):
            part = replace(task.part(standing), ticker=Silence())
            images = attack.perturb(victim, part)
            if attack.budget is None:
                too_far = (
                    distances(images, part.images)["l2"] > self._budget_of(attack).with_rounding
                )
                images[too_far] = part.images[too_far]
            results[standing] = images
            fooled = victim.recheck(images).argmax(1) != part.labels
            victim.winner[part.owners[fooled]] = number
            standing = standing[~fooled]
            task.ticker.advance(int(fooled.sum()))
            if not len(standing):
                break
        task.ticker.advance(len(standing))
        return results
