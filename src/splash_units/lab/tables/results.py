"""What a store has for a study: the values of each cell by seed, and what is lacking of them.

A cell is about one spec, whatever its seed: all runs that differ from it in nothing but the seed
belong to it, also those of more seeds than the study asks for. What the study asks for and the
store does not have is counted, so that a table can show it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from splash_units.lab import frames
from splash_units.lab.findings import Finding, finding, findings
from splash_units.lab.spec import (
    AnySpec,
    AttackSpec,
    CostSpec,
    SeparationSpec,
    TrainSpec,
    TransferSpec,
    digest,
)
from splash_units.lab.store import Store
from splash_units.lab.studies import SCALES, Study

Numbers = Mapping[str, Any]
Value = Callable[[Numbers], float | None]

#: What may take the place of a study's data sets without being asked for.
STAND_IN = "digits"


@dataclass(frozen=True)
class Group:
    """One cell's values by seed, the runs they are from, and how many are lacking, by reason."""

    values: Mapping[int, float]
    runs: tuple[str, ...]
    lacking: Mapping[str, int]
    planned: int


@dataclass(frozen=True)
class Found:
    """A finished finding with its spec and numbers."""

    spec: AnySpec
    result: Numbers
    finding: Finding


@dataclass(frozen=True)
class Results:
    """A store, read once: runs and findings under the spec they have but for the seed."""

    store: Store
    runs: Mapping[str, Sequence[Numbers]]
    found: Mapping[str, Sequence[Found]]
    outdated: tuple[str, ...] = ()


def read(store: Store) -> Results:
    """Read a store for as many tables as one likes."""
    there = frames.read(store)
    runs: dict[str, list[Numbers]] = defaultdict(list)
    for row in there.runs.sort("seed").iter_rows(named=True):
        runs[seedless(there.specs[row["id"]])].append(row)
    found: dict[str, list[Found]] = defaultdict(list)
    for one in findings(store):
        try:
            spec = one.spec()
        except ValueError:
            continue  # `splash status` names what can't be read
        if one.id == frames.run_id(spec):
            found[seedless(spec)].append(Found(spec, one.result() or {}, one))
    return Results(store, runs, found, there.outdated)


def seedless(spec: AnySpec) -> str:
    """What all seeds of a spec have in common, as a name."""
    return digest(_without_seed(spec))


def seed_of(spec: AnySpec) -> int:
    """The seed that tells a spec from its likes: that of its training."""
    match spec:
        case TrainSpec(seed=seed):
            return seed
        case AttackSpec(train=train) | SeparationSpec(train=train):
            return train.seed
        case TransferSpec(trains=trains):
            return trains[0].seed
        case CostSpec():
            return 0


def _without_seed(spec: AnySpec) -> AnySpec:
    match spec:
        case TrainSpec():
            return _train_without_seed(spec)
        case AttackSpec(train=train) | SeparationSpec(train=train):
            return spec.model_copy(update={"train": _train_without_seed(train), "seed": 0})
        case TransferSpec(trains=trains):
            plain = tuple(_train_without_seed(train) for train in trains)
            return spec.model_copy(update={"trains": plain, "seed": 0})
        case CostSpec():
            return spec


def _train_without_seed(spec: TrainSpec) -> TrainSpec:
    source = spec.source and _train_without_seed(spec.source)
    return spec.model_copy(update={"seed": 0, "source": source})


@dataclass(frozen=True)
class View:
    """A study or a part of it at a scale, on its own data or another set's, and a store's results.

    `only` is the part, as a selection says it.
    """

    study: Study
    scale: str
    data: str | None
    results: Results
    planned: Mapping[str, Sequence[AnySpec]]
    only: str | None = None
    notes: tuple[str, ...] = field(default=())

    def specs(self) -> list[AnySpec]:
        """The specs of the study, one for all seeds, in its order."""
        return [specs[0] for specs in self.planned.values()]

    def group(self, spec: AnySpec, value: Value) -> Group:
        """The values of a spec's seeds."""
        if isinstance(spec, TrainSpec):
            return self._runs(spec, value)
        return self._findings(spec, value)

    def found(self, spec: AnySpec) -> Sequence[Found]:
        """The findings of a spec, of all seeds."""
        return self.results.found.get(seedless(spec), ())

    def at_hand(self, spec: AnySpec) -> AnySpec:
        """A comparison of several networks or units as it was made: perhaps of fewer of them.

        That is what running a part of a study leaves.
        """
        if not isinstance(spec, TransferSpec | CostSpec) or self.found(spec):
            return spec
        made = (found[0].spec for found in self.results.found.values())
        parts = [other for other in made if other.kind == spec.kind and _is_part(other, spec)]
        return max(parts, key=lambda other: len(_members(other)), default=spec)

    def _runs(self, spec: TrainSpec, value: Value) -> Group:
        name = seedless(spec)
        values: dict[int, float] = {}
        lacking: dict[str, int] = defaultdict(int)
        rows = self.results.runs.get(name, ())
        for row in rows:
            number = value(row) if row["state"] == "done" else None
            if number is not None:
                values[row["seed"]] = number
            else:
                lacking[row["state"] if row["state"] != "done" else "without a value"] += 1
        seeds = {row["seed"] for row in rows}
        self._count_missing(name, seeds, lacking, lambda _: "missing")
        ids = tuple(row["id"] for row in rows)
        return Group(values, ids, lacking, len(self.planned.get(name, ())))

    def _findings(self, spec: AnySpec, value: Value) -> Group:
        name = seedless(spec)
        values: dict[int, float] = {}
        lacking: dict[str, int] = defaultdict(int)
        found = self.found(spec)
        for one in found:
            number = value(one.result)
            if number is not None:
                values[seed_of(one.spec)] = number
            else:
                lacking["without a value"] += 1
        seeds = {seed_of(one.spec) for one in found}
        self._count_missing(name, seeds, lacking, self._why_missing)
        ids = tuple(one.finding.id for one in found)
        return Group(values, ids, lacking, len(self.planned.get(name, ())))

    def _count_missing(
        self,
        name: str,
        there: set[int],
        lacking: dict[str, int],
        why: Callable[[AnySpec], str],
    ) -> None:
        for spec in self.planned.get(name, ()):
            if seed_of(spec) not in there:
                lacking[why(spec)] += 1

    def _why_missing(self, spec: AnySpec) -> str:
        if isinstance(spec, AttackSpec | SeparationSpec):
            state = self.results.store.run(spec.train).status().state
            if state in ("diverged", "failed"):
                return state
        return "failed" if finding(self.results.store, spec).failure() else "missing"


def _members(spec: AnySpec) -> dict[str, Any]:
    """What a spec compares, by what each has in common with its likes."""
    if isinstance(spec, TransferSpec):
        return {seedless(train): train for train in spec.trains}
    return {digest(unit): unit for unit in spec.units} if isinstance(spec, CostSpec) else {}


def _is_part(other: AnySpec, whole: AnySpec) -> bool:
    """Whether a spec is another but for comparing fewer."""
    some, every = _members(other), _members(whole)
    if not some.keys() <= every.keys():
        return False
    field = "trains" if isinstance(whole, TransferSpec) else "units"
    return seedless(other.model_copy(update={field: tuple(every.values())})) == seedless(whole)


def view(
    study: Study,
    results: Results,
    scale: str | None = None,
    data: str | None = None,
    only: str | None = None,
) -> View:
    """A study beside what a store has of it.

    Without a scale, that of which the store has most, the larger of equals; without a data set, the
    study's own or, if there is nothing of those at all, the embedded digits.
    """
    scales = (scale,) if scale else tuple(reversed(SCALES))
    for shown in (data,) if data else (None, STAND_IN):
        counted = {
            s: _count(study.specs(s, None if only else 1, only, shown), results) for s in scales
        }
        best = max(counted, key=lambda s: counted[s])
        if counted[best]:
            break
    else:
        best, shown = scale or "short", data
    planned: dict[str, list[AnySpec]] = defaultdict(list)
    for spec in study.specs(best, only=only, data=shown):
        planned[seedless(spec)].append(spec)
    notes = [_other_scale(study, s, counted[s]) for s in scales if s != best]
    if shown is not None:
        notes.insert(0, f"All on {shown}, which stands in for the study's data sets.")
    if results.outdated:
        notes.append(
            f"{len(results.outdated)} results of an earlier version, in which the same settings "
            "meant something else, are left out."
        )
    said = tuple(note for note in notes if note)
    return View(study, best, shown, results, planned, only, said)


def _count(specs: Iterable[AnySpec], results: Results) -> int:
    families = {seedless(spec) for spec in specs}
    return sum(len(results.runs.get(f, ())) + len(results.found.get(f, ())) for f in families)


def _other_scale(study: Study, scale: str, count: int) -> str:
    if not count:
        return ""
    return f"The store has {count} results at scale {scale}, too (--scale {scale})."
