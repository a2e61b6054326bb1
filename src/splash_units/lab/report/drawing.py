"""The small graphics and cells that a table of evidence is made of, as safe HTML."""

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

from splash_units.lab.report.verdicts import Evidence, Verdict

ROOM = 1.08  # a little beyond the longest bar


@dataclass(frozen=True)
class Axis:
    """The same scale for all rows of a verdict: from −reach to reach, zero in the middle."""

    reach: float
    unit: str


def axes_of(found: Sequence[Verdict]) -> dict[str, Axis]:
    """An axis for each verdict whose evidence has differences from zero."""
    axes = {}
    for verdict in found:
        rows = [row for row in verdict.evidence if row.difference is not None]
        if rows and verdict.claim.question != "cost":
            ends = [abs(end) for row in rows for end in row.interval or (row.difference or 0.0,)]
            unit = f" in {rows[0].unit}" if rows[0].unit else ""
            axes[verdict.claim.name] = Axis(ROOM * max(ends) or 1.0, unit)
    return axes


def forest(row: Evidence, axis: Axis) -> Markup:
    """A row of a forest plot: the difference, its interval, and where zero is."""
    if row.difference is None:
        return Markup("")

    def place(value: float) -> str:
        return f"{50 + 50 * value / axis.reach:.2f}%"

    bar = Markup("")
    if row.interval is not None:
        bar = Markup('<line class="bar" x1="{}" x2="{}" y1="10" y2="10"/>').format(
            *map(place, row.interval)
        )
    return Markup(
        '<svg class="interval" height="20" aria-hidden="true">'
        '<line class="zero" x1="50%" x2="50%" y1="0" y2="20"/>{bar}'
        '<circle cx="{at}" cy="10" r="4"/></svg>'
    ).format(bar=bar, at=place(row.difference))


def difference(row: Evidence) -> str:
    """The difference and its interval, in words."""
    if row.difference is None:
        return ""
    words = _signed(row.difference)
    if row.interval is not None:
        words += f" ({_signed(row.interval[0])} to {_signed(row.interval[1])})"
    return words


def _signed(value: float) -> str:
    return f"{value:+.3g}".replace("-", "−") if value else "0"


def p_value(p: float | None) -> str:
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def number_cell(value: float | None, text: object) -> Markup:
    """A cell of a sortable table; what is missing sorts last."""
    if value is None:
        return Markup('<td class="number absent">–</td>')
    # `Markup.format` takes long for as many cells as a table of all runs has.
    return Markup(f'<td class="number" data-value="{escape(value)}">{escape(text)}</td>')
