"""How all figures look: colours the colour-blind can tell apart, and type readable in print."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import altair as alt

from splash_units.lab.names import unit_name

# Okabe and Ito's colours, which differ in lightness as well as in hue; yellow is left out, being
# invisible on white. The units that every study has keep theirs in all figures.
PALETTE = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#444444")
UNIT_COLOURS = {
    "relu": "#444444",
    "splash": "#D55E00",
    "prelu": "#0072B2",
    "apl": "#009E73",
    "swish": "#CC79A7",
    "leaky_relu": "#56B4E9",
    "tanh": "#E69F00",
}
# For the many units of a large study; what tells them apart are names and dashes.
SPARE = ("#7B5EA7", "#8C6D46", "#5C8A3A", "#9A9A9A")
# A second sign beside colour, for print in grey.
DASHES = ([1, 0], [6, 2], [2, 2], [8, 2, 2, 2], [4, 4], [1, 3], [10, 3])
SANS = "Inter, 'Helvetica Neue', Helvetica, Arial, 'DejaVu Sans', sans-serif"
INK = "#222222"
# A legend shows lines as lines, however faint the band around them is.
LINES: dict[str, Any] = {"symbolType": "stroke", "symbolOpacity": 1, "symbolSize": 220}

# Set at once: each `configure_...` would copy the chart and all charts in it.
CONFIG: dict[str, Any] = {
    "font": SANS,
    "background": "white",
    "axis": {
        "labelFontSize": 11,
        "titleFontSize": 11,
        "titleFontWeight": "normal",
        "labelColor": INK,
        "titleColor": INK,
        "gridColor": "#eeeeee",
        "domainColor": "#888888",
        "tickColor": "#888888",
    },
    "view": {"stroke": None},
    "title": {"color": INK},
    "legend": {
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "symbolStrokeWidth": 2,
        "labelLimit": 300,
    },
    "header": {
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 11,
        "titleFontSize": 11,
        "labelFontWeight": "bold",
    },
}

# Altair's methods return unions that no caller can narrow: a drawing is what they give.
Drawing = Any


def inline(rows: Iterable[Mapping[str, Any]]) -> Any:
    """Rows as data that a chart carries within itself."""
    # Altair copies a chart many times over while it is put together, and lists with it, row by row.
    return alt.Data(values=tuple(rows))  # type: ignore[no-untyped-call]


def colour(labels: Sequence[str], **placed: Any) -> alt.Color:
    """The labels' colours: known units have their own, others take what is left, in order."""
    return alt.Color(
        "label:N",
        title=None,
        sort=list(labels),
        scale=alt.Scale(domain=list(labels), range=colours(labels)),
        legend=alt.Legend(**LINES, labelExpr=named(labels), **placed),
    )


def named(labels: Iterable[str]) -> str:
    """An expression for the names that the paper prints for units, in a legend or on an axis."""
    return renamed({label: unit_name(label) for label in labels})


def renamed(names: Mapping[str, str]) -> str:
    """An expression that gives a label its name, if it has one there."""
    # In brackets, since headers put a longer expression in the label's place.
    return f"{json.dumps(dict(names))}[datum.label] || (datum.label)"


def colours(labels: Sequence[str]) -> list[str]:
    # No other unit looks like SPLASH, whether it is there or not.
    taken = {UNIT_COLOURS[label] for label in ("splash", *labels) if label in UNIT_COLOURS}
    free = [shade for shade in (*PALETTE, *SPARE) if shade not in taken]
    others = iter(range(len(labels)))
    return [UNIT_COLOURS.get(label) or free[next(others) % len(free)] for label in labels]


def dash(labels: Sequence[str], **options: Any) -> alt.StrokeDash:
    """The labels' dashes, in the order of their colours."""
    dashes = [list(DASHES[i % len(DASHES)]) for i in range(len(labels))]
    return alt.StrokeDash(
        "label:N",
        title=None,
        sort=list(labels),
        scale=alt.Scale(domain=list(labels), range=dashes),
        **options,
    )


def styled(chart: Drawing, title: str, subtitle: Sequence[str] = ()) -> Drawing:
    """A chart with its title and the house's type, lines and spacing."""
    text = alt.TitleParams(
        title,
        subtitle=list(subtitle),
        anchor="start",
        fontSize=14,
        subtitleFontSize=11,
        subtitleColor="#666666",
        offset=12,
    )
    return chart.properties(title=text, config=CONFIG)
