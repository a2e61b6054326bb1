"""The store as tables of numbers: one row a run, an epoch, or an attack, for whoever compares.

Everything that shows results (`tables`, `figures`, `report`) reads the store through these frames.
Runs that failed, diverged or are still going have rows, too: what is missing must be seen. Results
of an earlier version, in which the same spec meant something else, have none.
"""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
from pydantic import BaseModel

from splash_units.lab.findings import Finding, read_findings
from splash_units.lab.spec import AnySpec, AttackSpec, TrainSpec, digest
from splash_units.lab.store import ID_LENGTH, Run, Store

# What says which experiment a run belongs to, beside its unit and seed.
SETTING = ("model", "data", "augment", "scale")

_RUN = {
    "id": pl.String, "model": pl.String, "data": pl.String, "augment": pl.String,
    "unit": pl.String, "label": pl.String, "seed": pl.Int64, "scale": pl.String,
    "options": pl.String, "state": pl.String, "why": pl.String, "epochs": pl.Int64,
    "epochs_done": pl.Float64, "test_error": pl.Float64, "best_test_error": pl.Float64,
    "train_loss": pl.Float64, "train_error": pl.Float64, "parameters": pl.Int64,
    "slopes": pl.Int64, "seconds": pl.Float64,
}  # fmt: skip
_EPOCH = {
    "id": pl.String, "epoch": pl.Int64, "train_loss": pl.Float64, "train_error": pl.Float64,
    "test_loss": pl.Float64, "test_error": pl.Float64, "lr": pl.Float64, "seconds": pl.Float64,
}  # fmt: skip
_ATTACK = {
    "id": pl.String, "run": pl.String, "model": pl.String, "data": pl.String,
    "augment": pl.String, "unit": pl.String, "label": pl.String, "seed": pl.Int64,
    "scale": pl.String, "attack": pl.String, "options": pl.String, "eps": pl.Float64,
    "k": pl.Int64, "choose": pl.String, "attack_seed": pl.Int64, "images": pl.Int64,
    "attempts": pl.Int64, "fooled": pl.Int64, "fooled_low": pl.Float64, "fooled_high": pl.Float64,
    "wrong_after": pl.Int64, "clean_accuracy": pl.Float64, "robust_accuracy": pl.Float64,
    "median_l2": pl.Float64, "own_gap": pl.Float64, "success_at_l2": pl.String,
    "warnings": pl.String,
}  # fmt: skip


@dataclass(frozen=True)
class Frames:
    """All of a store's numbers, and the specs behind them by name."""

    runs: pl.DataFrame
    epochs: pl.DataFrame
    attacks: pl.DataFrame
    specs: Mapping[str, TrainSpec]
    unreadable: Mapping[str, str]  #: runs and attacks whose spec can't be read, and why
    outdated: tuple[str, ...] = ()  #: runs and attacks named by the hash of an earlier version


class Snapshot(Store):
    """A store whose numbers are read once, for whoever asks for them many times."""

    def __init__(self, root: str | Path) -> None:
        super().__init__(root)
        self.known_runs = {run.id: run.known() for run in super().runs()}
        self.known_findings = read_findings(self)
        self.frames = _frames_of(self)

    def run(self, spec: BaseModel) -> Run:
        run = super().run(spec)
        return self.known_runs.get(run.id, run)

    def runs(self) -> list[Run]:
        return list(self.known_runs.values())


def read(store: Store) -> Frames:
    """Read a store once."""
    return (store if isinstance(store, Snapshot) else Snapshot(store.root)).frames


def _frames_of(store: Snapshot) -> Frames:
    attacks_by_run: dict[str, list[Finding]] = {}
    for found in store.known_findings:
        attacks_by_run.setdefault(found.folder.parent.parent.name, []).append(found)
    runs: list[dict[str, Any]] = []
    attacks: list[dict[str, Any]] = []
    specs: dict[str, TrainSpec] = {}
    unreadable: dict[str, str] = {}
    outdated: list[str] = []
    for run in store.runs():
        try:
            spec = run.spec()
        except ValueError as problem:
            unreadable[run.id] = str(problem)
            continue
        if run.id != run_id(spec):
            outdated.append(run.id)
            continue
        specs[run.id] = spec
        runs.append(_run_row(run, spec))
        for found in attacks_by_run.get(run.id, ()):
            try:
                attack = found.spec()
            except ValueError as problem:
                unreadable[found.id] = str(problem)
                continue
            if found.id == run_id(attack):
                attacks.append(_attack_row(found, attack, run))
            else:
                outdated.append(found.id)
    return Frames(
        runs=pl.DataFrame(runs, schema=_RUN),
        epochs=_epochs_of([store.known_runs[name] for name in specs]),
        attacks=pl.DataFrame(attacks, schema=_ATTACK),
        specs=specs,
        unreadable=unreadable,
        outdated=tuple(outdated),
    )


def _epochs_of(runs: Sequence[Run]) -> pl.DataFrame:
    """Column by column: there are a hundred times as many rows as there are runs."""
    numbers = [name for name in _EPOCH if name != "id"]
    columns = {name: [line.get(name) for run in runs for line in run.history()] for name in numbers}
    columns["id"] = [run.id for run in runs for _ in run.history()]
    return pl.DataFrame(columns, schema=_EPOCH)


def label(spec: TrainSpec) -> str:
    """A unit as a table names it: the catalogue's name, and what departs from its defaults."""
    options = dict(spec.unit_options)
    words = [spec.unit]
    if "num_hinges" in options:
        words.append(f"S={options.pop('num_hinges')}")
    words += [f"{key}={_word(value)}" for key, value in sorted(options.items())]
    if spec.slope_lr != 1:
        words.append(f"slope_lr={spec.slope_lr:g}")
    if spec.source is not None:
        words.append(f"{spec.take} of {label(spec.source)}")
    return " ".join(words)


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _run_row(run: Run, spec: TrainSpec) -> dict[str, Any]:
    status, result, record = run.status(), run.result() or {}, run.record()
    return {
        **_setting(spec),
        "id": run.id,
        "options": json.dumps(
            spec.model_dump(mode="json", exclude_defaults=True, exclude={"seed", "scale"}),
            sort_keys=True,
        ),
        "state": status.state,
        "why": status.why,
        "epochs": status.epochs,
        "epochs_done": float(status.epochs_done),
        **_only(result, ("test_error", "best_test_error", "train_loss", "train_error")),
        "parameters": record.get("parameters"),
        "slopes": sum(math.prod(shape) for shape in record.get("layout", {}).values()),
        "seconds": float(sum(numbers["seconds"] for numbers in run.history())),
    }


def _attack_row(found: Finding, attack: AnySpec, run: Run) -> dict[str, Any]:
    assert isinstance(attack, AttackSpec)
    result = found.result() or {}
    low, high = result.get("fooled_interval") or (None, None)
    return {
        **_setting(attack.train),
        "id": found.id,
        "run": run.id,
        "attack": attack.attack,
        "options": json.dumps(attack.options, sort_keys=True),
        **_only(attack.options, ("eps", "k")),
        "choose": attack.choose,
        "attack_seed": attack.seed,
        **_only(result, ("images", "attempts", "fooled", "wrong_after", "median_l2")),
        **_only(result, ("clean_accuracy", "robust_accuracy", "own_gap")),
        "fooled_low": low,
        "fooled_high": high,
        "success_at_l2": json.dumps(result.get("success_at_l2")),
        "warnings": "\n".join(result.get("warnings", [])),
    }


def _setting(spec: TrainSpec) -> dict[str, Any]:
    named = {name: getattr(spec, name) for name in (*SETTING, "unit", "seed")}
    return {**named, "label": label(spec)}


def _only(values: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    return {name: values[name] for name in names if name in values and name != "id"}


def run_id(spec: AnySpec) -> str:
    """The name that a spec's run or finding has in every store."""
    return digest(spec)[:ID_LENGTH]
