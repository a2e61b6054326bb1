"""What attacks cost and find beside other libraries' version of them.

All contenders attack one trained LeNet5 on the same images, all of which it classifies right, with
the same settings and threads. The images of a long attack are cut into one part a round, so that a
round is one turn of everybody on the same part. What counts as fooled is decided here, by one
forward of what a contender returns.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from splash_units.lab import data
from splash_units.lab.attacks import FGSM, PGD, Attack, Boundary, CarliniWagnerL2, Pixels
from splash_units.lab.benchmarks import attackers
from splash_units.lab.benchmarks.attackers import (
    ART,
    FOOLBOX,
    OURS,
    POPULATION,
    TORCHATTACKS,
    Attacker,
)
from splash_units.lab.benchmarks.cases import Case, Target
from splash_units.lab.runner import complete, load_network
from splash_units.lab.spec import TrainSpec
from splash_units.lab.store import Store

SECTION = "attacks"
EPS, PGD_STEPS, PGD_STEP = 0.02, 40, 0.002
SEARCHES, SEARCH_STEPS = 7, 1000
WALK_STEPS = 6000
GENERATIONS = 40
EPOCHS = 15
ALL_STEPS, FROM_RANDOM = f"{OURS}, all steps", f"{OURS}, as in the paper"
ROUNDING = 1e-6


@dataclass(frozen=True)
class Problem:
    """A trained network, images it classifies right, and where both come from."""

    network: nn.Module
    images: Tensor
    labels: Tensor
    source: Mapping[str, Any]

    def parts(self, count: int, images: int) -> list[tuple[Tensor, Tensor]]:
        """So many parts of so many images each."""
        if count * images > len(self.images):
            raise ValueError(
                f"{count} x {images} images are more than the {len(self.images)} test images "
                "that the network gets right"
            )
        cuts = [slice(i * images, (i + 1) * images) for i in range(count)]
        return [(self.images[cut], self.labels[cut]) for cut in cuts]


@dataclass(frozen=True)
class Comparison:
    """One attack: who takes part, how much faster than its peers ours is to be, on what images.

    A `long` attack takes one turn a round, without warming up.
    """

    name: str
    attackers: Mapping[str, Attacker]
    speedup: float
    images: int
    holds: Callable[[Tensor, Tensor], Tensor] | None = None  #: whether a budget is kept
    long: bool = True
    rounds: int = 3


@dataclass
class Turns:
    """A contender at work: every call attacks the next part, and what it found is kept."""

    attacker: Attacker
    network: nn.Module
    parts: list[tuple[Tensor, Tensor]]
    found: dict[int, Tensor] = field(default_factory=dict)
    calls: int = 0

    def __call__(self) -> None:
        part = self.calls % len(self.parts)
        self.found[part] = self.attacker(self.network, *self.parts[part]).detach()
        self.calls += 1


def problem(store: Path) -> Problem:
    """LeNet5 with ReLU, trained for a few epochs on CIFAR-10 if that is there, else on the digits.

    The run is kept in the store and found there the next time.
    """
    there = {found.name for found in data.available() if found.present}
    if "cifar-10" in there:
        spec = TrainSpec(
            model="lenet5", data="cifar-10", unit="relu", epochs=EPOCHS, augment="moderate"
        )
    else:
        spec = TrainSpec(model="lenet5", data="digits", unit="relu", epochs=EPOCHS)
    run = complete(spec, Store(store))
    network, tests = load_network(run), data.load(spec.data)
    images, labels = tests.test_images.float() / 255, tests.test_labels.long()
    right = classes(network, images) == labels
    result = run.result() or {}
    source = {
        "network": "LeNet5 with ReLU",
        "data": spec.data,
        "epochs": EPOCHS,
        "test_error": result.get("test_error"),
        "spec": result.get("spec"),
    }
    return Problem(network, images[right].contiguous(), labels[right], source)


def cases(problem: Problem, images: int | None = None) -> list[Case]:
    """The comparisons as cases for the stopwatch; `images` a round, instead of each one's own."""
    return [case(comparison, problem, images) for comparison in comparisons()]


def case(comparison: Comparison, problem: Problem, images: int | None = None) -> Case:
    """A comparison of those who are installed."""
    count = images or comparison.images
    parts = problem.parts(comparison.rounds if comparison.long else 1, count)
    turns = {
        name: Turns(attacker, problem.network, parts)
        for name, attacker in comparison.attackers.items()
        if attackers.is_installed(name)
    }
    peers = [name for name in turns if not name.startswith(OURS)]
    return Case(
        SECTION,
        comparison.name,
        OURS,
        {name: _prepare(turn) for name, turn in turns.items()},
        targets=tuple(Target(OURS, peer, 1 / comparison.speedup) for peer in peers),
        rounds=comparison.rounds if comparison.long else None,
        findings={name: _findings(turn, comparison) for name, turn in turns.items()},
    )


def _prepare(turn: Turns) -> Callable[[], Turns]:
    def prepare() -> Turns:
        # A network as training leaves it: its weights ask for gradients.
        turn.network.eval().requires_grad_(True)
        return turn

    return prepare


def _findings(turn: Turns, comparison: Comparison) -> Callable[[], dict[str, Any]]:
    return lambda: findings(turn, comparison.holds)


def findings(turn: Turns, holds: Callable[[Tensor, Tensor], Tensor] | None) -> dict[str, Any]:
    """How many images are fooled within the budget, and by how much they were changed."""
    attempted, fooled, distances = 0, 0, []
    for part, found in turn.found.items():
        clean, labels = turn.parts[part]
        success = classes(turn.network, found) != labels
        # A black image is foolbox's way of saying that it found nothing.
        success &= found.flatten(1).any(1)
        if holds is not None:
            success &= holds(found, clean)
        attempted, fooled = attempted + len(labels), fooled + int(success.sum())
        distances.append((found - clean).flatten(1).norm(dim=1)[success])
    l2 = torch.cat(distances)
    return {
        "images_a_turn": len(turn.parts[0][1]),
        "images": attempted,
        "fooled": fooled,
        "median_l2": float(l2.median()) if len(l2) else None,
    }


def classes(network: nn.Module, images: Tensor) -> Tensor:
    with torch.no_grad():
        return torch.cat([network(batch).argmax(1) for batch in torch.split(images, 500)])


def within(eps: float) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda found, clean: (found - clean).abs().flatten(1).amax(1) <= eps + ROUNDING


def at_most_pixels(k: int) -> Callable[[Tensor, Tensor], Tensor]:
    return lambda found, clean: (found != clean).any(1).flatten(1).sum(1) <= k


def comparisons() -> Iterator[Comparison]:
    """Every attack with its peers."""
    yield Comparison(
        "FGSM",
        {
            OURS: attackers.ours(FGSM(EPS)),
            FOOLBOX: attackers.foolbox("LinfFastGradientAttack", EPS),
            TORCHATTACKS: attackers.torchattacks("FGSM", eps=EPS),
        },
        speedup=1.5,
        images=512,
        holds=within(EPS),
        long=False,
    )
    yield Comparison(
        f"PGD-{PGD_STEPS}",
        {
            OURS: attackers.ours(_pgd()),
            ALL_STEPS: attackers.ours(_pgd(stop_when_fooled=False)),
            FOOLBOX: attackers.foolbox(
                "LinfPGD", EPS, steps=PGD_STEPS, abs_stepsize=PGD_STEP, random_start=True
            ),
            TORCHATTACKS: attackers.torchattacks(
                "PGD", eps=EPS, alpha=PGD_STEP, steps=PGD_STEPS, random_start=True
            ),
        },
        speedup=1.2,
        images=128,
        holds=within(EPS),
        long=False,
    )
    yield Comparison(
        f"CW-L2 {SEARCHES} x {SEARCH_STEPS}",
        {
            # Fewer slots than images: those whose search ends early make room for others.
            OURS: attackers.ours(CarliniWagnerL2(SEARCHES, SEARCH_STEPS), width=32),
            FOOLBOX: attackers.foolbox(
                "L2CarliniWagnerAttack",
                None,
                binary_search_steps=SEARCHES,
                steps=SEARCH_STEPS,
            ),
        },
        speedup=3,
        images=64,
        rounds=1,
    )
    yield Comparison(
        f"boundary {WALK_STEPS}",
        {
            OURS: attackers.ours(Boundary(WALK_STEPS)),
            FOOLBOX: attackers.foolbox("BoundaryAttack", None, steps=WALK_STEPS),
        },
        speedup=2,
        images=48,
        rounds=1,
    )
    yield from (_pixels(k, speedup) for k, speedup in {1: 5.0, 3: 8.0, 5: 8.0}.items())


def _pgd(stop_when_fooled: bool = True) -> Attack:
    return PGD(EPS, PGD_STEPS, step_size=PGD_STEP, stop_when_fooled=stop_when_fooled)


def _pixels(k: int, speedup: float) -> Comparison:
    return Comparison(
        f"pixels, k = {k}",
        {
            OURS: attackers.ours(Pixels(k, POPULATION, GENERATIONS)),
            FROM_RANDOM: attackers.ours(Pixels(k, POPULATION, GENERATIONS, base="random")),
            TORCHATTACKS: attackers.torchattacks(
                "OnePixel", pixels=k, steps=GENERATIONS, popsize=POPULATION, inf_batch=POPULATION
            ),
            ART: attackers.art_pixels(k, GENERATIONS),
        },
        speedup=speedup,
        images=6 if k == 1 else 4,
        rounds=5,  # of few images, one of which may take as long as all others together
        holds=at_most_pixels(k),
    )
