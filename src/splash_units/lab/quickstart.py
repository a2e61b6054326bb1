"""The quick start: five units in LeNet5 on the embedded digits, three seeds each.

Runs go through the store, so a second quick start shows what the first found. They run side by side
in processes of one thread each, which on a small network beats one process with all threads.
"""

import multiprocessing
import os
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from splash_units.lab import plugins
from splash_units.lab.spec import TrainSpec
from splash_units.lab.store import Run, Store
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


def run_side_by_side(
    wanted: Sequence[TrainSpec], store: Store, processes: int | None = None
) -> Iterator[Run]:
    """Bring every spec's result into the store, in processes of one thread; yield each."""
    missing = [spec for spec in wanted if store.run(spec).result() is None]
    yield from (store.run(spec) for spec in wanted if spec not in missing)
    if not missing:
        return
    # Spawned, not forked: torch's threads do not survive a fork.
    with ProcessPoolExecutor(
        max_workers=min(processes or usable_cores(), len(missing)),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=plugins.load,
        initargs=(plugins.loaded(),),
    ) as pool:
        futures = [pool.submit(_run_one, spec.model_dump_json(), store.root) for spec in missing]
        try:
            for future in as_completed(futures):
                yield future.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _run_one(spec: str, root: Path) -> Run:
    from splash_units.lab.runner import complete

    return complete(TrainSpec.model_validate_json(spec), Store(root), threads=1)


def usable_cores() -> int:
    """The cores this process may use, which can be fewer than the machine has."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
