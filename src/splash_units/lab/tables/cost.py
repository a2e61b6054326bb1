"""Seconds of a training step beside ReLU's, and the error they buy."""

from collections.abc import Mapping
from typing import Any

from splash_units.lab.frames import label
from splash_units.lab.names import data_name, network_name, unit_name
from splash_units.lab.spec import AnySpec, CostSpec, TrainSpec
from splash_units.lab.studies import published
from splash_units.lab.tables.accuracy import error_of, without_empty
from splash_units.lab.tables.cells import measured, notes_of, printed
from splash_units.lab.tables.results import View
from splash_units.lab.tables.table import EMPTY, Cell, Table, words


def cost(view: View) -> Table:
    """A row for each network and unit: time beside ReLU's and error, with the paper's."""
    trained = {
        (spec.model, spec.data, label(spec)): spec
        for spec in view.specs()
        if isinstance(spec, TrainSpec)
    }
    rows: list[list[Cell]] = []
    starts, machines = [], []
    for spec in view.specs():
        if not isinstance(spec, CostSpec):
            continue
        starts.append(len(rows))
        made = view.at_hand(spec)
        machines += _machine(view, made)
        ratios = _ratios(view, made)
        for choice in spec.units:
            train = trained.get((spec.model, spec.data, choice.label))
            rows.append(
                [
                    words(network_name(spec.model)),
                    words(data_name(spec.data)),
                    words(unit_name(choice.label)),
                    ratios.get(choice.label, Cell("missing", missing=True)),
                    *(_of_training(view, train) if train else [EMPTY] * 3),
                ]
            )
    heads = (
        "network", "data", "unit", "time / ReLU's", "time / ReLU's, paper", "error in %",
        "error, paper",
    )  # fmt: skip
    kept, rows = without_empty(heads, rows)
    return Table(
        name="cost",
        title="Time of a training step as a multiple of ReLU's, and test error",
        scale=view.scale,
        columns=tuple(kept),
        rows=tuple(tuple(row) for row in rows),
        notes=notes_of(
            view,
            "Ours: ratio of medians of training steps that take turns in one process (in 80 % of "
            "resamples between). The paper's: ratio of its seconds an epoch on a TITAN V.",
            *machines,
        ),
        groups=tuple(starts),
    )


def _of_training(view: View, train: TrainSpec) -> list[Cell]:
    error = measured(view.group(train, error_of))
    return [_published_ratio(train), error, printed(_published(train, "error_rate_pct"))]


def _ratios(view: View, spec: AnySpec) -> Mapping[str, Cell]:
    found = view.found(spec)
    if not found:
        return {}
    result = found[-1].result
    shown = zip(result["labels"], result["ratio"], result["quantiles"], strict=True)
    run = found[-1].finding.id
    return {unit: _ratio(value, quantiles, run) for unit, value, quantiles in shown}


def _ratio(value: float | None, quantiles: list[float] | None, run: str) -> Cell:
    if value is None or quantiles is None:
        return Cell("failed", missing=True, runs=(run,))
    low, high = quantiles
    return Cell(f"{value:.2f} ({low:.2f} to {high:.2f})", value=value, runs=(run,))


def _machine(view: View, spec: AnySpec) -> list[str]:
    """Which machine the ratios are of, in the record's words."""
    found = view.found(spec)
    if not found or not isinstance(spec, CostSpec):
        return []
    record: Mapping[str, Any] = found[-1].finding.record()
    machine = record.get("processor") or "an unknown machine"
    place = f"{record.get('device', 'cpu')}, {record.get('threads', '?')} thread(s)"
    return [f"{network_name(spec.model)} measured on {machine}, {place}."]


def _published(spec: TrainSpec, metric: str) -> Any:
    hinges = spec.unit_options.get("num_hinges", 7)
    return published.value(
        "runtime",
        metric,
        model=spec.model,
        data=spec.data,
        unit=spec.unit,
        setting=f"S={hinges}" if spec.unit == "splash" else None,
    )


def _published_ratio(spec: TrainSpec) -> Cell:
    seconds = _published(spec, "train_time_s_per_epoch")
    relu = spec.model_copy(update={"unit": "relu", "unit_options": {}})
    of_relu = _published(relu, "train_time_s_per_epoch")
    if seconds is None or of_relu is None:
        return EMPTY
    return Cell(f"{seconds.mean / of_relu.mean:.2f}", value=seconds.mean / of_relu.mean)
