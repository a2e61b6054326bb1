"""Tables for any study, such as one from a file: results, units compared, attacks."""

from splash_units.lab.frames import label
from splash_units.lab.names import network_name, unit_name
from splash_units.lab.spec import AttackSpec, TrainSpec
from splash_units.lab.statistics import compare, holm, wilson
from splash_units.lab.tables.accuracy import columns_of, error_of
from splash_units.lab.tables.attacked import fooled, warnings_of
from splash_units.lab.tables.cells import (
    COMPARISON_COLUMNS,
    comparison_cells,
    marked,
    measured,
    notes_of,
    setting_name,
    winners,
)
from splash_units.lab.tables.results import Group, Numbers, View
from splash_units.lab.tables.table import EMPTY, Cell, Row, Table, words
from splash_units.lab.tables.verdict import robust


def results(view: View) -> Table:
    """A row for each unit in each setting: error, loss, parameters, seconds."""
    blocks: dict[tuple[str, str, str], list[TrainSpec]] = {}
    for spec in view.specs():
        if isinstance(spec, TrainSpec):
            blocks.setdefault((spec.model, spec.data, spec.augment), []).append(spec)
    errors = [[view.group(spec, error_of) for spec in specs] for specs in blocks.values()]
    rows: list[Row] = []
    starts = []
    for (model, data, augment), specs, groups, winner in zip(
        blocks, blocks.values(), errors, winners(errors), strict=True
    ):
        starts.append(len(rows))
        cells = marked([measured(group) for group in groups], winner)
        for spec, cell in zip(specs, cells, strict=True):
            rows.append(
                (
                    words(network_name(model)),
                    words(setting_name(data, augment)),
                    words(unit_name(label(spec))),
                    cell,
                    measured(view.group(spec, lambda row: row.get("train_loss")), 4),
                    _count(view.group(spec, lambda row: row.get("parameters"))),
                    _count(view.group(spec, lambda row: row.get("slopes"))),
                    measured(view.group(spec, _seconds_an_epoch), 2),
                )
            )
    return Table(
        name="results",
        title=f"{view.study.title}: results",
        scale=view.scale,
        columns=(
            "network", "data", "unit", "test error in %", "training loss", "parameters",
            "of them slopes", "seconds an epoch",
        ),
        rows=tuple(rows),
        notes=notes_of(view, "Seconds are those of the machine each run was on."),
        groups=tuple(starts),
    )  # fmt: skip


def _seconds_an_epoch(numbers: Numbers) -> float | None:
    epochs = numbers.get("epochs_done")
    return numbers["seconds"] / epochs if epochs else None


def _count(group: Group) -> Cell:
    counts = sorted(set(group.values.values()))
    if not counts:
        return Cell("missing", missing=True)
    return Cell(" or ".join(f"{count:,.0f}" for count in counts), counts[0])


def comparison(view: View) -> Table:
    """Every unit against the first that the study names, setting by setting."""
    columns = columns_of(view)
    pairs = [
        (column, first, other)
        for column in columns
        for first, *others in [list(column.groups)]
        for other in others
    ]
    found = [compare(c.groups[other].values, c.groups[first].values) for c, first, other in pairs]
    adjusted = holm([None if one is None else one.welch_p for one in found])
    return Table(
        name="comparison",
        title=f"{view.study.title}: units compared, test error in %",
        scale=view.scale,
        columns=("network", "data", "unit", "against", *COMPARISON_COLUMNS),
        rows=tuple(
            (
                words(network_name(column.model)),
                words(setting_name(*column.setting)),
                words(f"{unit_name(other)}: {measured(column.groups[other]).text}"),
                words(f"{unit_name(first)}: {measured(column.groups[first]).text}"),
                *comparison_cells(one, p),
            )
            for (column, first, other), one, p in zip(pairs, found, adjusted, strict=True)
        ),
        notes=notes_of(
            view,
            "Holm's correction is over this table. Seeds needed: in each group, for a power of "
            "0.8, if the observed effect were the true one.",
        ),
    )


def attacks(view: View) -> Table:
    """A row for each attack on each unit."""
    rows: list[Row] = []
    for spec in view.specs():
        if not isinstance(spec, AttackSpec):
            continue
        train = spec.train
        options = " ".join(f"{key}={value}" for key, value in sorted(spec.options.items()))
        rows.append(
            (
                words(network_name(train.model)),
                words(setting_name(train.data, train.augment)),
                words(unit_name(label(train))),
                words(f"{spec.attack} {options}".strip()),
                measured(view.group(spec, fooled), 1),
                _interval(view, spec),
                measured(view.group(spec, robust), 1),
                measured(view.group(spec, lambda numbers: numbers.get("median_l2")), 3),
            )
        )
    return Table(
        name="attacks",
        title=f"{view.study.title}: attacks",
        scale=view.scale,
        columns=(
            "network", "data", "unit", "attack", "successes per 1000 attempts",
            "95 % interval, all seeds", "accuracy left in %", "median L2",
        ),
        rows=tuple(rows),
        notes=notes_of(view, *warnings_of(view)),
    )  # fmt: skip


def _interval(view: View, spec: AttackSpec) -> Cell:
    """Wilson's interval over the attempts of all seeds together."""
    found = view.found(spec)
    attempts = sum(one.result.get("attempts", 0) for one in found)
    if not attempts:
        return EMPTY
    low, high = wilson(sum(one.result["fooled"] for one in found), attempts)
    return words(f"{1000 * low:.0f} to {1000 * high:.0f}")
