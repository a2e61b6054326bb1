"""How far two classes lie apart before the softmax, for each unit, with the numbers."""

from typing import Any

import altair as alt

from splash_units.lab.figures.choosing import Missing
from splash_units.lab.figures.style import PALETTE, Drawing, inline, styled
from splash_units.lab.findings import Finding, findings
from splash_units.lab.frames import label
from splash_units.lab.names import data_name, network_name, unit_name
from splash_units.lab.spec import SeparationSpec
from splash_units.lab.store import Store

CIFAR_10 = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)
PANELS = 4


def separation(store: Store) -> Drawing:
    """t-SNE of the features of two classes, one panel a unit, first seed of each."""
    first: dict[str, tuple[SeparationSpec, Finding]] = {}
    for found in findings(store):
        spec = found.spec()
        if isinstance(spec, SeparationSpec):
            name = label(spec.train)
            if name not in first or spec.train.seed < first[name][0].train.seed:
                first[name] = (spec, found)
    if not first:
        raise Missing("no classes have been separated", "splash run separation")
    order = sorted(first, key=lambda name: (name != "relu", name != "splash", name))[:PANELS]
    panels = [_panel(name, *first[name]) for name in order]
    spec = first[order[0]][0]
    return styled(
        alt.hconcat(*panels),
        "Two classes as the networks see them, just before the softmax",
        [
            f"{network_name(spec.train.model)} on {data_name(spec.train.data)}, t-SNE of "
            f"{spec.images_per_class} images a class, scale {spec.train.scale}; t-SNE is for the "
            "eye: the numbers are of the features themselves"
        ],
    )


def _panel(name: str, spec: SeparationSpec, found: Finding) -> Drawing:
    tensors, result = found.tensors(), found.result() or {}
    rows = [
        {"x": float(x), "y": float(y), "class": _class_name(spec, int(which))}
        for (x, y), which in zip(tensors["coordinates"], tensors["labels"], strict=True)
    ]
    names = [_class_name(spec, which) for which in spec.classes]
    return (
        alt.Chart(inline(rows))
        .mark_point(filled=True, size=32, opacity=0.75)
        .encode(
            x=alt.X("x:Q", axis=None),
            y=alt.Y("y:Q", axis=None),
            color=alt.Color(
                "class:N", title=None, scale=alt.Scale(domain=names, range=list(PALETTE[:2]))
            ),
            shape=alt.Shape("class:N", title=None, scale=alt.Scale(domain=names)),
        )
        .properties(width=230, height=210, title=_panel_title(name, result))
    )


def _panel_title(name: str, result: dict[str, Any]) -> alt.TitleParams:
    numbers = [
        f"{words} {result[key]:.3f}"
        for key, words in (("silhouette", "silhouette"), ("purity", "neighbour purity"))
        if result.get(key) is not None
    ]
    return alt.TitleParams(
        unit_name(name), subtitle=" · ".join(numbers), fontSize=12, subtitleFontSize=10
    )


def _class_name(spec: SeparationSpec, which: int) -> str:
    return CIFAR_10[which] if spec.train.data == "cifar-10" else f"class {which}"
