"""How numbers are written into cells, and which of a column is best."""

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace

from splash_units.lab.names import data_name
from splash_units.lab.statistics import (
    LEVEL,
    TOO_FEW,
    Comparison,
    Summary,
    compare,
    holm,
    summarise,
)
from splash_units.lab.tables.results import Group, View
from splash_units.lab.tables.table import EMPTY, Cell

MISSING = "missing"


def measured(group: Group, digits: int = 2) -> Cell:
    """Mean ± deviation (n), and what is lacking, each by its reason."""
    summary = summarise(list(group.values.values()))
    lacking = {why: count for why, count in group.lacking.items() if count}
    if summary is None:
        reasons = {why: count for why, count in lacking.items() if why != MISSING}
        text = ", ".join(f"{count} {why}" for why, count in reasons.items()) or MISSING
        return Cell(text, missing=True, runs=group.runs)
    missing = lacking.pop(MISSING, 0)
    count = f"{summary.n} of {summary.n + missing}" if missing else str(summary.n)
    notes = ", ".join([count, *(f"{number} {why}" for why, number in lacking.items())])
    return Cell(
        f"{number_and_deviation(summary, digits)} ({notes})",
        value=summary.mean,
        missing=bool(missing or lacking),
        runs=group.runs,
    )


def number_and_deviation(summary: Summary, digits: int) -> str:
    deviation = "" if summary.std is None else f" ± {summary.std:.{digits}f}"
    return f"{summary.mean:.{digits}f}{deviation}"


def printed(summary: Summary | None, digits: int = 2) -> Cell:
    """A number of the paper's; nothing where it has none."""
    if summary is None:
        return EMPTY
    return Cell(number_and_deviation(summary, digits), value=summary.mean)


def p_value(p: float | None, why_not: str = "") -> Cell:
    if p is None:
        return Cell(why_not or "no test", missing=why_not != "")
    return Cell("< 0.001" if p < 0.001 else f"{p:.3f}", value=p)


def comparison_cells(found: Comparison | None, adjusted: float | None) -> list[Cell]:
    """A comparison as cells, in the order of COMPARISON_COLUMNS, or why there is none."""
    if found is None:
        return [
            Cell("no test: missing runs", missing=True),
            *[EMPTY] * (len(COMPARISON_COLUMNS) - 1),
        ]
    difference = Cell(f"{found.difference:+.2f}", value=found.difference)
    if found.welch_p is None:
        why = Cell(found.why_not, missing=found.why_not == TOO_FEW)
        return [difference, why, *[EMPTY] * (len(COMPARISON_COLUMNS) - 2)]
    needed = found.seeds_needed
    return [
        difference,
        p_value(found.welch_p),
        replace(p_value(adjusted), best=adjusted is not None and adjusted < LEVEL),
        p_value(found.student_p),
        p_value(found.paired_p, "no pairs"),
        Cell("" if found.effect_size is None else f"{found.effect_size:+.2f}", found.effect_size),
        Cell("more than 100,000" if needed is None else f"{needed:,}", needed),
    ]


COMPARISON_COLUMNS = (
    "difference", "Welch p", "Holm", "Student p", "paired p", "Hedges g", "seeds needed",
)  # fmt: skip


def winners(columns: Sequence[Sequence[Group]], *, lower: bool = True) -> list[int | None]:
    """Which group of each column is best, where that can be said.

    The one with the best mean is compared with every other that has values; the largest of those
    Welch p-values is the column's, and must be below 0.05 after Holm's correction over the columns.
    """
    leaders = [_leader(column, lower=lower) for column in columns]
    adjusted = holm([None if leader is None else leader[1] for leader in leaders])
    return [
        leader[0] if leader is not None and p is not None and p < LEVEL else None
        for leader, p in zip(leaders, adjusted, strict=True)
    ]


def _leader(column: Sequence[Group], *, lower: bool) -> tuple[int, float] | None:
    """The group with the best mean, and the largest p-value against any other."""
    means = {
        place: summary.mean
        for place, group in enumerate(column)
        if (summary := summarise(list(group.values.values()))) is not None
    }
    if len(means) < 2:
        return None
    place = min(means, key=lambda p: means[p] if lower else -means[p])
    found = [
        compare(column[place].values, column[other].values) for other in means if other != place
    ]
    values = [one.welch_p for one in found if one is not None and one.welch_p is not None]
    return (place, max(values)) if len(values) == len(found) else None


def marked(cells: Sequence[Cell], winner: int | None) -> list[Cell]:
    """A column's cells with the best one marked."""
    return [replace(cell, best=place == winner) for place, cell in enumerate(cells)]


def setting_name(data: str, augment: str) -> str:
    return data_name(data) + {"none": "", "moderate": " D-A"}.get(augment, f" {augment} D-A")


def percent(numbers: Mapping[str, float | None], key: str) -> float | None:
    value = numbers.get(key)
    return None if value is None else 100 * value


def notes_of(view: View, *extra: str) -> tuple[str, ...]:
    """What a table says below: what stands in for what, then its own, then how to get the rest."""
    lacking = any(
        len(view.results.runs.get(name, ())) + len(view.results.found.get(name, ())) < len(specs)
        for name, specs in view.planned.items()
    )
    part = f" --only {shlex.quote(view.only)}" if view.only else ""
    data = f" --data {view.data}" if view.data else ""
    command = f"splash run {view.study.called} --scale {view.scale}{part}{data}"
    more = [f"Missing runs: {command}"] if lacking else []
    return (*view.notes, *extra, *more)
