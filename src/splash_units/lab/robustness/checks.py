"""Sanity checks of an attack's result (after Carlini et al., 2019, and Athalye et al., 2018).

A network that hides its gradients, or an attack that was cut short, looks like robustness. What
must hold of an honest evaluation is tried on the first `IMAGES` images that were attacked, with
cheap settings; what costs as much an image as the attack itself, on the first `FEW`. A check that
fails does not change the number: it is a warning that goes with it. `passed` is None where a check
has nothing to compare.
"""

import inspect
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from splash_units.lab.robustness.named import ATTACKS, worst_case
from splash_units.lab.robustness.probes import Probes, Rows

IMAGES = 100
FEW = 32

ITERATIVE = ("pgd", "apgd", "worst_case", "autoattack")
CHEAP_PGD: Mapping[str, Any] = {"steps": 20}
CHEAP_SQUARE: Mapping[str, Any] = {"queries": 100}
CHEAP_BOUNDARY: Mapping[str, Any] = {"steps": 300}
CHEAP_CW: Mapping[str, Any] = {"binary_search_steps": 5, "steps": 100}
# What is doubled to see whether an attack had time enough.
EFFORT: Mapping[str, tuple[str, ...]] = {
    "pgd": ("steps",),
    "apgd": ("steps",),
    "square": ("queries",),
    "worst_case": ("steps", "queries"),
    "cw": ("steps",),
    "boundary": ("steps",),
    "pixels": ("generations",),
}
# At this Linf distance every pixel can be grey: nothing is left to recognise.
EVERYTHING = 0.5
# Out of so many images, this part may differ by chance.
SLACK = 0.02
LITTLE_NEARER = 0.05
MOST_WITHOUT_GRADIENT = 0.01


@dataclass(frozen=True)
class Check:
    """One check: what must hold, whether it does, and the numbers."""

    name: str
    passed: bool | None
    detail: str


def run(attack: str, options: Mapping[str, Any], rows: Rows, probes: Probes) -> list[Check]:
    """All checks that an attack's kind allows, given its rows on all images."""
    own = _first(rows, IMAGES)
    if not len(own["index"]):
        return [Check("attempts", None, "no image was right before the attack: nothing to check")]
    if attack == "pixels":
        return list(_pixel_checks(options, own, probes))
    if attack in ("cw", "boundary"):
        return list(_distance_checks(attack, options, rows, own, probes))
    return list(_budget_checks(attack, options, own, probes))


def _first(rows: Rows, count: int) -> dict[str, Tensor]:
    """The rows of the first so many images that were right."""
    (right,) = rows["was_right"].nonzero(as_tuple=True)
    names = ("index", "was_right", "fooled", "l2", "winner")
    return {name: rows[name][right[:count]].cpu() for name in names}


def _budget_checks(
    attack: str, options: Mapping[str, Any], own: Rows, probes: Probes
) -> Iterator[Check]:
    """What must hold within a Linf budget."""
    index, eps = own["index"], options["eps"]

    def probe(name: str, **settings: Any) -> Rows:
        return probes.attack(name, {"eps": eps, **settings}, index)

    one_step = own if attack == "fgsm" else probe("fgsm")
    iterative = own if attack in ITERATIVE else probe("pgd", **CHEAP_PGD)
    yield _no_more("single step <= iterative", "FGSM", one_step, "the iterative attack", iterative)
    if attack == "worst_case":
        yield _only_the_last(options, own)
    else:
        blind = own if attack == "square" else probe("square", **CHEAP_SQUARE)
        yield _no_more("black box <= white box", "Square", blind, "with gradients", iterative)
    yield _grows(eps, index, probes)
    if attack in EFFORT:
        more = probes.attack(attack, doubled(attack, options), index)
        yield _no_more("doubled effort changes little", "twice the effort", more, "this", own)
    yield _gradients(index, probes)
    noise = own if attack == "noise" else probe("noise")
    yield _beats_noise("noise alone", noise, iterative if attack == "noise" else own)


def _distance_checks(
    attack: str, options: Mapping[str, Any], rows: Rows, own: Rows, probes: Probes
) -> Iterator[Check]:
    """What must hold of an attack that looks for the nearest wrong image."""
    index = own["index"]
    attempts, fooled = int(rows["was_right"].sum()), int(rows["fooled"].sum())
    yield Check(
        "reaches 100 % without a limit", fooled == attempts, f"{fooled} of {attempts} fooled"
    )
    if attack == "cw":
        blind, sighted = probes.attack("boundary", CHEAP_BOUNDARY, index), own
    else:
        blind, sighted = own, probes.attack("cw", CHEAP_CW, index)
    there, here = _median_l2(blind), _median_l2(sighted)
    yield Check(
        "black box <= white box",
        here <= there * (1 + LITTLE_NEARER),
        f"median L2 {there:.4g} by labels, {here:.4g} by gradients, {len(index)} images",
    )
    yield _doubled_goes_little_nearer(attack, options, own, probes)
    if attack == "cw":
        yield _gradients(index, probes)
    middle = _median_l2(own)
    if math.isfinite(middle) and middle > 0:
        # Uniform noise up to e has an L2 of e sqrt(size / 3).
        eps = float(f"{middle * math.sqrt(3 / probes.size):.3g}")
        noise = probes.attack("noise", {"eps": eps}, index)
        yield _beats_noise(f"noise alone, of the median L2 (eps={eps:g})", noise, own)


def _pixel_checks(options: Mapping[str, Any], own: Rows, probes: Probes) -> Iterator[Check]:
    """What must hold of an attack on k pixels."""
    few = {name: values[:FEW] for name, values in own.items()}
    k = options.get("k", 1)
    wider = probes.attack("pixels", {**options, "k": 2 * k}, few["index"])
    yield _no_more("success grows with k", f"k={k}", few, f"k={2 * k}", wider)
    more = probes.attack("pixels", doubled("pixels", options), few["index"])
    yield _no_more("doubled effort changes little", "twice the generations", more, "this", few)
    yield Check("black box <= white box", None, "there is no attack on pixels by gradients here")
    random = {**options, "population": 3, "generations": 1}
    chance = probes.attack("pixels", random, own["index"])
    yield _beats_noise("random pixels alone", chance, own)


def doubled(attack: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """An attack's options with twice the effort."""
    defaults = ATTACKS[attack].options
    more = {}
    for name in EFFORT[attack]:
        value = options.get(name, defaults[name].default)
        assert value is not inspect.Parameter.empty
        more[name] = 2 * value
    return {**options, **more}


def _no_more(name: str, weaker: str, a: Rows, stronger: str, b: Rows) -> Check:
    """The weaker attack fools no more images than the stronger one, give or take a few."""
    images = len(a["fooled"])
    fewer, more = int(a["fooled"].sum()), int(b["fooled"].sum())
    detail = f"{weaker} fools {fewer}, {stronger} {more} of {images} images"
    return Check(name, fewer <= more + _slack(images), detail)


def _only_the_last(options: Mapping[str, Any], own: Rows) -> Check:
    """Of several attacks, Square comes last: what only it fools, gradients should have found."""
    images, square = len(own["fooled"]), len(worst_case(**options).attacks) - 1
    alone = int((own["winner"] == square).sum())
    detail = f"{alone} of {images} images fooled by Square alone, after the attacks by gradients"
    return Check("black box <= white box", alone <= _slack(images), detail)


def _grows(eps: float, index: Tensor, probes: Probes) -> Check:
    """More budget, more success, and all of it in the end."""
    budgets = sorted({eps, min(2 * eps, 1.0), max(EVERYTHING, min(2 * eps, 1.0))})
    found = [
        int(probes.attack("pgd", {"eps": budget, **CHEAP_PGD}, index)["fooled"].sum())
        for budget in budgets
    ]
    grows = all(before <= after + _slack(len(index)) for before, after in pairwise(found))
    shown = ", ".join(f"{n} at {budget:g}" for n, budget in zip(found, budgets, strict=True))
    return Check(
        "success grows with eps and reaches 100 %",
        grows and found[-1] == len(index),
        f"PGD fools {shown} of {len(index)} images",
    )


def _doubled_goes_little_nearer(
    attack: str, options: Mapping[str, Any], own: Rows, probes: Probes
) -> Check:
    few = {name: values[:FEW] for name, values in own.items()}
    more = probes.attack(attack, doubled(attack, options), few["index"])
    before, after = _median_l2(few), _median_l2(more)
    return Check(
        "doubled effort changes little",
        before <= after * (1 + LITTLE_NEARER),
        f"median L2 {before:.4g}, with twice the steps {after:.4g}, {len(few['index'])} images",
    )


def _gradients(index: Tensor, probes: Probes) -> Check:
    zero = int(probes.without_gradient(index).sum())
    return Check(
        "gradients are there",
        zero <= MOST_WITHOUT_GRADIENT * len(index),
        f"{zero} of {len(index)} images have an input gradient of exactly zero",
    )


def _beats_noise(name: str, noise: Rows, own: Rows) -> Check:
    """Chance does less than half of what the attack does."""
    chance, fooled = int(noise["fooled"].sum()), int(own["fooled"].sum())
    return Check(
        f"{name} does little",
        2 * chance <= fooled,
        f"it fools {chance}, the attack {fooled} of {len(own['fooled'])} images",
    )


def _median_l2(rows: Rows) -> float:
    """A failure is infinitely far."""
    return float(torch.where(rows["fooled"], rows["l2"].double(), math.inf).median())


def _slack(images: int) -> int:
    return max(1, math.ceil(SLACK * images))
