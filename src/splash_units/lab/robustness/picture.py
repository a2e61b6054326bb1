"""A picture of what an attack did to some images: before, the change magnified, and after."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from splash_units.lab.findings import Finding
from splash_units.lab.pictures import save
from splash_units.lab.robustness.named import describe_attack

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST = 8
ROWS = ("before", "change", "after")


def draw_examples(
    found: Finding, path: Path, *, classes: Sequence[str] = (), most: int = MOST
) -> Path:
    """Draw the first fooled images of an attack; if none was fooled, the first that stood."""
    from matplotlib.figure import Figure

    result = found.result() or {}
    rows = _examples(found, most)
    count = len(rows["labels"])
    figure = Figure(figsize=(1.45 * max(count, 4) + 0.4, 5.0), layout="constrained")
    figure.suptitle(_title(result), fontsize=10)
    grid = figure.subplots(len(ROWS), count, squeeze=False)
    for axes, words in zip(grid[:, 0], ROWS, strict=True):
        axes.set_ylabel(words, fontsize=9)
    for place, column in enumerate(grid.T):
        _draw_column(column, {name: values[place] for name, values in rows.items()}, classes)
    return save(figure, path)


def magnified(change: Tensor) -> tuple[Tensor, float]:
    """A change as an image, no change being grey, and the factor that makes its largest visible."""
    largest = float(change.abs().max())
    factor = 0.5 / largest if largest > 0 else 1.0
    return (0.5 + factor * change).clamp(0, 1), factor


def _examples(found: Finding, most: int) -> dict[str, Tensor]:
    decided = found.tensors("fooled", "was_right")
    (chosen,) = decided["fooled"].nonzero(as_tuple=True)
    if not len(chosen):
        (chosen,) = decided["was_right"].nonzero(as_tuple=True)
    if not len(chosen):
        raise ValueError("no image was right before the attack: there is nothing to draw")
    names = ("clean", "images", "labels", "prediction", "l2", "linf", "l0")
    return found.rows(chosen[:most].tolist(), *names)


def _title(result: Mapping[str, Any]) -> str:
    words = describe_attack(result["attack"], result["options"])
    return f"{words}: {result['fooled']} of {result['attempts']} images fooled"


def _draw_column(
    column: Sequence["Axes"], row: Mapping[str, Tensor], classes: Sequence[str]
) -> None:
    before, after = row["clean"], row["images"]
    change, factor = magnified(after - before)
    below = f"L2 {float(row['l2']):.2g}, max {float(row['linf']):.2g}\n{int(row['l0'])} pixels"
    titles = (
        _name(int(row["labels"]), classes),
        f"× {factor:.3g}" if factor != 1 else "none",
        _name(int(row["prediction"]), classes),
    )
    for axes, image, title in zip(column, (before, change, after), titles, strict=True):
        axes.imshow(_pixels(image), cmap="gray", vmin=0, vmax=1, interpolation="nearest")
        axes.set_title(title, fontsize=8)
        axes.set(xticks=[], yticks=[])
    column[-1].set_xlabel(below, fontsize=7)


def _name(label: int, classes: Sequence[str]) -> str:
    return classes[label] if label < len(classes) else str(label)


def _pixels(image: Tensor) -> Any:
    """Grey or coloured, as matplotlib wants it; of any other number of channels, their mean."""
    image = image.to(torch.float32)
    if len(image) == 3:
        return image.permute(1, 2, 0).numpy()
    return image.mean(0).numpy()
