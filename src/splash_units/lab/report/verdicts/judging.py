"""How a claim of the paper is judged: comparisons between groups of runs, and what they add up to.

Only runs of one setting are compared. A difference counts when Welch's test sees it at the 5 %
level after Holm's correction over all comparisons of the claim. The largest scale with a result
decides; smoke runs show that everything works and decide nothing.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from splash_units.lab.spec import Scale
from splash_units.lab.statistics import (
    LEVEL,
    Comparison,
    Summary,
    compare,
    holm,
    summarise,
)

Outcome = Literal["confirmed", "partly", "undecided", "contradicted", "missing"]
Says = Literal["for", "against", "open"]
SCALES: tuple[Scale, ...] = ("paper", "short", "smoke")
PRACTICAL_SEEDS = 1000  # beyond it the number of seeds is only "more than"


@dataclass(frozen=True)
class Quantity:
    """What is compared: its name, how it is written, and which way is better."""

    name: str
    unit: str = ""
    factor: float = 1.0
    digits: int = 2
    lower_is_better: bool = True

    def write(self, value: float) -> str:
        blank = "" if self.unit in ("", "×") else " "
        return f"{self.factor * value:.{self.digits}f}{blank}{self.unit}"

    def summary(self, summary: Summary) -> str:
        mean = f"{self.factor * summary.mean:.{self.digits}f}"
        spread = "" if summary.std is None else f" ± {self.factor * summary.std:.{self.digits}f}"
        blank = "" if self.unit in ("", "×") else " "
        return f"{mean}{spread}{blank}{self.unit} ({summary.n})"


@dataclass(frozen=True)
class Evidence:
    """One row under a verdict: where, what against what, the numbers, and what they say."""

    where: str
    scale: str
    what: str
    ours: str
    other: str
    says: Says
    difference: float | None = None  #: as `quantity` writes it
    interval: tuple[float, float] | None = None
    unit: str = ""
    p: float | None = None  #: after Holm's correction
    note: str = ""
    runs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Claim:
    """What the paper says, in a sentence, and the command whose runs can tell.

    `subject` says which way a comparison must go, as the beginning of a sentence.
    """

    name: str
    question: Literal["help", "cost", "robust", "theory"]
    sentence: str
    command: str
    subject: str = ""
    counted: str = "runs"


@dataclass(frozen=True)
class Verdict:
    """What the runs say about a claim: at which scale, and from how many."""

    claim: Claim
    outcome: Outcome = "missing"
    words: str = "Not measured yet."
    evidence: tuple[Evidence, ...] = ()
    scale: str = ""
    n: str = ""
    headline: str = ""  #: instead of the outcome's own word


@dataclass(frozen=True)
class Side:
    """One of two groups: a name for it, a value for each seed, the runs behind them."""

    name: str
    values: Mapping[int, float]
    runs: tuple[str, ...]


@dataclass(frozen=True)
class Pair:
    """Two groups of one setting, the first of which the paper calls better."""

    where: str
    scale: str
    better: Side
    worse: Side
    quantity: Quantity


def weigh(pairs: Sequence[Pair]) -> list[Evidence]:
    """Compare every pair, largest scale first, with Holm's correction over those of one scale."""
    evidence: list[Evidence] = []
    for scale in SCALES:
        here = [pair for pair in pairs if pair.scale == scale]
        compared = [(pair, compare(pair.better.values, pair.worse.values)) for pair in here]
        there = [(pair, comparison) for pair, comparison in compared if comparison is not None]
        corrected = holm([comparison.welch_p for _, comparison in there])
        evidence += [
            _row(pair, comparison, p)
            for (pair, comparison), p in zip(there, corrected, strict=True)
        ]
    return evidence


def _row(pair: Pair, comparison: Comparison, p: float | None) -> Evidence:
    quantity = pair.quantity
    ours = summarise(list(pair.better.values.values()))
    other = summarise(list(pair.worse.values.values()))
    assert ours is not None  # compare() found values on both sides
    assert other is not None
    as_claimed = (comparison.difference < 0) == quantity.lower_is_better
    says: Says = "open" if p is None or p >= LEVEL else "for" if as_claimed else "against"
    interval = comparison.interval
    return Evidence(
        where=pair.where,
        scale=pair.scale,
        what=f"{pair.better.name} − {pair.worse.name}: {quantity.name}",
        ours=quantity.summary(ours),
        other=quantity.summary(other),
        says=says,
        difference=quantity.factor * comparison.difference,
        interval=interval and (quantity.factor * interval[0], quantity.factor * interval[1]),
        unit="points" if quantity.unit == "%" else quantity.unit,
        p=p,
        note=comparison.why_not or _seeds(comparison, says),
        runs=(*pair.better.runs, *pair.worse.runs),
    )


def _seeds(comparison: Comparison, says: Says) -> str:
    """With how many seeds such a difference would be seen, where it was not."""
    if says != "open":
        return ""
    if comparison.seeds_needed is None or comparison.seeds_needed > PRACTICAL_SEEDS:
        return f"to see it would take more than {PRACTICAL_SEEDS:,} seeds each"
    if comparison.seeds_needed <= min(comparison.n_a, comparison.n_b):
        return "seen on its own, but not after the correction for many tests"
    return f"to see it would take about {comparison.seeds_needed:,} seeds each"


def judge(claim: Claim, pairs: Iterable[Pair]) -> Verdict:
    """The outcome that a claim's comparisons add up to."""
    evidence = weigh(list(pairs))
    deciding = decisive(evidence)
    if not deciding:
        return Verdict(claim)
    return Verdict(
        claim=claim,
        outcome=decide(deciding),
        words=_words(claim.subject, deciding),
        evidence=tuple(evidence),
        scale=deciding[0].scale,
        n=f"{len({run for row in deciding for run in row.runs}):,} {claim.counted}",
    )


def decisive(evidence: Sequence[Evidence]) -> list[Evidence]:
    """The rows of the largest scale that has any."""
    for scale in SCALES:
        rows = [row for row in evidence if row.scale == scale]
        if rows:
            return rows
    return []


def decide(rows: Sequence[Evidence]) -> Outcome:
    """All for: confirmed. Some for: partly. None for and some against: contradicted."""
    if rows[0].scale == "smoke":
        return "undecided"
    supports = sum(row.says == "for" for row in rows)
    opposes = sum(row.says == "against" for row in rows)
    if supports == len(rows):
        return "confirmed"
    if supports:
        return "partly"
    return "contradicted" if opposes else "undecided"


def _words(subject: str, rows: Sequence[Evidence]) -> str:
    if rows[0].scale == "smoke":
        return "Only smoke runs so far: they show that everything works, and decide nothing."
    if all(row.p is None for row in rows):
        return f"{rows[0].note[:1].upper()}{rows[0].note[1:]}."
    if len(rows) == 1:
        return _words_of_one(subject, rows[0])
    supports = sum(row.says == "for" for row in rows)
    opposes = sum(row.says == "against" for row in rows)
    undecided = len(rows) - supports - opposes
    parts = [f"{subject} in {supports or 'none'} of {len(rows)} comparisons"]
    parts += [f"the reverse holds in {opposes}"] * bool(opposes)
    parts += [f"{undecided} are undecided"] * bool(undecided and supports + opposes)
    return f"{'; '.join(parts)}."


def _words_of_one(subject: str, row: Evidence) -> str:
    if row.says == "for":
        return f"{subject}, by more than chance explains."
    if row.says == "against":
        return "The reverse holds, by more than chance explains."
    return f"No difference that chance would not explain: {row.note}."
