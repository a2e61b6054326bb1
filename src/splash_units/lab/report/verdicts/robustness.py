"""Claims about attacks: which part of the images fools a network with SPLASH, and one with ReLU.

Boundary and CW attacks minimise the distance and succeed sooner or later, so a success is one
within an L2 distance of 0.5; the paper states no limit. Images are those that were tried, not those
that the network had wrong already.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from splash_units.lab import names
from splash_units.lab.findings import findings
from splash_units.lab.frames import label, run_id
from splash_units.lab.report.content import Content, Setting, setting_of
from splash_units.lab.report.verdicts.judging import (
    Claim,
    Pair,
    Quantity,
    Side,
    Verdict,
    judge,
)
from splash_units.lab.spec import SeparationSpec
from splash_units.lab.store import Store

LIMIT_L2 = "0.5"
FOOLED = Quantity("images fooled", "%", 100, digits=1)
ROBUST = Quantity("images kept right", "%", 100, digits=1, lower_is_better=False)
STRONG_ATTACKS = ("worst_case", "autoattack", "apgd", "pgd", "square")
_SENTENCES = {
    "pixels": "Changing one, three or five pixels fools them less often, one pixel by up to 30 %.",
    "boundary": "The boundary attack fools them less often.",
    "fgsm": "FGSM fools them less often, by up to 29 %.",
    "cw": "The Carlini–Wagner L2 attack fools them less often, by about 3 %.",
}
ATTACKS = tuple(
    Claim(
        attack,
        "robust",
        sentence,
        f"splash run {attack} --scale short",
        "SPLASH is fooled less often than ReLU",
        "attacks",
    )
    for attack, sentence in _SENTENCES.items()
)
STRONG = Claim(
    "strong",
    "robust",
    "Beyond the paper: the gain remains when the attacks are strong.",
    "splash run verdict --scale short",
    "SPLASH keeps more images right than ReLU",
    "attacks",
)
SEPARATION = Claim(
    "separation",
    "robust",
    "Frogs and ships lie farther apart in front of the softmax.",
    "splash run separation --scale short",
    "Classes lie farther apart with SPLASH",
)

Row = Mapping[str, Any]  #: of `Frames.attacks`
Number = Callable[[Row], float | None]
AttackKey = tuple[Setting, str, str]  #: setting, attack, what its options say
Attacked = Mapping[AttackKey, Mapping[str, Mapping[int, Row]]]  #: by unit, then by seed


def attacked_groups(content: Content) -> Attacked:
    """Attacks that may be compared: one setting, one attack, the same options."""
    found: dict[AttackKey, dict[str, dict[int, Row]]] = {}
    for row in content.frames.attacks.sort("attack_seed", descending=True).iter_rows(named=True):
        setting = setting_of(content.frames.specs[row["run"]])
        key = (setting, row["attack"], attack_words(row))
        found.setdefault(key, {}).setdefault(row["label"], {})[row["seed"]] = row
    return found


def attack_words(row: Row) -> str:
    """An attack's options and images as a short text."""
    options = json.loads(row["options"])
    parts = [f"{name} {_written(value)}" for name, value in options.items()]
    kind = "" if row["choose"] == "right" else f" of {row['choose']}"
    return ", ".join([*parts, f"{row['images']} images{kind}"])


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def part_fooled(row: Row) -> float | None:
    """The part of the tried images that were fooled, within the limit where there must be one."""
    within = json.loads(row["success_at_l2"] or "null")
    if within and LIMIT_L2 in within:
        return float(within[LIMIT_L2])
    return row["fooled"] / row["attempts"] if row["attempts"] else None


def robust(attacked: Attacked) -> list[Verdict]:
    """The paper's four attacks."""
    return [judge(claim, _pairs(attacked, (claim.name,), part_fooled, FOOLED)) for claim in ATTACKS]


def strong(attacked: Attacked) -> Verdict:
    """Attacks that the paper does not have."""
    pairs = _pairs(attacked, STRONG_ATTACKS, lambda row: row["robust_accuracy"], ROBUST)
    return judge(STRONG, pairs)


def _pairs(
    attacked: Attacked, attacks: Sequence[str], number: Number, quantity: Quantity
) -> Iterator[Pair]:
    for (setting, attack, words), units in sorted(attacked.items(), key=_order):
        if attack in attacks and "splash" in units and "relu" in units:
            ours, relu = (_side(unit, units[unit], number) for unit in ("splash", "relu"))
            where = f"{setting.words}: {names.attack_name(attack)}, {words}"
            yield Pair(where, setting.scale, ours, relu, quantity)


def _order(item: tuple[AttackKey, Mapping[str, Mapping[int, Row]]]) -> tuple[str, str, float]:
    """By setting and attack, then from small budgets to large ones."""
    (setting, attack, _), units = item
    row = next(iter(next(iter(units.values())).values()))
    return setting.words, attack, row["eps"] or row["k"] or 0.0


def _side(unit: str, rows: Mapping[int, Row], number: Number) -> Side:
    values = {seed: value for seed, row in rows.items() if (value := number(row)) is not None}
    return Side(names.unit_name(unit), values, tuple(row["id"] for row in rows.values()))


def separation(store: Store) -> Verdict:
    """Every number the study computes for how far apart the classes lie."""
    sides: dict[tuple[Setting, str], dict[str, dict[int, tuple[str, float]]]] = {}
    for found in findings(store):
        spec, result = found.spec(), found.result() or {}
        if isinstance(spec, SeparationSpec):
            for number in SEPARATION_NUMBERS.keys() & result.keys():
                units = sides.setdefault((setting_of(spec.train), number), {})
                value = (run_id(spec.train), float(result[number]))
                units.setdefault(label(spec.train), {})[spec.train.seed] = value
    return judge(SEPARATION, (pair for key, units in sides.items() for pair in _apart(key, units)))


SEPARATION_NUMBERS = {"silhouette": "silhouette", "purity": "nearest neighbours of the same class"}


def _apart(
    key: tuple[Setting, str], units: Mapping[str, Mapping[int, tuple[str, float]]]
) -> Iterator[Pair]:
    setting, number = key
    if "splash" in units and "relu" in units:
        ours, relu = (
            Side(
                names.unit_name(unit),
                {seed: value for seed, (_, value) in units[unit].items()},
                tuple(run for run, _ in units[unit].values()),
            )
            for unit in ("splash", "relu")
        )
        quantity = Quantity(SEPARATION_NUMBERS[number], digits=3, lower_is_better=False)
        yield Pair(setting.words, setting.scale, ours, relu, quantity)
