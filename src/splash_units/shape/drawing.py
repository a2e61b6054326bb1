"""Pictures of shapes: every layer's, with its inputs behind it, or as it changed in training.

Colours are from the Okabe-Ito palette and from viridis, which all kinds of colour vision tell apart
and which keep their order in grey.
"""

import math
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from splash_units.shape.piecewise import Shape, segments
from splash_units.shape.tapping import Forward, observe_inputs, units_of
from splash_units.shape.tracking import History, Track
from splash_units.unit import Splash

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure

CURVE = "#0072B2"  # blue
START = "#D55E00"  # vermilion
INPUTS = "#DDDDDD"
GUIDE = "#999999"
BINS = 80
MOST_COLUMNS = 8
MOST_STEPS = 12
MOST_GROUPS = 64
EARLY = 0.5  # steps are shown and coloured by their square root: shapes change most early on
LONGEST_NAME = 28


@dataclass(frozen=True, eq=False)
class Panel:
    """One unit's picture: its shapes, one row a step (or one a group), and its inputs."""

    name: str
    shape: Shape
    steps: tuple[int, ...] | None = None
    inputs: Tensor | None = None


def plot(
    subject: nn.Module | Track | History,
    batches: Iterable[Any] | Tensor | None = None,
    path: str | os.PathLike[str] | None = None,
    *,
    columns: int | None = None,
    limit: float | None = None,
    title: str | None = None,
    forward: Forward | None = None,
) -> "Figure":
    """Draw the shape of every SPLASH unit of a network (or of one unit), and return the figure.

    With `batches` (as :func:`occupancy` takes them) the histogram of each unit's inputs is behind
    its shape. A :class:`Track`, or the :class:`History` it was saved as, is drawn as an evolution,
    early to late. Units that have many shapes show at most 64 of them thinly and their mean boldly.

    Args:
        path: where to save the figure; its ending is the format. A saved figure is closed, so that
            pyplot doesn't show it as well.
        columns: of panels; chosen for the number of units if not given.
        limit: the axis runs from −limit to limit; 1.4 times the outermost hinge if not given.
        title: above it all.
    """
    pyplot = _pyplot()
    if path is not None:
        _check_path(path)
    panels = _panels(subject)
    limit = _checked_limit(limit, panels)
    if batches is not None:
        panels = _with_inputs(panels, subject, batches, limit, forward)

    columns = _checked_columns(columns, len(panels))
    rows = math.ceil(len(panels) / columns)
    size = 2.3 if len(panels) <= 12 else 1.75
    figure, grid = pyplot.subplots(
        rows,
        columns,
        figsize=(max(columns * size, 3.6) + 0.6, rows * size * 0.85 + 0.9),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    axes = list(grid.flat)
    colours = _step_colours(panels)
    for panel, axis in zip(panels, axes, strict=False):
        _draw(axis, panel, limit, colours)
    for axis in axes[len(panels) :]:
        axis.remove()
    _label_outer(axes[: len(panels)], columns)
    _finish(figure, axes[: len(panels)], panels, colours, title)
    if path is not None:
        figure.savefig(path, dpi=130)
        pyplot.close(figure)
    return figure  # type: ignore[no-any-return]


def _pyplot() -> Any:
    try:
        from matplotlib import pyplot
    except ImportError as error:
        raise ImportError(
            'plot needs matplotlib: pip install "splash-units[plot]"', name="matplotlib"
        ) from error
    return pyplot


def _check_path(path: str | os.PathLike[str]) -> None:
    """Before any batch runs: that the figure can be saved there."""
    from matplotlib.backend_bases import FigureCanvasBase

    folder, ending = Path(path).parent, Path(path).suffix.removeprefix(".").lower()
    formats = FigureCanvasBase.get_supported_filetypes()
    if ending and ending not in formats:
        raise ValueError(f"no picture format {ending!r} (of {path}): one of {', '.join(formats)}")
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {folder} to save {Path(path).name} in")


def _panels(subject: nn.Module | Track | History) -> list[Panel]:
    if isinstance(subject, nn.Module):
        return [Panel(name, segments(unit)) for name, unit in units_of(subject).items()]
    if isinstance(subject, Track | History):
        history = subject.history if isinstance(subject, Track) else subject
        return [Panel(name, history.shapes(name), history.steps) for name in history.slopes]
    raise TypeError(f"plot draws a module, a Track or a History, got {type(subject).__name__}")


def _checked_limit(limit: float | None, panels: list[Panel]) -> float:
    if limit is None:
        outermost = max(panel.shape.breakpoints[-1].item() for panel in panels)
        return 1.4 * outermost if outermost > 0 else 3.0
    if not (math.isfinite(limit) and limit > 0):
        raise ValueError(f"limit must be a positive number, got {limit!r}")
    return float(limit)


def _checked_columns(columns: int | None, count: int) -> int:
    if columns is None:
        ideal = max(math.ceil(math.sqrt(1.5 * count)), 4)
        near = range(max(ideal - 1, 1), min(ideal + 2, MOST_COLUMNS) + 1)
        return min(count, min(near, key=lambda n: (-count % n, abs(n - ideal))))
    if columns < 1:
        raise ValueError(f"columns must be at least 1, got {columns}")
    return min(columns, count)


def _with_inputs(
    panels: list[Panel],
    subject: nn.Module | Track | History,
    batches: Iterable[Any] | Tensor,
    limit: float,
    forward: Forward | None,
) -> list[Panel]:
    if isinstance(subject, History):
        raise ValueError("a saved history has no network to run batches through; plot the track")
    model = subject.model if isinstance(subject, Track) else subject
    found = _histograms(model, batches, limit, forward)
    return [Panel(p.name, p.shape, p.steps, found[p.name]) for p in panels]


def _histograms(
    model: nn.Module, batches: Iterable[Any] | Tensor, limit: float, forward: Forward | None
) -> Mapping[str, Tensor]:
    """Each unit's inputs in BINS bins from −limit to limit, between two for what lies beyond."""
    counts = {name: torch.zeros(BINS + 2, dtype=torch.int64) for name in units_of(model)}

    def count(name: str, unit: Splash, x: Tensor) -> None:
        known = x[~x.isnan()].float()
        edges = torch.linspace(-limit, limit, BINS + 1, device=x.device)
        bins = torch.bucketize(known, edges, right=True)
        counts[name] += torch.bincount(bins, minlength=BINS + 2).cpu()

    observe_inputs(model, batches, count, forward)
    return counts


def _step_colours(panels: list[Panel]) -> "ScalarMappable | None":
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import ListedColormap, PowerNorm
    from matplotlib.pyplot import get_cmap

    steps = panels[0].steps
    if steps is None:
        return None
    late_is_dark = ListedColormap(get_cmap("viridis_r")(torch.linspace(0.12, 1.0, 256).numpy()))
    norm = PowerNorm(EARLY, steps[0], max(steps[-1], steps[0] + 1))
    return ScalarMappable(norm, late_is_dark)


def _draw(axis: "Axes", panel: Panel, limit: float, colours: "ScalarMappable | None") -> None:
    if panel.inputs is not None:
        _draw_inputs(axis, panel.inputs, limit)
    axis.axhline(0, color=GUIDE, linewidth=0.5, zorder=1)
    for hinge in panel.shape.breakpoints.tolist():
        axis.axvline(hinge, color=GUIDE, linewidth=0.5, linestyle=":", zorder=1)
    # Straight lines need their ends only.
    inner = panel.shape.breakpoints[panel.shape.breakpoints.abs() < limit]
    x = torch.cat([torch.tensor([-limit]), inner, torch.tensor([limit])])
    if panel.steps is None or colours is None:
        _draw_now(axis, x, panel.shape)
    else:
        _draw_evolution(axis, x, panel, colours)
    axis.set_title(_short(panel.name), fontsize=7.5, pad=3)
    axis.set_xlim(-limit, limit)
    axis.tick_params(labelsize=7, length=2)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def _draw_now(axis: "Axes", x: Tensor, shape: Shape) -> None:
    axis.plot(x, torch.relu(x), color=START, linewidth=1.1, linestyle="--", zorder=5, label="ReLU")
    curves = shape(x).reshape(-1, len(x))
    if shape.groups:
        for curve in curves[_spread(len(curves), MOST_GROUPS)]:
            axis.plot(x, curve, color=CURVE, linewidth=0.5, alpha=0.3, zorder=3)
    axis.plot(x, curves.mean(0), color=CURVE, linewidth=1.8, zorder=4, label="learned shape")


def _draw_evolution(axis: "Axes", x: Tensor, panel: Panel, colours: "ScalarMappable") -> None:
    """One curve a step, the mean of the groups where there are some; the first one dashed."""
    assert panel.steps is not None
    curves = panel.shape(x).reshape(len(panel.steps), -1, len(x)).mean(1)
    shown = _spread(len(curves), MOST_STEPS, power=1 / EARLY)
    for i in shown:
        last = i == shown[-1]
        axis.plot(
            x,
            curves[i],
            color=colours.to_rgba(panel.steps[i]),  # type: ignore[arg-type]
            linewidth=1.8 if last else 0.8,
            zorder=4 if last else 2,
        )
    axis.plot(x, curves[0], color=START, linewidth=1.1, linestyle="--", zorder=5, label="start")


def _draw_inputs(axis: "Axes", inputs: Tensor, limit: float) -> None:
    inside, total = inputs[1:-1], int(inputs.sum())
    top = max(int(inside.max()), 1)
    edges = torch.linspace(-limit, limit, BINS + 1)
    axis.stairs(
        (0.8 * inside / top).tolist(),
        edges.tolist(),
        fill=True,
        color=INPUTS,
        zorder=0,
        transform=axis.get_xaxis_transform(),  # heights are shares of the panel's
        label="its inputs",
    )
    for beyond, side, place in ((inputs[0], "left", 0.02), (inputs[-1], "right", 0.98)):
        share = 100 * int(beyond) / max(total, 1)
        if share >= 0.5:
            arrow = f"← {share:.0f} %" if side == "left" else f"{share:.0f} % →"
            axis.text(
                place, 0.03, arrow, transform=axis.transAxes, ha=side, fontsize=6, color="#555555"
            )


def _spread(count: int, most: int, power: float = 1.0) -> list[int]:
    """At most so many of the numbers below `count`, the first and the last included.

    Evenly spread, or denser where they are small if `power` is more than 1.
    """
    if count <= most:
        return list(range(count))
    return sorted({round((count - 1) * (i / (most - 1)) ** power) for i in range(most)})


def _short(name: str) -> str:
    """The end of a qualified name, from a dot on if one is near enough."""
    if len(name) <= LONGEST_NAME:
        return name
    end = name[1 - LONGEST_NAME :]
    return f"…{end[end.find('.') if '.' in end else 0 :]}"


def _label_outer(axes: "list[Axes]", columns: int) -> None:
    """Tick labels at the lowest panel of each column: the last row may be shorter."""
    for i, axis in enumerate(axes):
        axis.tick_params(labelbottom=i + columns >= len(axes))


def _finish(
    figure: "Figure",
    axes: "list[Axes]",
    panels: list[Panel],
    colours: "ScalarMappable | None",
    title: str | None,
) -> None:
    # The legend has the left of the lowest line, the label the right: they would overlap centred.
    figure.supxlabel("input x", fontsize=9, x=0.99, ha="right")
    figure.supylabel("output h(x)", fontsize=9)
    if title:
        figure.suptitle(title, fontsize=11)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower left", ncols=len(labels), fontsize=8, frameon=False
    )
    if colours is not None:
        from matplotlib.ticker import MaxNLocator

        bar = figure.colorbar(colours, ax=axes, fraction=0.03, pad=0.01, aspect=30)
        bar.locator = MaxNLocator(nbins=6, integer=True)
        bar.set_label("step", fontsize=8)
        bar.ax.tick_params(labelsize=7)
