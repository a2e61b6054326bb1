"""How networks stand up to attacks: success against a budget, worst case, transfer, images."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import altair as alt
import numpy as np
import polars as pl

from splash_units.lab.figures.choosing import SCALES, Missing, means, setting_words
from splash_units.lab.figures.images import data_url, magnified
from splash_units.lab.figures.style import Drawing, colour, dash, inline, named, renamed, styled
from splash_units.lab.findings import Finding, findings
from splash_units.lab.frames import SETTING, label, read
from splash_units.lab.names import ATTACKS, attack_name, data_name, network_name, unit_name
from splash_units.lab.spec import AttackSpec, TransferSpec
from splash_units.lab.store import Store

if TYPE_CHECKING:
    from torch import Tensor

L2_GRID = np.linspace(0.0, 2.0, 81)
IMAGES_SHOWN = 5
ENLARGED = 96
ATTACK_HEADER = alt.Header(labelExpr=renamed(ATTACKS))
KINDS = ("before", "change, magnified", "after")


def success_against_eps(store: Store) -> Drawing:
    """The share of right images that each attack turns, against eps, one panel an attack."""
    frame, words = _one_setting(read(store).attacks, pl.col("eps").is_not_null(), study="fgsm")
    attacks = frame.filter((pl.col("attempts") > 0) & (pl.col("attack") != "worst_case"))
    if attacks.is_empty():
        raise Missing("no attack with an eps has been run", "splash run fgsm")
    rows = attacks.with_columns((100 * pl.col("fooled") / pl.col("attempts")).alias("success"))
    data = means(rows.iter_rows(named=True), ("attack", "label", "eps"), "success")
    labels = _labels(rows)
    chart = _lines("eps", "mean", "images fooled, %", labels).properties(width=200, height=190)
    return styled(
        chart.facet(
            facet=alt.Facet("attack:N", title=None, header=ATTACK_HEADER),
            columns=3,
            data=inline(data),
        ),
        "Success against the size of the change",
        [f"{words}; of the images that were right; 95 % intervals over seeds"],
    )


def worst_case(store: Store) -> Drawing:
    """Accuracy that is left when each image meets the attack that is worst for it, against eps."""
    wanted = pl.col("attack") == "worst_case"
    frame, words = _one_setting(read(store).attacks, wanted, study="verdict")
    rows = frame.with_columns((100 * pl.col("robust_accuracy")).alias("robust"))
    labels = _labels(rows)
    data = means(rows.iter_rows(named=True), ("label", "eps"), "robust")
    chart = _lines("eps", "mean", "accuracy left, %", labels, data=inline(data))
    return styled(
        chart.properties(width=420, height=250),
        "What is left in the worst case",
        [f"{words}; several strong attacks, the worst for each image"],
    )


def success_against_l2(store: Store) -> Drawing:
    """For attacks that look for the nearest mistake: how many images have one within L2."""
    groups: dict[tuple[Any, ...], list[np.ndarray[Any, Any]]] = {}
    for found, spec in _attacks(store):
        result = found.result() or {}
        if result.get("success_at_l2") is None or not result.get("attempts"):
            continue
        tensors = found.tensors("fooled", "l2", "was_right")  # not the images, which are large
        distance = np.where(tensors["fooled"], tensors["l2"], np.inf)[tensors["was_right"].numpy()]
        share = 100 * (distance[None, :] <= L2_GRID[:, None]).mean(1)
        train = spec.train
        key = (train.model, train.data, train.augment, train.scale, spec.attack, label(spec.train))
        groups.setdefault(key, []).append(share)
    if not groups:
        raise Missing("no attack that minimises the distance has been run", "splash run cw")
    setting = _fullest([key[:4] for key in groups])
    shown = {key[4:]: np.mean(shares, 0) for key, shares in groups.items() if key[:4] == setting}
    rows = [
        {"attack": attack, "label": name, "l2": float(x), "mean": float(y)}
        for (attack, name), curve in shown.items()
        for x, y in zip(L2_GRID, curve, strict=True)
    ]
    labels = _ordered({name for _, name in shown})
    base = _lines("l2", "mean", "images fooled, %", labels, points=False, band=False)
    return styled(
        base.properties(width=240, height=200).facet(
            facet=alt.Facet("attack:N", title=None, header=ATTACK_HEADER),
            columns=2,
            data=inline(rows),
        ),
        "How near the nearest mistake lies",
        [f"{setting_words(*setting)}; L2 on images in [0, 1]; mean over seeds"],
    )


def transfer(store: Store) -> Drawing:
    """Which share of the images made on one network fools the others."""
    found = [(s, f) for f in findings(store) if isinstance(s := f.spec(), TransferSpec)]
    if not found:
        raise Missing("no transfer between networks has been measured", "splash run verdict")
    spec, best = min(found, key=lambda pair: SCALES.index(pair[0].trains[0].scale))
    result = best.result() or {}
    labels, images = result["labels"], result["images"]
    rows = [
        {"made": made, "shown": shown, "share": value / images if images else None}
        for made, line in zip(labels, result["fooled"], strict=True)
        for shown, value in zip(labels, line, strict=True)
    ]
    said: dict[str, Any] = {"labelExpr": named(labels)}
    base = alt.Chart(inline(rows)).encode(
        x=alt.X("shown:N", title="shown to", sort=labels, axis=alt.Axis(labelAngle=-30, **said)),
        y=alt.Y("made:N", title="made on", sort=labels, axis=alt.Axis(**said)),
    )
    shade = alt.Color("share:Q", title="fooled", scale=alt.Scale(scheme="blues", domain=[0, 1]),
                      legend=alt.Legend(format="%"))  # fmt: skip
    # Colours that no dark page changes: the shades below the numbers stay, too.
    ink = alt.condition("datum.share > 0.55", alt.value("#ffffff"), alt.value("#111111"))
    chart = alt.layer(
        base.mark_rect(stroke="white").encode(color=shade),
        base.mark_text(fontSize=11).encode(text=alt.Text("share:Q", format=".0%"), color=ink),
    )
    first = spec.trains[0]
    return styled(
        chart.properties(width=56 * len(labels), height=44 * len(labels)),
        "Do images made on one network fool another?",
        [
            f"{network_name(first.model)} on {data_name(first.data)}, {attack_name(spec.attack)}, "
            f"{images} images, scale {first.scale}"
        ],
    )


def adversarial_images(store: Store) -> Drawing:
    """Some images before and after each attack, and the change between them, magnified."""
    best: dict[str, dict[str, Any]] = {}
    for row in read(store).attacks.iter_rows(named=True):
        if row["fooled"]:
            best[row["attack"]] = max(best.get(row["attack"], row), row, key=_worth_showing)
    rows: list[dict[str, Any]] = []
    for _, row in sorted(best.items()):
        found = Finding(store.root / row["run"] / "attacks" / row["id"])
        fooled = found.tensors("fooled")["fooled"].nonzero().flatten()[:IMAGES_SHOWN].tolist()
        rows += _image_rows(_attack_words(row), found.rows(fooled, "clean", "images"))
    if not rows:
        raise Missing("no attack has fooled a network yet", "splash run fgsm")
    chart = (
        alt.Chart()
        .mark_image(width=46, height=46)
        .encode(
            x=alt.X("column:O", axis=None),
            y=alt.Y(
                "kind:N", sort=list(KINDS), title=None, axis=alt.Axis(domain=False, ticks=False)
            ),
            url=alt.Url("url:N"),
        )
        .properties(width=50 * IMAGES_SHOWN, height=150)
        .facet(facet=alt.Facet("attack:N", title=None), columns=2, data=inline(rows))
    )
    return styled(chart, "What the attacks did", ["grey is no change"])


def _image_rows(attack: str, images: "dict[str, Tensor]") -> Iterator[dict[str, Any]]:
    """One row a picture: each image before and after, and the change around grey."""
    for column, (clean, changed) in enumerate(zip(images["clean"], images["images"], strict=True)):
        change, _ = magnified((changed - clean).numpy())
        for kind, image in zip(KINDS, (clean.numpy(), change, changed.numpy()), strict=True):
            url = data_url(image, ENLARGED)
            yield {"attack": attack, "kind": kind, "column": column, "url": url}


def _lines(x: str, y: str, title: str, labels: list[str], *, points: bool = True,
           band: bool = True, data: Any = alt.Undefined) -> Drawing:  # fmt: skip
    base = alt.Chart().encode(
        x=alt.X(
            f"{x}:Q",
            title={"eps": "ε (L∞)", "l2": "L2"}.get(x, x),
            axis=alt.Axis(tickCount=4),  # more would run into each other in a small panel
        ),
        color=colour(labels),
        tooltip=[
            alt.Tooltip("label:N"),
            alt.Tooltip(f"{x}:Q"),
            alt.Tooltip(f"{y}:Q", format=".1f", title=title),
        ],
    )
    mark: dict[str, Any] = {"point": alt.OverlayMarkDef(size=30)} if points else {}
    line = base.mark_line(strokeWidth=2, **mark).encode(
        y=alt.Y(f"{y}:Q", title=title, scale=alt.Scale(domain=[0, 100])),
        strokeDash=dash(labels),
    )
    bars = base.mark_rule(opacity=0.6).encode(y=alt.Y("low:Q"), y2=alt.Y2("high:Q"))
    layers = [bars.transform_filter("isValid(datum.low)"), line] if band else [line]
    return alt.layer(*layers, data=data)


def _attacks(store: Store) -> Iterator[tuple[Finding, AttackSpec]]:
    for found in findings(store):
        spec = found.spec()
        if isinstance(spec, AttackSpec):
            yield found, spec


def _one_setting(attacks: pl.DataFrame, wanted: pl.Expr, *, study: str) -> tuple[pl.DataFrame, str]:
    """The attacks of the network that most of them are on, and that network in words."""
    found = attacks.filter(wanted & (pl.col("choose") == "right"))
    found = found if len(found) else attacks.filter(wanted)
    if found.is_empty():
        raise Missing("no such attack has been run", f"splash run {study}")
    setting = _fullest(found.select(SETTING).rows())
    matches = pl.all_horizontal(
        pl.col(name) == value for name, value in zip(SETTING, setting, strict=True)
    )
    return found.filter(matches), setting_words(*setting)


def _fullest(settings: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The setting that occurs most; of equals the larger scale, then the first by name."""
    counted = Counter(sorted(settings))
    return max(counted, key=lambda s: (counted[s], -SCALES.index(s[3])))


def _labels(frame: pl.DataFrame) -> list[str]:
    return _ordered(set(frame["label"]))


def _ordered(labels: set[str]) -> list[str]:
    return sorted(labels, key=lambda name: (name != "relu", name != "splash", name))


def _worth_showing(attack: Mapping[str, Any]) -> tuple[Any, ...]:
    """Enough images, then a large scale, then a small change."""
    enough = min(attack["fooled"], IMAGES_SHOWN)
    return enough, -SCALES.index(attack["scale"]), -(attack["eps"] or attack["k"] or 0.0)


def _attack_words(row: Mapping[str, Any]) -> str:
    """An attack with its budget, and what it was on."""
    attack = attack_name(row["attack"], eps=row["eps"], k=row["k"])
    return f"{attack}: {network_name(row['model'])} with {unit_name(row['label'])}"
