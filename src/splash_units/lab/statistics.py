"""What several seeds say: means with intervals, tests between units, and how many seeds it takes.

Welch's t-test, two-sided, is the primary one: units need not have equal variances. Student's and
the test paired by seed stand beside it; networks of one seed start from the same kernels and see
the same batches, so the paired test often sees more. The paper says "a t-test" and no more. The
number of seeds is for Student's test with the same number in both groups, at power 0.8, if the
observed effect were the true one.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy import special

LEVEL = 0.05  #: a p-value below it counts as a difference
CONFIDENCE = 1 - LEVEL
POWER = 0.8
TOO_FEW = "fewer than two seeds: no test"
NO_SPREAD = "no spread in either group: no test"
MOST_SEEDS = 100_000  # beyond it, "how many" has no use as an answer


@dataclass(frozen=True)
class Summary:
    """n values by their mean and sample deviation; one value has no deviation and no interval."""

    mean: float
    std: float | None
    n: int

    @property
    def interval(self) -> tuple[float, float] | None:
        """The 95 % t interval of the mean."""
        if self.std is None or self.n < 2:
            return None
        half = _t_quantile(self.n - 1, (1 + CONFIDENCE) / 2) * self.std / math.sqrt(self.n)
        return self.mean - half, self.mean + half


@dataclass(frozen=True)
class Comparison:
    """Group a against group b; what cannot be computed is None, and `why_not` says why.

    `difference` is mean a − mean b, `interval` its 95 % interval by Welch. `effect_size` is Hedges'
    g, the difference in pooled deviations with the correction for small samples. `paired_p` needs
    two seeds that both groups have.
    """

    difference: float
    n_a: int
    n_b: int
    welch_p: float | None = None
    student_p: float | None = None
    paired_p: float | None = None
    effect_size: float | None = None
    seeds_needed: int | None = None
    interval: tuple[float, float] | None = None
    why_not: str = ""


def summarise(values: Sequence[float]) -> Summary | None:
    """Mean, sample deviation (n − 1) and n; None of no values."""
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Summary(mean, None, 1)
    if min(values) == max(values):
        return Summary(values[0], 0.0, n)  # rounding would make a deviation of 1e-17, and a test
    squares = math.fsum((value - mean) ** 2 for value in values)
    return Summary(mean, math.sqrt(squares / (n - 1)), n)


def compare(a: Mapping[int, float], b: Mapping[int, float]) -> Comparison | None:
    """Compare two groups, each a value for every seed; None if one is empty."""
    summary_a, summary_b = summarise(list(a.values())), summarise(list(b.values()))
    if summary_a is None or summary_b is None:
        return None
    both = sorted(a.keys() & b.keys())
    return compare_summaries(
        summary_a, summary_b, paired_p=paired_test([a[s] - b[s] for s in both])
    )


def compare_summaries(a: Summary, b: Summary, *, paired_p: float | None = None) -> Comparison:
    """Compare two groups of which only mean, deviation and number are known, as of a paper."""
    difference = a.mean - b.mean
    if a.std is None or b.std is None:
        return Comparison(difference, a.n, b.n, why_not=TOO_FEW)
    if a.std == 0 and b.std == 0:
        return Comparison(difference, a.n, b.n, why_not=NO_SPREAD)
    freedom = a.n + b.n - 2
    pooled = math.sqrt(((a.n - 1) * a.std**2 + (b.n - 1) * b.std**2) / freedom)
    cohen = difference / pooled
    return Comparison(
        difference=difference,
        n_a=a.n,
        n_b=b.n,
        welch_p=_welch(difference, a.std**2 / a.n, a.n, b.std**2 / b.n, b.n),
        student_p=two_sided(cohen / math.sqrt(1 / a.n + 1 / b.n), freedom),
        paired_p=paired_p,
        effect_size=cohen * _small_sample_correction(freedom),
        seeds_needed=seeds_needed(cohen),
        interval=_welch_interval(difference, a.std**2 / a.n, a.n, b.std**2 / b.n, b.n),
    )


def paired_test(differences: Sequence[float]) -> float | None:
    """Two-sided p-value of the differences' mean being zero; None without spread or of one."""
    summary = summarise(differences)
    if summary is None or not summary.std:
        return None
    return two_sided(summary.mean / (summary.std / math.sqrt(summary.n)), summary.n - 1)


def seeds_needed(effect: float, *, level: float = LEVEL, power: float = POWER) -> int | None:
    """Seeds in each group with which the test sees this effect at this power; None if too many."""
    if not 0 < level < 1 or not 0 < power < 1:
        raise ValueError(f"level and power must lie between 0 and 1, got {level} and {power}")
    if effect == 0 or not math.isfinite(effect):
        return None
    enough = 2
    while _power(effect, enough, level) < power:
        enough *= 2
        if enough > MOST_SEEDS:
            return None
    too_few = enough // 2 if enough > 2 else 1
    while enough - too_few > 1:
        middle = (too_few + enough) // 2
        if _power(effect, middle, level) < power:
            too_few = middle
        else:
            enough = middle
    return enough


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Holm's correction over the tests of a table; what was not tested stays None."""
    tested = sorted((p, place) for place, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, place) in enumerate(tested):
        if not 0 <= p <= 1:
            raise ValueError(f"a p-value lies between 0 and 1, got {p}")
        largest = max(largest, min(1.0, (len(tested) - rank) * p))
        adjusted[place] = largest
    return adjusted


def wilson(successes: int, trials: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's interval of a proportion; all of [0, 1] of no trials."""
    if not 0 <= successes <= trials:
        raise ValueError(f"successes must lie between 0 and {trials} trials, got {successes}")
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    if trials == 0:
        return 0.0, 1.0
    z = float(special.ndtri((1 + confidence) / 2))
    rate, spread = successes / trials, z**2 / trials
    centre = rate + spread / 2
    half = z * math.sqrt((rate * (1 - rate) + spread / 4) / trials)
    low, high = (centre - half) / (1 + spread), (centre + half) / (1 + spread)
    # At the ends the interval begins or stops exactly there; rounding must not say otherwise.
    return (0.0 if successes == 0 else low), (1.0 if successes == trials else high)


def two_sided(t: float, freedom: float) -> float:
    """The two-sided p-value of a t statistic."""
    return float(2 * special.stdtr(freedom, -abs(t)))


def _welch(difference: float, error_a: float, n_a: int, error_b: float, n_b: int) -> float:
    """`error` is the squared standard error of a group's mean."""
    freedom = _welch_freedom(error_a, n_a, error_b, n_b)
    return two_sided(difference / math.sqrt(error_a + error_b), freedom)


def _welch_interval(
    difference: float, error_a: float, n_a: int, error_b: float, n_b: int
) -> tuple[float, float]:
    quantile = _t_quantile(_welch_freedom(error_a, n_a, error_b, n_b), (1 + CONFIDENCE) / 2)
    half = quantile * math.sqrt(error_a + error_b)
    return difference - half, difference + half


def _welch_freedom(error_a: float, n_a: int, error_b: float, n_b: int) -> float:
    return (error_a + error_b) ** 2 / (error_a**2 / (n_a - 1) + error_b**2 / (n_b - 1))


def _small_sample_correction(freedom: int) -> float:
    """Hedges' exact factor, Γ(f/2) / (√(f/2) Γ((f − 1)/2))."""
    if freedom < 2:
        return 0.0
    log_ratio = special.gammaln(freedom / 2) - special.gammaln((freedom - 1) / 2)
    return float(math.exp(log_ratio) / math.sqrt(freedom / 2))


def _power(effect: float, n: int, level: float) -> float:
    freedom = 2 * n - 2
    critical = _t_quantile(freedom, 1 - level / 2)
    shift = abs(effect) * math.sqrt(n / 2)
    missed = special.nctdtr(freedom, shift, critical) - special.nctdtr(freedom, shift, -critical)
    return float(1 - missed)


def _t_quantile(freedom: float, probability: float) -> float:
    return float(special.stdtrit(freedom, probability))
