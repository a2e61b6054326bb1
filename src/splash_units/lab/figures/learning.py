"""What happens during training: losses of variants and of starts, and shapes as they change."""

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
import polars as pl

from splash_units.lab.evolution import Evolution, evolutions, short_name
from splash_units.lab.figures.choosing import Chosen, choose, curves, runs_named
from splash_units.lab.figures.style import PALETTE, Drawing, colour, dash, inline, styled
from splash_units.lab.frames import Frames, read
from splash_units.lab.names import data_name, network_name
from splash_units.lab.store import Run, Store

VARIANTS = ("relu", "splash", "splash_fixed", "splash_positive", "splash_negative")
# The paper shows six layers and does not say which.
LAYERS_SHOWN = {"resnet20": (1, 4, 8, 12, 16, 19)}
STARTS_SHOWN_AT = np.linspace(-3.0, 3.0, 25)
FEW_EPOCHS = 10
PARTS_SHOWN = (0.0, 0.005, 0.025, 0.1, 0.4, 1.0)  # of the epochs: 0, 1, 5, 20, 80, 200 of 200


def ablation(store: Store) -> Drawing:
    """Training loss of ReLU, SPLASH, its final shapes fixed, SPLASH-positive and -negative."""
    frames = read(store)
    wanted = pl.col("unit").is_in(VARIANTS) & ~pl.col("options").str.contains(
        "num_hinges|init|share|grad_scale|slope_lr"
    )
    chosen = choose(
        frames,
        wanted,
        prefer={"model": "resnet20", "data": "cifar-10"},
        at_least=3,
        study="ablation",
    )
    return styled(
        _loss_chart(frames, chosen, chosen.labels(VARIANTS)).properties(width=460, height=270),
        "Training loss of SPLASH and of what is left when its freedom is taken",
        [chosen.words],
    )


def initialisation(store: Store) -> Drawing:
    """Training loss from different starting shapes, and the shapes beside."""
    frames = read(store)
    chosen = _starts(frames, with_fixed=False)
    labels = chosen.labels(("splash",))
    left = _loss_chart(frames, chosen, labels).properties(width=380, height=260)
    return styled(
        alt.hconcat(left, _starting_shapes(store, chosen, labels)),
        "Where a SPLASH unit starts, and how training goes from there",
        [chosen.words],
    )


def initialisation_and_fixed(store: Store) -> Drawing:
    """The same losses, with ReLU and leaky ReLU that stay as they are."""
    frames = read(store)
    chosen = _starts(frames, with_fixed=True)
    labels = chosen.labels(("relu", "leaky_relu", "splash"))
    return styled(
        _loss_chart(frames, chosen, labels).properties(width=460, height=270),
        "Starting shapes that learn, and two that don't",
        [chosen.words],
    )


def _starts(frames: Frames, *, with_fixed: bool) -> Chosen:
    plain = ~pl.col("options").str.contains("num_hinges|share|grad_scale|slope_lr|source")
    learning = (pl.col("unit") == "splash") & plain
    fixed = pl.col("unit").is_in(["relu", "leaky_relu"])
    return choose(
        frames,
        learning | fixed if with_fixed else learning,
        prefer={"model": "lenet5", "data": "cifar-10"},
        at_least=3,
        study="initialisation",
    )


def _starting_shapes(store: Store, chosen: Chosen, labels: Sequence[str]) -> Drawing:
    rows = []
    first = chosen.runs.unique("label", keep="first", maintain_order=True)
    for name, run_id in first.select("label", "id").iter_rows():
        shown = evolutions(Run(store.root, run_id).shapes(), [0.0], STARTS_SHOWN_AT)[:1]
        for unit in shown:
            rows += [
                {"label": name, "x": float(x), "y": float(y)}
                for x, y in zip(unit.x, unit.curves[0], strict=True)
            ]
    return (
        alt.Chart(inline(rows))
        .mark_line(strokeWidth=2)
        .encode(
            x=alt.X("x:Q", scale=alt.Scale(domain=[-3, 3])),
            y=alt.Y("y:Q", title="h(x) at the start"),
            color=colour(labels),
            strokeDash=dash(labels),
        )
        .properties(width=200, height=260)
    )


def _loss_chart(frames: Frames, chosen: Chosen, labels: Sequence[str]) -> Any:
    rows = curves(frames, chosen, "train_loss")
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("epoch:Q", axis=_epochs_axis(rows)),
        color=colour(labels, orient="bottom", columns=3),
        tooltip=[
            alt.Tooltip("label:N", title="unit"),
            alt.Tooltip("epoch:Q"),
            alt.Tooltip("mean:Q", format=".4f", title="training loss"),
            alt.Tooltip("n:Q", title="seeds"),
        ],
    )
    loss = alt.Y("mean:Q", title="training loss", scale=alt.Scale(type="log", nice=False))
    band = base.mark_area(opacity=0.12).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    line = base.mark_line(strokeWidth=2).encode(y=loss, strokeDash=dash(labels))
    several = any(row["low"] is not None and row["low"] > 0 for row in rows)
    return alt.layer(band.transform_filter("datum.low > 0"), line) if several else line


def _epochs_axis(rows: Sequence[Mapping[str, Any]]) -> alt.Axis:
    """Whole epochs only, of which a chart would make halves where there are few."""
    last = max((row["epoch"] for row in rows), default=1)
    few: dict[str, Any] = {"values": list(range(1, last + 1))} if last <= FEW_EPOCHS else {}
    return alt.Axis(tickMinStep=1, format="d", grid=False, **few)


def evolution(store: Store, model: str) -> Drawing:
    """The shapes of a network's units during training, the inputs' histogram behind the last."""
    run = _evolving_run(store, model)
    spec = run.spec()
    epochs = float(run.shapes()["time"][-1])
    found = evolutions(run.shapes(), [part * epochs for part in PARTS_SHOWN])
    picked = [found[i - 1] for i in LAYERS_SHOWN.get(model, ()) if i <= len(found)] or found
    panels = [_panel(unit, run.inputs(), found.index(unit) + 1) for unit in picked]
    return styled(
        alt.concat(*panels, columns=3).resolve_scale(color="shared"),
        f"Learned shapes of {network_name(model)} during training",
        [
            f"{network_name(spec.model)} on {data_name(spec.data)}, seed {spec.seed}, "
            f"{epochs:g} epochs, scale {spec.scale}; grey: where the inputs fall at the end"
        ],
    )


def _evolving_run(store: Store, model: str) -> Run:
    frames = read(store)
    chosen = choose(
        frames,
        (pl.col("unit") == "splash") & (pl.col("model") == model) & (pl.col("slopes") > 0),
        prefer={"data": "mnist" if model == "mlp" else "cifar-10"},
        at_least=1,
        study="evolution",
    )
    plain = chosen.runs.filter(pl.col("label") == "splash")
    rows = plain if len(plain) else chosen.runs
    return runs_named(store, Chosen(rows, chosen.setting))[0]


def _panel(unit: Evolution, inputs: dict[str, Any], number: int) -> Drawing:
    times = [f"{time:.3g}" for time in unit.times]
    rows = [
        {"time": time, "order": order, "x": float(x), "y": float(y)}
        for order, (time, curve) in enumerate(zip(times, unit.curves, strict=True))
        for x, y in zip(unit.x, curve, strict=True)
    ]
    shades = [_blend(order / max(1, len(times) - 1)) for order in range(len(times))]
    lines = (
        alt.Chart(inline(rows))
        .mark_line()
        .encode(
            x=alt.X("x:Q", title=None, scale=alt.Scale(domain=[-4, 4])),
            y=alt.Y("y:Q", title=None, axis=alt.Axis(tickCount=5)),
            color=alt.Color(
                "time:N",
                title="epoch",
                sort=times,
                scale=alt.Scale(domain=times, range=shades),
            ),
            strokeWidth=alt.StrokeWidthValue(
                1.2, condition={"test": f"datum.order == {len(times) - 1}", "value": 2.6}
            ),
            detail=alt.Detail("time:N"),
            tooltip=[
                alt.Tooltip("time:N", title="epoch"),
                alt.Tooltip("x:Q"),
                alt.Tooltip("y:Q", format=".3f"),
            ],
        )
    )
    title = alt.TitleParams(f"{number}: {unit.layer}", fontSize=11, fontWeight="normal")
    layers = [*_histogram(unit, inputs), lines]
    return alt.layer(*layers, width=200, height=130, title=title)


def _histogram(unit: Evolution, inputs: dict[str, Any]) -> list[Drawing]:
    counts = next((c for name, c in inputs.items() if short_name(name) == unit.layer), None)
    if counts is None or counts.sum() == 0:
        return []
    low, high = float(unit.curves[-1].min()), float(unit.curves[-1].max())
    edges = np.linspace(-4, 4, len(counts) + 1)
    tops = low + (high - low) * counts / counts.max()
    rows = [
        {"x": float(a), "x2": float(b), "low": low, "top": float(top)}
        for a, b, top in zip(edges[:-1], edges[1:], tops, strict=True)
    ]
    bars = alt.Chart(inline(rows)).mark_rect(color="#dddddd")
    return [bars.encode(x=alt.X("x:Q"), x2=alt.X2("x2:Q"), y=alt.Y("low:Q"), y2=alt.Y2("top:Q"))]


def _blend(part: float) -> str:
    """From pale blue at the start to vermilion at the end."""
    start, end = (0x9E, 0xC9, 0xE8), tuple(bytes.fromhex(PALETTE[1][1:]))
    mixed = [round(a + (b - a) * part) for a, b in zip(start, end, strict=True)]
    return "#" + bytes(mixed).hex()
