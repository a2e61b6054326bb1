"""Tables of trainings other than the main one: hinges, starts, ablation, fine-tuning."""

from collections.abc import Callable, Sequence

from splash_units.lab.frames import label
from splash_units.lab.names import network_name, unit_name
from splash_units.lab.spec import TrainSpec
from splash_units.lab.statistics import compare, holm
from splash_units.lab.studies import published
from splash_units.lab.tables.accuracy import error_of, without_empty
from splash_units.lab.tables.cells import (
    COMPARISON_COLUMNS,
    comparison_cells,
    marked,
    measured,
    notes_of,
    printed,
    setting_name,
    winners,
)
from splash_units.lab.tables.results import Group, View
from splash_units.lab.tables.table import EMPTY, Cell, Table, words


def hinges(view: View) -> Table:
    """A row for each network, sharing and S: error and additional parameters, with the paper's."""
    specs = [spec for spec in view.specs() if isinstance(spec, TrainSpec)]
    specs.sort(key=lambda spec: (_place(spec), _sharing(spec) != "shared", _number(spec)))
    rows: list[list[Cell]] = []
    starts = []
    for spec in specs:
        if _number(spec) == _number(specs[0]):
            starts.append(len(rows))
        rows.append(
            [
                words(network_name(spec.model)),
                words(setting_name(spec.data, spec.augment)),
                words(_sharing(spec)),
                Cell(str(_number(spec)), _number(spec)),
                measured(view.group(spec, error_of)),
                _published_hinges("num_hinges", "error_rate_pct", spec),
                *_parameters(view, spec),
            ]
        )
    heads = (
        "network", "data", "shapes", "S", "error in %", "error, paper", "additional parameters",
        "additional parameters, paper",
    )  # fmt: skip
    kept, rows = without_empty(heads, rows)
    return Table(
        name="hinges",
        title="Test error and additional parameters against the number of hinges S",
        scale=view.scale,
        columns=tuple(kept),
        rows=tuple(tuple(row) for row in rows),
        notes=notes_of(
            view,
            "Independent: a shape for every neuron. Parameters are counted in the trained "
            "networks; the paper's counts for LeNet5 fit no reading of its network.",
            "The paper gives no deviations here and does not say how many runs there were.",
        ),
        groups=tuple(starts),
    )


def _place(spec: TrainSpec) -> int:
    """The MLP comes first, as in the paper."""
    return ("mlp", "lenet5").index(spec.model)


def _number(spec: TrainSpec) -> int:
    number: int = spec.unit_options.get("num_hinges", 7)
    return number


def _sharing(spec: TrainSpec) -> str:
    return "independent" if spec.unit_options.get("share") == "unit" else "shared"


def _published_hinges(table: str, metric: str, spec: TrainSpec) -> Cell:
    setting = f"S={_number(spec)};{_sharing(spec)}"
    found = published.value(
        table, metric, model=spec.model, data=spec.data, unit="splash", setting=setting
    )
    return printed(found, 2 if metric == "error_rate_pct" else 0)


def _parameters(view: View, spec: TrainSpec) -> list[Cell]:
    counted = view.group(spec, lambda row: row.get("slopes"))
    counts = sorted(set(counted.values.values()))
    ours = Cell(f"{counts[0]:,.0f}", counts[0]) if counts else Cell("missing", missing=True)
    theirs = _published_hinges("additional_params", "additional_params", spec)
    if theirs == EMPTY:
        theirs = _published_hinges("additional_params", "additional_params_lower_bound", spec)
        theirs = theirs if theirs == EMPTY else words(f"more than {theirs.text}")
    return [ours, theirs]


def initialisation(view: View) -> Table:
    return _losses(
        view,
        name="initialisation",
        title="Starting shapes of SPLASH, beside fixed ReLU and leaky ReLU",
        named=_start_name,
        notes=("The paper shows curves without numbers, and finds ReLU and leaky ReLU best.",),
    )


def ablation(view: View) -> Table:
    return _losses(
        view,
        name="ablation",
        title="ReLU, SPLASH, its final shapes fixed, SPLASH-positive and SPLASH-negative",
        named=lambda spec: _ABLATION.get(spec.unit, unit_name(label(spec))),
        notes=(
            "The paper shows curves without numbers: SPLASH lowest, then negative, then positive, "
            "with fixed SPLASH about as high as ReLU.",
        ),
    )


_ABLATION = {
    "relu": "ReLU",
    "splash": "SPLASH",
    "splash_fixed": "fixed SPLASH",
    "splash_positive": "SPLASH-positive",
    "splash_negative": "SPLASH-negative",
}


def _start_name(spec: TrainSpec) -> str:
    if spec.unit != "splash":
        return f"fixed {unit_name(label(spec))}"
    return f"SPLASH from {spec.unit_options.get('init', 'relu')}"


def _losses(
    view: View,
    *,
    name: str,
    title: str,
    named: Callable[[TrainSpec], str],
    notes: Sequence[str],
) -> Table:
    """A row for each unit: final training loss and test error."""
    specs = [spec for spec in view.specs() if isinstance(spec, TrainSpec)]
    losses = [view.group(spec, lambda row: row.get("train_loss")) for spec in specs]
    errors = [view.group(spec, error_of) for spec in specs]
    won = winners([losses, errors])
    first = specs[0]
    return Table(
        name=name,
        title=f"{title}: {network_name(first.model)} on {setting_name(first.data, first.augment)}",
        scale=view.scale,
        columns=("unit", "training loss, last epoch", "test error in %"),
        rows=tuple(
            zip(
                [words(named(spec)) for spec in specs],
                marked([measured(group, 4) for group in losses], won[0]),
                marked([measured(group) for group in errors], won[1]),
                strict=True,
            )
        ),
        notes=notes_of(view, *notes),
    )


def finetune(view: View) -> Table:
    """A row for each network: before, on with ReLU, on with SPLASH, and the two compared."""
    settings: dict[tuple[str, str, str], dict[str, Group]] = {}
    for spec in view.specs():
        assert isinstance(spec, TrainSpec)
        stage = "before" if spec.source is None else spec.unit
        groups = settings.setdefault((spec.model, spec.data, spec.augment), {})
        groups[stage] = view.group(spec, error_of)
    for groups in settings.values():  # part of a study may have one of them only
        for stage in ("before", "relu", "splash"):
            groups.setdefault(stage, Group({}, (), {}, 0))
    found = [
        compare(groups["splash"].values, groups["relu"].values) for groups in settings.values()
    ]
    adjusted = holm([None if one is None else one.welch_p for one in found])
    rows = [
        (
            words(network_name(model)),
            words(setting_name(data, augment)),
            *(measured(groups[stage]) for stage in ("before", "relu", "splash")),
            *comparison_cells(one, p),
        )
        for ((model, data, augment), groups), one, p in zip(
            settings.items(), found, adjusted, strict=True
        )
    ]
    return Table(
        name="finetune",
        title="A trained ReLU network, trained on with ReLU or with SPLASH units: test error in %",
        scale=view.scale,
        columns=(
            "network",
            "data",
            "before",
            "on with ReLU",
            "on with SPLASH",
            *COMPARISON_COLUMNS,
        ),
        rows=tuple(rows),
        notes=notes_of(view, "Both go on for the same epochs, at a tenth of the learning rate."),
    )
