"""What hinges cost and what they bring: time against S, error against S."""

from collections.abc import Iterator
from typing import Any

import altair as alt
import polars as pl

from splash_units.lab.benchmarks.published import published_ratio
from splash_units.lab.figures.choosing import Missing, choose, means
from splash_units.lab.figures.style import LINES, PALETTE, Drawing, inline, renamed, styled
from splash_units.lab.findings import findings
from splash_units.lab.frames import read
from splash_units.lab.names import NETWORKS
from splash_units.lab.spec import CostSpec
from splash_units.lab.store import Store

DEFAULT_HINGES = 7
PUBLISHED_HINGES = (3, 5, 7, 9, 11)
OURS, PAPERS = "here", "in the paper"
SHARINGS = {"shared": PALETTE[1], "independent": PALETTE[0]}


def cost(store: Store) -> Drawing:
    """Time of a training step with SPLASH over one with ReLU, against S, beside the paper's."""
    rows = list(_measured(store))
    if not rows:
        raise Missing("no cost has been measured", "splash run cost")
    networks = sorted({row["network"] for row in rows})
    rows += [
        {"network": network, "S": count, "ratio": ratio, "label": PAPERS}
        for network in networks
        for count in PUBLISHED_HINGES
        if (ratio := published_ratio(network, count)) is not None
    ]
    base = alt.Chart().encode(
        x=alt.X("S:Q", title="hinges S", axis=alt.Axis(tickMinStep=2, grid=False)),
        color=alt.Color(
            "label:N",
            title=None,
            scale=alt.Scale(domain=[OURS, PAPERS], range=[PALETTE[1], "#777777"]),
        ),
        tooltip=[alt.Tooltip("label:N"), alt.Tooltip("S:Q"), alt.Tooltip("ratio:Q", format=".2f")],
    )
    times_relu = alt.Y("ratio:Q", title="step time ÷ ReLU's", scale=alt.Scale(domainMin=0.0))
    chart = alt.layer(
        alt.Chart().mark_rule(strokeDash=[3, 3], color="#999999").encode(y=alt.datum(1.0)),
        base.mark_errorbar().encode(y=alt.Y("low:Q", title=""), y2=alt.Y2("high:Q")),
        base.mark_line(point=alt.OverlayMarkDef(size=36), strokeWidth=2).encode(y=times_relu),
        data=inline(rows),
        width=260,
        height=220,
    )
    header = alt.Header(labelExpr=renamed(NETWORKS))
    return styled(
        chart.facet(column=alt.Column("network:N", title=None, header=header)),
        "What one more hinge costs in a training step",
        ["median over interleaved rounds, bars: middle half; 1 is the same network with ReLU"],
    )


def _measured(store: Store) -> Iterator[dict[str, Any]]:
    for found in findings(store):
        spec, result = found.spec(), found.result()
        if not isinstance(spec, CostSpec) or result is None:
            continue
        quantiles = result.get("quantiles") or [[None, None]] * len(spec.units)
        for unit, ratio, (low, high) in zip(spec.units, result["ratio"], quantiles, strict=True):
            if unit.unit == "splash":
                count = unit.options.get("num_hinges", DEFAULT_HINGES)
                yield {"network": spec.model, "S": count, "ratio": ratio, "low": low,
                       "high": high, "label": OURS}  # fmt: skip


def hinges(store: Store) -> Drawing:
    """Test error against S, with slopes shared by the layer and one set a neuron."""
    frames = read(store)
    counted = frames.runs.with_columns(
        pl.col("options")
        .str.extract(r'"num_hinges": (\d+)')
        .cast(pl.Int64)
        .fill_null(7)
        .alias("S"),
        pl.when(pl.col("options").str.contains('"share": "unit"'))
        .then(pl.lit("independent"))
        .otherwise(pl.lit("shared"))
        .alias("sharing"),
    )
    wanted = (pl.col("unit") == "splash") & ~pl.col("options").str.contains("init|source|channel")
    chosen = choose(frames, wanted, prefer={"model": "lenet5"}, at_least=3, study="hinges")
    rows = counted.join(chosen.runs.select("id"), on="id").with_columns(
        (100 * pl.col("test_error")).alias("error")
    )
    data = means(rows.iter_rows(named=True), ("S", "sharing"), "error")
    for row in data:  # side by side, so that both intervals can be seen
        row["at"] = row["S"] + (0.12 if row["sharing"] == "independent" else -0.12)
    there = {row["sharing"] for row in data}
    sharings = [name for name in SHARINGS if name in there]
    base = alt.Chart(inline(data)).encode(
        x=alt.X(
            "at:Q",
            title="hinges S",
            axis=alt.Axis(grid=False),
            scale=alt.Scale(zero=False, padding=15),
        ),
        color=alt.Color(
            "sharing:N",
            title=None,
            legend=alt.Legend(**LINES),
            scale=alt.Scale(domain=sharings, range=[SHARINGS[name] for name in sharings]),
        ),
        tooltip=[
            alt.Tooltip("sharing:N"),
            alt.Tooltip("S:Q"),
            alt.Tooltip("mean:Q", format=".2f", title="error, %"),
            alt.Tooltip("n:Q"),
        ],
    )
    error = alt.Y("mean:Q", title="test error, %", scale=alt.Scale(zero=False))
    bars = base.mark_rule(strokeWidth=1.5).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    line = base.mark_line(point=alt.OverlayMarkDef(size=40), strokeWidth=2).encode(y=error)
    return styled(
        alt.layer(bars.transform_filter("datum.low != null"), line, width=420, height=250),
        "Error against the number of hinges",
        [f"{chosen.words}; mean and 95 % interval over seeds"],
    )
