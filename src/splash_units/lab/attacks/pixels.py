"""The few-pixel attack (Su et al., 2019): change k pixels, whatever it takes, by differential
evolution.

A candidate is k pixels, each a row, a column and a value for every channel. Each generation
proposes for every candidate a mutant x_r1 + 0.5 (x_r2 - x_r3) of others and keeps whichever leaves
the true class less probable. Values are whole numbers from 0 to 255, so that the result survives as
an ordinary image file.

Departures: x_r1 is a random candidate for one half of the candidates, and the best one for the
other. The SPLASH paper takes random ones only (`base="random"`), and its search has often not ended
after 40 generations; ART and torchattacks take the best only (`base="best"`), and theirs ends too
soon now and then, beside a pixel that would have done. The paper also prints a sum in place of the
difference, which leaves the allowed range almost always; `mutation="sum"` is that. An image is done
as soon as a candidate is misclassified, in the first, random generation too. No crossover, as in
the original.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from splash_units.lab.attacks.attack import Attack, Task
from splash_units.lab.attacks.incremental import AGREEMENT, IncrementalNetwork, trace
from splash_units.lab.attacks.reach import Changes
from splash_units.lab.attacks.threat import Budget, whole
from splash_units.lab.attacks.victim import Victim, check_logits, margin

Mutation = Literal["difference", "sum"]
Base = Literal["both", "random", "best"]
WEIGHT = 0.5
LEVELS = 255

Ask = Callable[[Changes], Tensor]
"""The logits of some variants of one image."""


@dataclass(frozen=True)
class Pixels(Attack):
    """Misclassification by `k` pixels, searched by a population of candidates over generations.

    Where the network allows it, only what the changed pixels reach is computed (see `incremental`);
    the image returned is checked by the network itself. `incremental=False` asks the network itself
    throughout. `block` candidates are computed at once, which bounds the memory; like `width`, it
    enters the last bits of their logits.
    """

    k: int = 1
    population: int = 400
    generations: int = 40
    mutation: Mutation = "difference"
    base: Base = "both"
    incremental: bool = True
    block: int = 400

    def __post_init__(self) -> None:
        whole("k", self.k)
        whole("population", self.population, at_least=3)
        whole("generations", self.generations)
        whole("block", self.block)
        if self.mutation not in get_args(Mutation):
            raise ValueError(f"mutation must be one of {get_args(Mutation)}, got {self.mutation!r}")
        if self.base not in get_args(Base):
            raise ValueError(f"base must be one of {get_args(Base)}, got {self.base!r}")

    @property
    def budget(self) -> Budget:
        return Budget("l0", self.k)

    def check(self, images: Tensor) -> None:
        height, width = images.shape[2:]
        if self.k > height * width:
            raise ValueError(f"k={self.k} pixels are more than an image of {height} x {width} has")

    def perturb(self, victim: Victim, task: Task) -> Tensor:
        network = trace(victim.model, task.images[:1], self.k) if self.incremental else None
        results = torch.empty_like(task.images)
        for i in range(len(task)):
            part = task.part(torch.tensor([i]))
            results[i] = self._evolve(part, asking(victim, network, part))
            task.ticker.advance(1)
        return results

    def _evolve(self, task: Task, ask: Ask) -> Tensor:
        """The image with the first candidate that fools, or with the best when none does."""
        image, label, (generator,) = task.images, task.labels, task.fresh_streams()
        shape = (self.population, self.k, 2 + image.shape[1])
        members = torch.rand(shape, generator=generator, dtype=image.dtype).to(image.device)
        probability, winner = self._judge(members, image, label, ask)
        for _ in range(self.generations):
            if winner is not None:
                break
            mutants = self._mutate(members, probability, generator)
            mutant_probability, winner = self._judge(mutants, image, label, ask)
            if winner is None:
                better = mutant_probability < probability
                members = torch.where(better[:, None, None], mutants, members)
                probability = torch.where(better, mutant_probability, probability)
        chosen = members[probability.argmin()] if winner is None else winner
        return decode(chosen[None], image).applied_to(image)[0]

    def _judge(
        self, members: Tensor, image: Tensor, label: Tensor, ask: Ask
    ) -> tuple[Tensor, Tensor | None]:
        """Every candidate's probability of the true class, unless one fools: then that one."""
        probabilities = []
        for block in torch.split(members, self.block):
            logits = ask(decode(block, image))
            probability = logits.softmax(1)[:, int(label)]
            lead = margin(logits, label.expand(len(logits)))
            # Wrong by more than two ways of adding up may differ, so that the network will agree.
            fooled = lead < -AGREEMENT * logits.abs().amax(1)
            probabilities.append(probability)
            if bool(fooled.any()):
                winner = block[torch.where(fooled, probability, torch.inf).argmin()]
                return torch.cat(probabilities), winner
        return torch.cat(probabilities), None

    def _mutate(self, members: Tensor, probability: Tensor, generator: torch.Generator) -> Tensor:
        first, second, third = (
            members[index.to(members.device)] for index in distinct_triples(len(members), generator)
        )
        if self.base != "random":
            first[:: 2 if self.base == "both" else 1] = members[probability.argmin()]
        change = second - third if self.mutation == "difference" else second + third
        return (first + WEIGHT * change).clamp(0, 1)


def asking(victim: Victim, network: IncrementalNetwork | None, task: Task) -> Ask:
    """How to learn the logits of variants of a task's one image, each counted as a query."""
    image, owner = task.images, int(task.owners)
    clean = None if network is None else network.clean(image)

    def ask(changes: Changes) -> Tensor:
        count = len(changes.rows)
        victim.count(owner, count)
        if network is None or clean is None:
            return victim.recheck(changes.applied_to(image))
        return check_logits(network.logits(clean, changes), count)

    return ask


def decode(members: Tensor, image: Tensor) -> Changes:
    """The pixels that genes between 0 and 1 stand for."""
    height, width = image.shape[2:]
    rows = (members[..., 0] * height).long().clamp(max=height - 1)
    columns = (members[..., 1] * width).long().clamp(max=width - 1)
    values = (members[..., 2:] * LEVELS).round() / LEVELS
    # A pixel named twice is given one value, the last, so that no order of writing matters.
    place = rows * width + columns
    same = place[:, :, None] == place[:, None, :]
    last = (same * torch.arange(place.shape[1], device=place.device)).amax(2)
    return Changes(rows, columns, values.gather(1, last[..., None].expand_as(values)))


def distinct_triples(count: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """For each of `count` places, three different numbers below `count`."""
    first = torch.randint(count, (count,), generator=generator)
    second = torch.randint(count - 1, (count,), generator=generator)
    second += second >= first
    third = torch.randint(count - 2, (count,), generator=generator)
    third += third >= torch.minimum(first, second)
    third += third >= torch.maximum(first, second)
    return first, second, third
