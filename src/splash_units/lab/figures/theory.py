"""What the paper derives: the families of piecewise-linear functions, and the theorem."""

from typing import Any

import altair as alt
import numpy as np

from splash_units.lab.figures.style import PALETTE, Drawing, inline, styled
from splash_units.lab.store import Store
from splash_units.lab.theorem import EXAMPLES, largest_error, promised_error

HINGES = (3, 7, 15, 31, 63)


def families(store: Store) -> Drawing:
    """Five families with three hinges each, from the general one to SPLASH, with their counts."""
    panels = [_family_panel(f"{name}: {count}", lines) for name, count, lines in _family_lines()]
    return styled(
        alt.concat(*panels, columns=5),
        "From all piecewise-linear functions to SPLASH",
        ["S hinges; the number behind each family is what one function of it has to learn"],
    )


def _family_panel(title: str, lines: list[tuple[Any, Any]]) -> Drawing:
    """One function's graph, with the axes it may or may not go through."""
    rows = [
        {"x": float(x), "y": float(y), "piece": piece}
        for piece, (xs, ys) in enumerate(lines)
        for x, y in zip(xs, ys, strict=True)
    ]
    cross = [
        {"x": -3, "y": 0, "piece": "x"}, {"x": 3, "y": 0, "piece": "x"},
        {"x": 0, "y": -2, "piece": "y"}, {"x": 0, "y": 2.6, "piece": "y"},
    ]  # fmt: skip
    place: dict[str, Any] = {
        "x": alt.X("x:Q", axis=None, scale=alt.Scale(domain=[-3, 3])),
        "y": alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[-2, 2.6])),
        "detail": alt.Detail("piece:N"),
    }
    axes = alt.Chart(inline(cross)).mark_line(color="#bbbbbb", strokeWidth=1).encode(**place)
    graph = alt.Chart(inline(rows)).mark_line(color=PALETTE[1], strokeWidth=2.4).encode(**place)
    text = alt.TitleParams(title, fontSize=11, fontWeight="normal", anchor="start")
    return alt.layer(axes, graph, width=140, height=100, title=text)


def _family_lines() -> list[tuple[str, str, list[tuple[Any, Any]]]]:
    """One function of each family, as the pieces of its graph."""
    uneven, even = [-1.6, 0.5, 1.4], [-1.5, 0.0, 1.5]

    def joined(knots: list[float], values: list[float]) -> list[tuple[Any, Any]]:
        return [(np.array([-3, *knots, 3]), np.array(values))]

    broken = [
        (np.array([-3, -1.6]), np.array([-1.4, -0.2])),
        (np.array([-1.6, 0.5]), np.array([0.9, 0.3])),
        (np.array([0.5, 1.4]), np.array([-0.8, 0.6])),
        (np.array([1.4, 3]), np.array([1.5, 2.1])),
    ]
    at_second_hinge = -0.5 + 0.5 * (0.5 + 1.6) / 1.6  # on the line through (-1.6, -0.5) and 0
    return [
        ("general", "3S + 2", broken),
        ("continuous", "2S + 2", joined(uneven, [-1.3, 0.7, 0.2, 1.8, 1.2])),
        ("grounded", "2S + 1", joined(uneven, [0.9, -0.5, at_second_hinge, 1.5, 1.0])),
        ("symmetric hinges", "S + 1 + ⌊S/2⌋", joined(even, [1.0, -0.5, 0.0, 1.7, 1.2])),
        ("fixed hinges: SPLASH", "S + 1", joined([-1.0, 0.0, 1.0], [1.4, -0.3, 0.0, 1.2, 2.2])),
    ]


def approximation(store: Store) -> Drawing:
    """The largest error of the interpolating unit against S, and what the theorem promises."""
    names = [name for name in EXAMPLES if promised_error(name, HINGES[0]) is not None]
    rows = [
        {"label": name, "S": count, "error": largest_error(name, count),
         "bound": promised_error(name, count)}
        for name in names
        for count in HINGES
    ]  # fmt: skip
    base = alt.Chart(inline(rows)).encode(
        x=alt.X(
            "S:Q",
            scale=alt.Scale(type="log", domain=[2.7, 68]),
            axis=alt.Axis(values=list(HINGES), grid=False),
        ),
        color=alt.Color(
            "label:N", title=None, sort=names,
            scale=alt.Scale(domain=names, range=list(PALETTE[: len(names)])),
        ),
        tooltip=[
            alt.Tooltip("label:N", title="function"),
            alt.Tooltip("S:Q"),
            alt.Tooltip("error:Q", format=".2e", title="largest error"),
            alt.Tooltip("bound:Q", format=".2e", title="promised"),
        ],
    )  # fmt: skip
    error = alt.Y(
        "error:Q",
        scale=alt.Scale(type="log"),
        title="largest error on [-3, 3]",
        axis=alt.Axis(values=[10.0**power for power in range(-4, 2)], format="~g"),
    )
    drawn = base.mark_line(point=alt.OverlayMarkDef(size=28)).encode(y=error)
    promised = base.mark_line(strokeDash=[4, 3], strokeWidth=1.2, opacity=0.7).encode(
        y=alt.Y("bound:Q")
    )
    return styled(
        alt.layer(drawn, promised, width=420, height=260),
        "A unit with more hinges comes as close as one likes",
        ["solid: the unit that interpolates the function; dashed: the theorem's bound L·2M/(S+1)"],
    )
