"""Every figure by name: what it shows, the study that makes its runs, and how it is drawn."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from splash_units.lab.figures import attacks, learning, prices, separation, theory
from splash_units.lab.spec import unknown
from splash_units.lab.store import Store

FORMATS = ("svg", "png", "pdf")
PIXELS_PER_INCH = 200


@dataclass(frozen=True)
class Figure:
    """A figure: what it shows in a sentence, and which study makes the runs."""

    name: str
    caption: str
    study: str
    draw: Callable[[Store], Any]


_ALL = (
    Figure("families", "The families of piecewise-linear functions, and what one function of each "
           "has to learn.", "family", theory.families),
    Figure("approximation", "The error of interpolating units against S, with the theorem's bound.",
           "family", theory.approximation),
    Figure("evolution-resnet20", "The shapes of six layers of ResNet-20 during training.",
           "evolution", partial(learning.evolution, model="resnet20")),
    Figure("evolution-mlp", "The shapes of the MLP during training.", "evolution",
           partial(learning.evolution, model="mlp")),
    Figure("evolution-lenet5", "The shapes of LeNet5 during training.", "evolution",
           partial(learning.evolution, model="lenet5")),
    Figure("ablation", "Training loss of ReLU, SPLASH, its final shapes fixed, SPLASH-positive and "
           "-negative.", "ablation", learning.ablation),
    Figure("initialisation", "Training loss from different starting shapes, and the shapes.",
           "initialisation", learning.initialisation),
    Figure("initialisation-fixed", "The same, with ReLU and leaky ReLU that don't learn.",
           "initialisation", learning.initialisation_and_fixed),
    Figure("cost", "Time of a training step against S, with the paper's.", "cost", prices.cost),
    Figure("hinges", "Test error against S, slopes shared and independent.", "hinges",
           prices.hinges),
    Figure("separation", "t-SNE of two classes before the softmax.", "separation",
           separation.separation),
    Figure("success-eps", "Success of attacks against eps.", "fgsm", attacks.success_against_eps),
    Figure("success-l2", "Success of minimising attacks against L2.", "cw",
           attacks.success_against_l2),
    Figure("worst-case", "Accuracy left in the worst case against eps.", "verdict",
           attacks.worst_case),
    Figure("transfer", "What images made on one network do to another.", "verdict",
           attacks.transfer),
    Figure("adversarial", "Images before and after attacks, and the change.", "fgsm",
           attacks.adversarial_images),
)  # fmt: skip
_BY_NAME: Mapping[str, Figure] = {figure.name: figure for figure in _ALL}
NAMES = tuple(_BY_NAME)


def figure(name: str) -> Figure:
    """A figure by its name."""
    if name not in _BY_NAME:
        raise ValueError(unknown("figure", name, _BY_NAME))
    return _BY_NAME[name]


def draw(name: str, store: Store) -> Any:
    """A figure as an altair chart, from the runs of a store; `Missing` if they are not there."""
    return figure(name).draw(store)


def save(chart: Any, path: Path, format: str | None = None) -> Path:
    """Write a chart as svg, png or pdf, by its file's ending or as `format` says."""
    kind = format or path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(f"a figure is written as {', '.join(FORMATS)}, not {kind!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"ppi": PIXELS_PER_INCH} if kind == "png" else {}
    chart.save(str(path), format=kind, **options)
    return path
