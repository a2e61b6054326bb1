"""What a spec will cost: seconds on one core, from what the store has measured, or by a rough rule.

Measured are seconds a training image, by network and unit, and seconds an attacked image and pass,
by network and attack. Where nothing of the kind has been run, the figures of ROUGH stand in. They
are good to a factor of two or three on a common processor, which is enough to tell hours from days
and to put the longest runs first.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from splash_units.lab import data
from splash_units.lab.findings import attacks_on
from splash_units.lab.plan import plan
from splash_units.lab.spec import (
    AnySpec,
    AttackSpec,
    CostSpec,
    SeparationSpec,
    TrainSpec,
    TransferSpec,
)
from splash_units.lab.store import Store

# Seconds to train on a thousand images of 32x32, one epoch, on one core (measured on a server's
# core with AVX-512, SPLASH units, batches of 128).
ROUGH: Mapping[str, float] = {"mlp": 0.05, "lenet5": 0.25, "resnet20": 5.5, "nin": 33, "allcnn": 33}
ROUGH_OF_ANY_OTHER = 5.0
FORWARD = 1 / 3  # of a training step; the backward pass is twice the forward
OVERHEAD = 1.0  # seconds, for whatever is not arithmetic: data, the network, writing
SEPARATION = 5.0

Basis = Literal["measured", "rough"]


@dataclass(frozen=True)
class Estimate:
    """Seconds on one core, and whether runs in the store or the rough figures say so."""

    seconds: float
    basis: Basis


class Estimates:
    """Estimates from what a store has measured, read once."""

    def __init__(self, store: Store) -> None:
        self._train: dict[tuple[str, ...], list[float]] = defaultdict(list)
        self._attack: dict[tuple[str, ...], list[float]] = defaultdict(list)
        self._counts: dict[str, tuple[int, int]] = {}
        for run in store.runs():
            try:
                self._learn(run.spec(), run)
            except (ValueError, KeyError):
                continue  # what can't be read can't be learnt from

    def of(self, spec: AnySpec) -> Estimate:
        """What a spec will cost by itself, without what it needs."""
        match spec:
            case TrainSpec():
                return self._training(spec)
            case AttackSpec(train=train):
                return self._attacking(train, spec)
            case TransferSpec(trains=trains):
                parts = [self._attacking(train, spec) for train in trains]
                return Estimate(sum(part.seconds for part in parts), _basis(parts))
            case SeparationSpec():
                return Estimate(SEPARATION, "rough")
            case CostSpec():
                image = self._training_image(spec.model)
                steps = (spec.rounds + 5) * len(spec.units)
                return Estimate(OVERHEAD + steps * spec.batch_size * image.seconds, image.basis)

    def _learn(self, spec: TrainSpec, run: Any) -> None:
        planned = run.record().get("plan", {})
        for epoch in run.history():
            seconds = epoch["seconds"] / planned["train_images"]
            self._train[spec.model, spec.unit].append(seconds)
            self._train[spec.model,].append(seconds)
        for found in attacks_on(run):
            attack, result = found.spec(), found.result() or {}
            assert isinstance(attack, AttackSpec)
            if result.get("seconds") and result.get("images"):
                passes = result["images"] * passes_of(attack.attack, attack.options)
                self._attack[spec.model, attack.attack].append(result["seconds"] / passes)

    def _training(self, spec: TrainSpec) -> Estimate:
        if spec.data not in self._counts:
            self._counts[spec.data] = data.count(spec.data)
        planned = plan(spec, *self._counts[spec.data])
        image = self._training_image(spec.model, spec.unit)
        images = planned.train_images + FORWARD * planned.test_images
        return Estimate(OVERHEAD + planned.epochs * images * image.seconds, image.basis)

    def _attacking(self, train: TrainSpec, spec: AttackSpec | TransferSpec) -> Estimate:
        passes = spec.images * passes_of(spec.attack, spec.options)
        if measured := self._attack.get((train.model, spec.attack)):
            return Estimate(OVERHEAD + passes * median(measured), "measured")
        image = self._training_image(train.model, train.unit)
        return Estimate(OVERHEAD + passes * FORWARD * image.seconds, image.basis)

    def _training_image(self, *key: str) -> Estimate:
        """Seconds to train on one image, once: of this unit, else of any in this network."""
        for known in (key, key[:1]):
            if measured := self._train.get(known):
                return Estimate(median(measured), "measured")
        return Estimate(ROUGH.get(key[0], ROUGH_OF_ANY_OTHER) / 1000, "rough")


def passes_of(attack: str, options: Mapping[str, Any]) -> float:
    """About how many forward passes an attack asks of an image; a backward one counts as two.

    Attacks that stop as soon as they succeed do so halfway, in the middle.
    """

    def given(name: str, default: float) -> float:
        return float(options.get(name, default))

    match attack:
        case "noise":
            return 1
        case "fgsm":
            return 4
        case "pgd":
            return 3 * given("steps", 40) * given("restarts", 1) / 2
        case "apgd":
            return 3 * given("steps", 100) * given("restarts", 1) / 2
        case "cw":
            return 3 * given("binary_search_steps", 9) * given("steps", 1000)
        case "boundary":
            return 1.2 * given("steps", 25000)
        case "pixels":
            return given("population", 400) * given("generations", 40) / 2
        case "square":
            return given("queries", 5000) / 2
        case "worst_case":
            return 3 * given("steps", 100) + given("queries", 5000) / 2
        case "autoattack":
            return 3000
        case _:
            return 100


def total(estimates: Iterable[Estimate]) -> Estimate:
    """All together: measured only if every part is."""
    parts = list(estimates)
    return Estimate(math.fsum(part.seconds for part in parts), _basis(parts))


def _basis(parts: Iterable[Estimate]) -> Basis:
    return "rough" if any(part.basis == "rough" for part in parts) else "measured"
