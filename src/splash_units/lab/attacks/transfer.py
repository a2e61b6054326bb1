"""Whether images made against one network fool another: the check that robustness is not masked
gradients.

A network that only hides its gradients resists attacks on itself and falls to images made on a
plainer network; the matrix shows it as a column worse than its own diagonal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from splash_units.lab.attacks.attack import Attack, Task
from splash_units.lab.attacks.frozen import Model
from splash_units.lab.attacks.threat import Outcome
from splash_units.lab.attacks.victim import WIDTH, Victim


@dataclass(frozen=True)
class Replay(Attack):
    """An "attack" that shows images made earlier."""

    images: Tensor = field(repr=False)

    @property
    def budget(self) -> None:
        return None

    def perturb(self, victim: Victim, task: Task) -> Tensor:
        victim.ask_for(task.owners)
        victim.logits(self.images[task.owners])
        return self.images[task.owners]


def transfer(outcome: Outcome, clean: Tensor, model: Model, *, width: int = WIDTH) -> Outcome:
    """What another network makes of an outcome's images; `clean` are the images they were made
    from.

    Images it gets wrong when clean are not shown to it again, like in any attack.
    """
    if clean.shape != outcome.images.shape:
        raise ValueError(
            f"clean images must have the outcome's shape {tuple(outcome.images.shape)}, "
            f"got {tuple(clean.shape)}"
        )
    replay = Replay(outcome.images)
    return replay(model, clean, outcome.labels, chunk_size=len(clean), width=width)


@dataclass(frozen=True)
class TransferMatrix:
    """For each source (rows) and target (columns): images tried, and those that fool the target
    too.

    An image is tried if the source was fooled by it and the target gets it right when clean.
    """

    sources: tuple[str, ...]
    targets: tuple[str, ...]
    tried: Tensor
    fooled: Tensor

    @property
    def rates(self) -> Tensor:
        """The share that transfers; NaN where nothing could be tried."""
        return self.fooled.double() / self.tried


def transfer_matrix(
    outcomes: Mapping[str, Outcome],
    models: Mapping[str, Model],
    clean: Tensor,
    *,
    width: int = WIDTH,
) -> TransferMatrix:
    """Show every outcome's images to every network."""
    if not outcomes or not models:
        raise ValueError("a transfer matrix needs at least one outcome and one network")
    tried = torch.zeros(len(outcomes), len(models), dtype=torch.int64)
    fooled = torch.zeros_like(tried)
    for row, outcome in enumerate(outcomes.values()):
        for column, model in enumerate(models.values()):
            shown = transfer(outcome, clean, model, width=width)
            tried[row, column] = (outcome.fooled & shown.was_right).sum()
            fooled[row, column] = (outcome.fooled & shown.fooled).sum()
    return TransferMatrix(tuple(outcomes), tuple(models), tried, fooled)
