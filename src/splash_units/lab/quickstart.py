"""The quick start: five units in LeNet5 on the embedded digits, three seeds each, then attacked.

Results go through the store, so a second quick start shows what the first found.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from splash_units.lab.findings import finding
from splash_units.lab.spec import AttackSpec, TrainSpec
from splash_units.lab.statistics import Comparison, Summary, compare, holm, summarise
from splash_units.lab.store import Run, Store
from splash_units.lab.studies.quickstart import EPOCHS, UNITS, attacks_on, trainings

SEEDS = (0, 1, 2)
MEASURE = "relu"  # what the others are compared with
# The attacks that the printed table has room for: one budget of those with several, the same.
SHOWN = {"fgsm": 0.05, "pgd": 0.05, "pixels": None}


@dataclass(frozen=True)
class Row:
    """One unit: its errors, how they compare with ReLU's, and which part of images fools it."""

    unit: str
    diverged: int
    error: Summary | None
    against_relu: Comparison | None
    p: float | None  #: Welch's, after Holm's correction over the units
    train_loss: float | None
    fooled: Mapping[str, Summary | None]


def specs(seeds: Sequence[int] = SEEDS, epochs: int = EPOCHS) -> list[TrainSpec]:
    """The trainings, seed by seed, so that every unit has a result early on."""
    return [spec for seed in seeds for spec in trainings("short", seed, epochs)]


def attacks(runs: Iterable[Run]) -> list[AttackSpec]:
    """The attacks on all networks that there are; one that diverged is not attacked."""
    done = (run for run in runs if (run.result() or {}).get("status") == "done")
    return [spec for run in done for spec in attacks_on(run.spec())]


def attack_each(wanted: Iterable[AttackSpec], store: Store) -> Iterator[AttackSpec]:
    """Bring the attacks into the store, one after the other: each takes a second or less."""
    from splash_units.lab.robustness import attack

    for spec in wanted:
        # Sanity checks would take longer than all the rest; `splash attack` adds them.
        attack(spec, store, check=False)
        yield spec


def by_unit(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs under the names of their units, in the order of UNITS, seeds in order."""
    ordered = sorted(runs, key=lambda run: run.spec().seed)
    return {unit: [run for run in ordered if run.spec().unit == unit] for unit in UNITS}


def rows(groups: Mapping[str, Sequence[Run]]) -> list[Row]:
    """The last epoch's test error unit by unit, tested against ReLU's, and the attacks."""
    errors = {unit: _values(runs, "test_error") for unit, runs in groups.items()}
    compared = {
        unit: compare(errors[unit], errors[MEASURE]) if unit != MEASURE else None for unit in groups
    }
    adjusted = holm([None if one is None else one.welch_p for one in compared.values()])
    found = []
    for (unit, runs), p in zip(groups.items(), adjusted, strict=True):
        loss = summarise(list(_values(runs, "train_loss").values()))
        found.append(
            Row(
                unit=unit,
                diverged=len(runs) - len(errors[unit]),
                error=summarise(list(errors[unit].values())),
                against_relu=compared[unit],
                p=p,
                train_loss=None if loss is None else loss.mean,
                fooled={name: _fooled(runs, name) for name in SHOWN},
            )
        )
    return found


def _values(runs: Sequence[Run], number: str) -> dict[int, float]:
    results = ((run.spec().seed, run.result() or {}) for run in runs)
    return {seed: result[number] for seed, result in results if number in result}


def _fooled(runs: Sequence[Run], name: str) -> Summary | None:
    """Mean over the networks of the part of their images that the attack fooled."""
    parts = []
    for run in runs:
        store = Store(run.root)
        for spec in attacks_on(run.spec()):
            result = finding(store, spec).result() if _is_shown(spec, name) else None
            if result and result["attempts"]:
                parts.append(result["fooled"] / result["attempts"])
    return summarise(parts)


def _is_shown(spec: AttackSpec, name: str) -> bool:
    return spec.attack == name and spec.options.get("eps") == SHOWN[name]
