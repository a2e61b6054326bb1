"""Claims about errors and training losses: SPLASH beside other units, and beside itself."""

from collections.abc import Callable, Iterator
from dataclasses import replace

from splash_units.lab import names
from splash_units.lab.report.content import Content, Group
from splash_units.lab.report.verdicts.judging import (
    Claim,
    Pair,
    Quantity,
    Side,
    Verdict,
    judge,
)
from splash_units.lab.statistics import summarise

ERROR = Quantity("test error", "%", 100)
TRAINING_LOSS = Quantity("training loss", digits=4)
RIVALS = tuple(unit for unit in names.UNITS if unit != "splash")
VARIANTS = ("splash_positive", "splash_negative", "splash_fixed")
OTHER_STARTS = tuple(f"splash init={start}" for start in ("identity", "abs", "random"))
OTHER_HINGES = tuple(f"splash S={count}" for count in (3, 5, 9, 11))

BETTER_THAN_RELU = Claim(
    "accuracy",
    "help",
    "Networks with SPLASH units err less than the same networks with ReLU.",
    "splash run accuracy --scale short",
    "SPLASH errs less than ReLU",
)
BETTER_THAN_ALL = Claim(
    "rivals",
    "help",
    "They err less than with any of nine other units, learned or fixed.",
    "splash run accuracy --scale short",
    "SPLASH errs less than the best other unit",
)
STARTS = Claim(
    "starts",
    "help",
    "Of five starting shapes, ReLU and leaky ReLU train best.",
    "splash run initialisation --scale short",
    "The ReLU start ends with the lower training loss",
)
ABLATION = Claim(
    "ablation",
    "help",
    "What helps is the freedom to change: SPLASH trains better than with its sign left of zero "
    "held, and than with its own final shapes, fixed from the start.",
    "splash run ablation --scale short",
    "Free SPLASH ends with the lower training loss",
)
HINGES = Claim(
    "hinges",
    "help",
    "Seven hinges are enough: fewer err more, and more bring no significant gain.",
    "splash run hinges --scale short",
    "Seven hinges err less",
)


def better_than_relu(content: Content) -> Verdict:
    """SPLASH against ReLU, wherever both were trained."""
    return judge(BETTER_THAN_RELU, _pairs(content, lambda label: label == "relu", ERROR))


def better_than_all(content: Content) -> Verdict:
    """SPLASH against the best of the other units that the paper compares with."""
    pairs = []
    for ours in _of_splash(content):
        others = [
            group
            for group in content.in_setting(ours.setting)
            if group.label.split()[0] in RIVALS and _values(group, ERROR)
        ]
        if others and _values(ours, ERROR):
            pairs.append(_pair(ours, min(others, key=_mean_error), ERROR))
    return judge(BETTER_THAN_ALL, pairs)


def starts(content: Content) -> Verdict:
    """The ReLU start against those that the paper finds worse."""
    return judge(STARTS, _pairs(content, lambda label: label in OTHER_STARTS, TRAINING_LOSS))


def ablation(content: Content) -> Verdict:
    """SPLASH against itself with some of its freedom taken."""
    pairs = _pairs(content, lambda label: label.split()[0] in VARIANTS, TRAINING_LOSS)
    return judge(ABLATION, pairs)


def hinges(content: Content) -> Verdict:
    """Seven hinges against fewer and more.

    That more are no better agrees with the claim, but cannot be shown by a test that sees nothing:
    confirmed needs fewer hinges that are worse, and none that are better.
    """
    verdict = judge(HINGES, _pairs(content, lambda label: label in OTHER_HINGES, ERROR))
    deciding = [row for row in verdict.evidence if row.scale == verdict.scale]
    if verdict.scale in ("", "smoke") or all(row.p is None for row in deciding):
        return verdict
    says = {row.says for row in deciding}
    if "against" in says:
        words = "Some other number of hinges errs less, by more than chance explains."
        return replace(verdict, outcome="contradicted", words=words)
    if "for" in says:
        words = "Fewer hinges err more, by more than chance explains; no other number errs less."
        return replace(verdict, outcome="confirmed", words=words)
    words = "No number of hinges differs from seven by more than chance explains."
    return replace(verdict, outcome="undecided", words=words)


def _pairs(content: Content, is_other: Callable[[str], bool], quantity: Quantity) -> Iterator[Pair]:
    """SPLASH against every group of its setting that is asked for."""
    for ours in _of_splash(content):
        for group in content.in_setting(ours.setting):
            if is_other(group.label) and _values(group, quantity) and _values(ours, quantity):
                yield _pair(ours, group, quantity)


def _of_splash(content: Content) -> Iterator[Group]:
    """The unit as the paper has it, in every setting where it was run."""
    return (group for group in content.groups if group.label == "splash")


def _pair(ours: Group, other: Group, quantity: Quantity) -> Pair:
    return Pair(ours.setting.words, ours.setting.scale, _side(ours, quantity),
                _side(other, quantity), quantity)  # fmt: skip


def _side(group: Group, quantity: Quantity) -> Side:
    return Side(names.unit_name(group.label), _values(group, quantity), group.ids)


def _values(group: Group, quantity: Quantity) -> dict[int, float]:
    return group.values("train_loss" if quantity is TRAINING_LOSS else "test_error")


def _mean_error(group: Group) -> float:
    summary = summarise(list(_values(group, ERROR).values()))
    assert summary is not None  # asked only of groups that have values
    return summary.mean
