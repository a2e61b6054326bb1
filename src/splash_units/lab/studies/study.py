"""What a study is: a declaration of the specs it needs, and of the tables and figures they make."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import get_args

from splash_units.lab.spec import (
    AnySpec,
    AttackSpec,
    CostSpec,
    Scale,
    SeparationSpec,
    TrainSpec,
    TransferSpec,
    digest,
    unknown,
)
from splash_units.lab.studies.selection import select

SCALES: tuple[Scale, ...] = get_args(Scale)
# Five runs are the paper's. Fewer than two can't be tested, and a smoke run proves nothing anyway.
SEEDS: Mapping[Scale, int] = {"smoke": 1, "short": 3, "paper": 5}

Declare = Callable[[Scale, int], Iterable[AnySpec]]


@dataclass(frozen=True)
class Study:
    """An experiment by name.

    `declare(scale, seed)` gives the specs of one seed; those of all seeds together, each once, are
    :meth:`specs`. `text` says what is reproduced, what the paper got, what it costs, and how to run
    it. `tables` and `figures` are names for `splash table` and `splash figure`; `file` is where it
    was read from, if it was.
    """

    name: str
    title: str
    text: str
    declare: Declare
    tables: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    seeds: Mapping[Scale, int] = field(default_factory=lambda: SEEDS)
    file: str = ""

    @property
    def called(self) -> str:
        """What the command line calls it: its file, if it is from one, or its name."""
        return self.file or self.name

    def specs(
        self,
        scale: str,
        seeds: int | None = None,
        only: str | None = None,
        data: str | None = None,
    ) -> list[AnySpec]:
        """The specs at a scale, seed by seed, so that every unit has a result early on.

        `seeds` is a number of seeds instead of the scale's, `only` a selection such as
        "model=lenet5,unit=relu+splash", `data` the name of a data set that then takes the place of
        all the study's own.
        """
        if scale not in SCALES:
            raise ValueError(unknown("scale", scale, SCALES))
        count = self.seeds[scale] if seeds is None else seeds
        if count < 1:
            raise ValueError(f"seeds must be at least 1, got {count}")
        specs = list(_declared(self.declare, scale, count))
        if only is not None:
            specs = list(_once(select(specs, only, self.name)))
        if data is not None:
            specs = list(_once(with_data(spec, data) for spec in specs))
        return specs


@lru_cache(maxsize=64)  # tables of one study ask for the same, and again at every scale
def _declared(declare: Declare, scale: Scale, seeds: int) -> tuple[AnySpec, ...]:
    return tuple(_once(spec for seed in range(seeds) for spec in declare(scale, seed)))


def with_data(spec: AnySpec, data: str) -> AnySpec:
    """The same on another data set, all the trainings it needs included."""
    match spec:
        case TrainSpec():
            return _train_with_data(spec, data)
        case AttackSpec(train=train) | SeparationSpec(train=train):
            return spec.model_copy(update={"train": _train_with_data(train, data)})
        case TransferSpec(trains=trains):
            moved = tuple(_train_with_data(train, data) for train in trains)
            return spec.model_copy(update={"trains": moved})
        case CostSpec():
            return spec.model_copy(update={"data": data})


def stand_in(specs: Iterable[AnySpec], scale: str) -> str | None:
    """The data set to use instead of missing ones: the embedded digits at smoke, else none.

    A smoke run shows that everything works, for which any images do; whatever is to be believed
    needs the data it speaks of.
    """
    from splash_units.lab.data import available

    if scale != "smoke":
        return None
    there = {data.name for data in available() if data.present}
    return "digits" if any(name not in there for name in data_of(specs)) else None


def data_of(specs: Iterable[AnySpec]) -> set[str]:
    """The data sets that specs name."""
    names: set[str] = set()
    for spec in specs:
        match spec:
            case TrainSpec(data=data) | CostSpec(data=data):
                names.add(data)
            case AttackSpec(train=train) | SeparationSpec(train=train):
                names.add(train.data)
            case TransferSpec(trains=trains):
                names.update(train.data for train in trains)
    return names


def _train_with_data(spec: TrainSpec, data: str) -> TrainSpec:
    source = spec.source and _train_with_data(spec.source, data)
    return spec.model_copy(update={"data": data, "source": source})


def _once(specs: Iterable[AnySpec]) -> Iterator[AnySpec]:
    seen = set()
    for spec in specs:
        name = digest(spec)
        if name not in seen:
            seen.add(name)
            yield spec
