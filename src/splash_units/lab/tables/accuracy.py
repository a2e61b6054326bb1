"""The main table and its tests: ten units in four networks, and the paper's p-values."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from splash_units.lab.frames import label
from splash_units.lab.names import data_name, network_name, unit_name
from splash_units.lab.spec import TrainSpec
from splash_units.lab.statistics import LEVEL, compare, holm, summarise
from splash_units.lab.studies import published
from splash_units.lab.tables.cells import (
    COMPARISON_COLUMNS,
    comparison_cells,
    marked,
    measured,
    notes_of,
    p_value,
    percent,
    printed,
    setting_name,
    winners,
)
from splash_units.lab.tables.results import Group, Numbers, View
from splash_units.lab.tables.table import EMPTY, Cell, Row, Table, words

SPLASH = "splash"


class Column(NamedTuple):
    """One network in one setting: a group of values for every unit."""

    model: str
    data: str
    augment: str
    groups: Mapping[str, Group]

    @property
    def setting(self) -> tuple[str, str]:
        return self.data, self.augment


def error_of(numbers: Numbers) -> float | None:
    return percent(numbers, "test_error")


def columns_of(view: View) -> list[Column]:
    """The trainings of a study by network and setting, units in the study's order."""
    found: dict[tuple[str, str, str], dict[str, Group]] = {}
    for spec in view.specs():
        if isinstance(spec, TrainSpec):
            key = (spec.model, spec.data, spec.augment)
            found.setdefault(key, {})[label(spec)] = view.group(spec, error_of)
    return [Column(*key, groups) for key, groups in found.items()]


def best_other(column: Column) -> str | None:
    """The unit with the lowest mean error, SPLASH aside; the paper's is often another."""
    means = {
        unit: summary.mean
        for unit, group in column.groups.items()
        if unit != SPLASH and (summary := summarise(list(group.values.values()))) is not None
    }
    return min(means, key=lambda unit: means[unit]) if means else None


def accuracy(view: View) -> Table:
    columns = columns_of(view)
    settings = list(dict.fromkeys(column.setting for column in columns))
    won = winners([list(column.groups.values()) for column in columns])
    heads = ["network", "unit"]
    for setting in settings:
        heads += [setting_name(*setting), f"{setting_name(*setting)}, paper"]
    rows: list[list[Cell]] = []
    starts = []
    for model in dict.fromkeys(column.model for column in columns):
        starts.append(len(rows))
        rows += _rows_of(
            model,
            {c.setting: (c, w) for c, w in zip(columns, won, strict=True) if c.model == model},
            settings,
        )
    heads, rows = without_empty(heads, rows)
    return Table(
        name="accuracy",
        title="Test error in %, mean ± standard deviation (seeds)",
        scale=view.scale,
        columns=tuple(heads),
        rows=tuple(tuple(row) for row in rows),
        notes=notes_of(
            view,
            "The paper prints ReLU, SPLASH and one other unit a network, over five runs.",
            "D-A: with augmentation, flips and shifts of up to 5 pixels, for all networks; "
            "the paper's All-CNN is said to have a heavier one.",
            "One seed has no deviation and no test.",
        ),
        groups=tuple(starts),
    )


def _rows_of(
    model: str,
    by_setting: Mapping[tuple[str, str], tuple[Column, int | None]],
    settings: Sequence[tuple[str, str]],
) -> list[list[Cell]]:
    units = list(dict.fromkeys(unit for column, _ in by_setting.values() for unit in column.groups))
    rows = [[words(network_name(model)), words(unit_name(unit))] for unit in units]
    last = [words(network_name(model)), words("best other, by mean")]
    for setting in settings:
        if setting not in by_setting:
            for row in (*rows, last):
                row += [EMPTY, EMPTY]
            continue
        column, winner = by_setting[setting]
        cells = marked([measured(group) for group in column.groups.values()], winner)
        ours = dict(zip(column.groups, cells, strict=True))
        for unit, row in zip(units, rows, strict=True):
            row += [ours.get(unit, EMPTY), _published_error(column, unit)]
        other = best_other(column)
        last += [words(f"{unit_name(other)}: {ours[other].text}" if other else "missing"), EMPTY]
    return [*rows, last]


def _published_error(column: Column, unit: str) -> Cell:
    found = published.value(
        "accuracy",
        "error_rate_pct",
        model=column.model,
        data=column.data,
        augment=column.augment,
        unit=unit,
    )
    return printed(found)


def significance(view: View) -> Table:
    """SPLASH against the best of the others, column by column."""
    columns = columns_of(view)
    others = [best_other(column) for column in columns]
    empty = Group({}, (), {}, 0)
    found = [
        compare(column.groups.get(SPLASH, empty).values, column.groups[other].values)
        if other
        else None
        for column, other in zip(columns, others, strict=True)
    ]
    adjusted = holm([None if one is None else one.welch_p for one in found])
    papers = {(p.model, p.data, p.augment): p for p in published.p_values()}
    rows = []
    for column, other, one, holm_p in zip(columns, others, found, adjusted, strict=True):
        paper = papers.get((column.model, column.data, column.augment))
        rows.append(
            (
                words(network_name(column.model)),
                words(setting_name(*column.setting)),
                measured(column.groups.get(SPLASH, empty)),
                words(f"{unit_name(other)}: {measured(column.groups[other]).text}")
                if other
                else Cell("missing", missing=True),
                *comparison_cells(one, holm_p),
                words(f"{unit_name(paper.against)}: {paper.printed:.3f}") if paper else EMPTY,
            )
        )
    return Table(
        name="significance",
        title="SPLASH against the best other unit: test error in %",
        scale=view.scale,
        columns=(
            "network",
            "data",
            "SPLASH",
            "best other",
            *COMPARISON_COLUMNS,
            "paper's p against",
        ),
        rows=tuple(rows),
        notes=notes_of(
            view,
            "The best other unit is that with the lowest mean; it was chosen by looking, so its "
            "p-values flatter it.",
            "Holm's correction is over this table. Paired: by seed. Seeds needed: in each group, "
            "for a power of 0.8, if the observed effect were the true one.",
            "The paper's p-values do not follow from its printed numbers: splash table p_values.",
        ),
    )


def p_values() -> Table:
    """The paper's 15 p-values beside those its own means and deviations give."""
    found = published.p_values()
    adjusted = holm([one.computed.welch_p for one in found])
    rows: list[Row] = []
    for one, holm_p in zip(found, adjusted, strict=True):
        used = unit_name(one.computed_with)
        rows.append(
            (
                words(network_name(one.model)),
                words(f"{data_name(one.data)}{' D-A' if one.augment != 'none' else ''}"),
                words(unit_name(one.against)),
                Cell(f"{one.printed:.3f}", one.printed),
                words(used if one.comparable else f"{used} (the other's error is not printed)"),
                p_value(one.computed.welch_p),
                p_value(one.computed.student_p),
                p_value(holm_p),
                Cell(f"{one.computed.effect_size or 0:+.2f}", one.computed.effect_size),
                Cell(f"{one.computed.seeds_needed:,}", one.computed.seeds_needed),
            )
        )
    printed_below = sum(one.printed < LEVEL for one in found)
    computed_below = sum((one.computed.welch_p or 1) < LEVEL for one in found)
    exact = sum(one.reproduced for one in found)
    near = [one for one in found if abs((one.computed.welch_p or 1) - one.printed) < 0.005]
    names = ", ".join(f"{network_name(one.model)} on {data_name(one.data)}" for one in near)
    return Table(
        name="p_values",
        title="The paper's p-values, and those of its printed means and deviations with five runs",
        scale=None,
        columns=(
            "network", "data", "against", "paper's p", "computed with", "Welch p", "Student p",
            "Holm", "Hedges g", "seeds needed",
        ),
        rows=tuple(rows),
        notes=(
            f"Finding: {exact} of {len(found)} are reproduced to the printed digits; "
            f"{len(near)} within 0.005 ({names}).",
            f"{printed_below} of {len(found)} printed p-values are below 0.05; of the computed "
            f"ones {computed_below}. They miss in both directions, so one-sided tests do not "
            "explain them; tests paired by seed might, and need the raw runs.",
            f"{sum(one.comparable for one in found)} rows are strictly comparable.",
        ),
    )  # fmt: skip


def without_empty(
    heads: Sequence[str], rows: Sequence[Sequence[Cell]]
) -> tuple[list[str], list[list[Cell]]]:
    """The columns in which something stands."""
    kept = [n for n in range(len(heads)) if any(row[n] != EMPTY for row in rows)]
    return [heads[n] for n in kept], [[row[n] for n in kept] for row in rows]
