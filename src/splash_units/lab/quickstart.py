"""The quick start: five units in LeNet5 on the embedded digits, three seeds each.

Runs go through the store, so a second quick start shows what the first found.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from splash_units.lab.spec import TrainSpec
from splash_units.lab.store import Run
from splash_units.lab.studies.quickstart import EPOCHS, UNITS

SEEDS = (0, 1, 2)


@dataclass(frozen=True)
class Row:
    """One unit's results; a single run has a mean and no deviation."""

    unit: str
    count: int
    diverged: int
    error: float | None
    error_deviation: float | None
    train_loss: float | None


def specs(seeds: Sequence[int] = SEEDS, epochs: int = EPOCHS) -> list[TrainSpec]:
    """The runs, seed by seed, so that every unit has a result early on."""
    return [
        TrainSpec(model="lenet5", data="digits", unit=unit, seed=seed, epochs=epochs)
        for seed in seeds
        for unit in UNITS
    ]


def by_unit(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs under the names of their units, in the order of UNITS, seeds in order."""
    ordered = sorted(runs, key=lambda run: run.spec().seed)
    return {unit: [run for run in ordered if run.spec().unit == unit] for unit in UNITS}


def rows(groups: dict[str, list[Run]]) -> list[Row]:
    """Mean and sample deviation of the last epoch's test error, unit by unit."""
    return [_row(unit, [run.result() or {} for run in runs]) for unit, runs in groups.items()]


def _row(unit: str, results: Sequence[dict[str, float]]) -> Row:
    done = [result for result in results if "test_error" in result]
    errors = [result["test_error"] for result in done]
    return Row(
        unit=unit,
        count=len(done),
        diverged=len(results) - len(done),
        error=statistics.mean(errors) if errors else None,
        error_deviation=statistics.stdev(errors) if len(errors) > 1 else None,
        train_loss=statistics.mean(result["train_loss"] for result in done) if done else None,
    )
