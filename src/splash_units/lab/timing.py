"""An interleaved stopwatch: contenders take turns in one process, and are compared by ratio.

A machine's speed drifts by more than the differences we look for, so no two contenders are timed
one after the other. In every round each is timed once, in an order drawn anew; what slows a round
slows all. A contender that fails is reported, and the others go on.
"""

import gc
import math
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from splash_units.lab.collector import without_collector

Work = Callable[[], object]
Prepare = Callable[[], Work]

LOWER, UPPER = 0.1, 0.9
RESAMPLES = 1000


@dataclass(frozen=True)
class Effort:
    """How long to measure: until `seconds` are over, but never fewer or more rounds than these."""

    seconds: float = 5.0
    fewest_rounds: int = 5
    most_rounds: int = 200
    warm_up_seconds: float = 0.2
    fewest_warm_ups: int = 2
    # Shorter samples would measure the clock, and the jitter of waking threads.
    sample_seconds: float = 0.002

    def __post_init__(self) -> None:
        if not 0 < self.seconds < math.inf:
            raise ValueError(f"seconds must be a positive number, got {self.seconds!r}")
        if not 1 <= self.fewest_rounds <= self.most_rounds:
            raise ValueError(
                "rounds must be at least one and fewest_rounds at most most_rounds, "
                f"got {self.fewest_rounds} and {self.most_rounds}"
            )


USUAL_EFFORT = Effort()


@dataclass(frozen=True)
class Samples:
    """Seconds a call, one a round, or why there are none; and how many rounds each pass had."""

    seconds: tuple[float, ...] = ()
    calls_a_sample: int = 0
    failure: str | None = None
    passes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Spread:
    """A median between the quantiles at 10 and 90 %."""

    median: float
    lower: float
    upper: float


@dataclass(frozen=True)
class _Runner:
    """A contender that got through its warm-up."""

    work: Work
    calls: int
    seconds: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Stopwatch:
    """Clock and chance, both replaceable; `synchronize` waits for a device to be done."""

    clock: Callable[[], float] = time.perf_counter
    synchronize: Callable[[], None] = lambda: None
    seed: int = 0

    def compare(
        self,
        contenders: Mapping[str, Prepare],
        effort: Effort = USUAL_EFFORT,
        on_round: Callable[[int], None] = lambda done: None,
    ) -> dict[str, Samples]:
        """Time contenders against each other.

        Each is prepared and warmed up, then timed round by round. `on_round` hears how many rounds
        are done.
        """
        runners: dict[str, _Runner] = {}
        failures: dict[str, str] = {}
        for name, prepare in contenders.items():
            try:
                runners[name] = self._warmed_up(prepare(), effort)
            except Exception as error:
                failures[name] = reason(error)
        gc.collect()  # as timeit does: later, it would be charged to whoever happens to run
        with without_collector():
            self._rounds(runners, failures, effort, on_round)
        return {
            name: Samples(failure=failures[name]) if name in failures else _samples(runners[name])
            for name in contenders
        }

    def _warmed_up(self, work: Work, effort: Effort) -> _Runner:
        """Call it until it is warm, and see how many calls fill a sample."""
        shortest = math.inf
        began = self.clock()
        calls = 0
        while calls < effort.fewest_warm_ups or self.clock() - began < effort.warm_up_seconds:
            shortest = min(shortest, self._sample(work, 1))
            calls += 1
        fill = effort.sample_seconds / shortest if shortest > 0 else 1000.0
        return _Runner(work, max(1, math.ceil(fill)))

    def _rounds(
        self,
        runners: Mapping[str, _Runner],
        failures: dict[str, str],
        effort: Effort,
        on_round: Callable[[int], None],
    ) -> None:
        chance = random.Random(self.seed)
        turns = list(runners)
        began = self.clock()
        done = 0
        while turns and done < effort.most_rounds:
            if done >= effort.fewest_rounds and self.clock() - began >= effort.seconds:
                break
            chance.shuffle(turns)
            for name in tuple(turns):
                runner = runners[name]
                try:
                    runner.seconds.append(self._sample(runner.work, runner.calls) / runner.calls)
                except Exception as error:
                    failures[name] = reason(error)
                    turns.remove(name)
            done += 1
            on_round(done)

    def _sample(self, work: Work, calls: int) -> float:
        """Seconds of so many calls."""
        self.synchronize()
        began = self.clock()
        for _ in range(calls):
            work()
        self.synchronize()
        return self.clock() - began


def _samples(runner: _Runner) -> Samples:
    return Samples(tuple(runner.seconds), runner.calls, passes=(len(runner.seconds),))


def joined(passes: Sequence[Samples]) -> Samples:
    """Samples of one contender that were taken at several times; one failure fails all."""
    for taken in passes:
        if taken.failure is not None:
            return taken
    return Samples(
        tuple(second for taken in passes for second in taken.seconds),
        passes[0].calls_a_sample,
        passes=tuple(rounds for taken in passes for rounds in taken.passes),
    )


def spread(values: Sequence[float]) -> Spread:
    """The median of measured values, and the quantiles that 80 % of them lie between."""
    lower, median, upper = np.quantile(np.asarray(values), [LOWER, 0.5, UPPER])
    return Spread(float(median), float(lower), float(upper))


def ratio(
    values: Sequence[float],
    to: Sequence[float],
    passes: Sequence[int] = (),
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Spread:
    """The ratio of two medians, and between which it lies in 80 % of bootstrapped measurements.

    Values at the same place are of the same round, so rounds are drawn, not values: what slowed
    both in a round counts for both. Where `passes` says how many rounds each of several passes had,
    passes are drawn first: rounds of one are more alike than those of two.
    """
    if len(values) != len(to) or not values:
        raise ValueError(
            f"a ratio needs values of the same rounds, got {len(values)} and {len(to)} of them"
        )
    above, below = np.asarray(values), np.asarray(to)
    drawn = _drawn_rounds(passes or (len(values),), resamples, np.random.default_rng(seed))
    ratios = np.median(above[drawn], axis=1) / np.median(below[drawn], axis=1)
    lower, upper = np.quantile(ratios, [LOWER, UPPER])
    return Spread(float(np.median(above) / np.median(below)), float(lower), float(upper))


def _drawn_rounds(
    passes: Sequence[int], resamples: int, chance: np.random.Generator
) -> NDArray[np.int64]:
    """About as many rounds as there are, in every row: drawn ones of drawn passes."""
    sizes = np.asarray(passes)
    rounds_a_pass = max(1, int(sizes.sum()) // len(sizes))
    chosen = chance.integers(len(sizes), size=(resamples, len(sizes))).repeat(rounds_a_pass, axis=1)
    first_of = np.cumsum(sizes) - sizes
    return np.asarray(first_of[chosen] + chance.integers(sizes[chosen]))


def reason(error: Exception) -> str:
    """An error on one line, short enough for a table."""
    first_line = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first_line}"[:300]
