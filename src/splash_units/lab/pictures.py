"""Pictures of runs: loss and error over the epochs, and the shapes that units learned."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from splash_units.lab.assembly import build_network
from splash_units.lab.evolution import Evolution, short_name, splash_curves
from splash_units.lab.spec import describe
from splash_units.lab.store import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    Array = np.ndarray[Any, Any]

GRID = torch.linspace(-4, 4, 161)
MOST_TIMES = 12
SHAPES_A_ROW = 5
TRAIN, TEST, FAINT = "#1f5fa8", "#d1495b", "#b8b8b8"
AT_THE_START: Mapping[str, Any] = {
    "color": "black",
    "linewidth": 0.8,
    "linestyle": (0, (4, 3)),
    "zorder": 4,
}


def evolutions(run: Run, most_times: int = MOST_TIMES) -> list[Evolution]:
    """How the shapes of a run's units changed; empty if its unit learns none."""
    shapes = run.shapes()
    names = [name for name in shapes if name != "time" and not name.endswith(".hinges")]
    if not names:
        return []
    chosen, x = _spread(len(shapes["time"]), most_times), GRID.numpy()
    layers: dict[str, dict[str, Tensor]] = {}
    for name in names:
        layer, _, key = name.rpartition(".")
        layers.setdefault(layer, {})[key] = torch.from_numpy(shapes[name][chosen])
    if all(f"{layer}.hinges" in shapes for layer in layers):
        curves = {
            layer: splash_curves(
                slopes["a_pos"].numpy(), slopes["a_neg"].numpy(), shapes[f"{layer}.hinges"], x
            )
            for layer, slopes in layers.items()
        }
    else:
        curves = _module_curves(run, layers)
    times = shapes["time"][chosen]
    return [Evolution(short_name(layer), times, x, curve) for layer, curve in curves.items()]


@torch.no_grad()
def _module_curves(run: Run, layers: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Array]:
    """What any other unit does to GRID: its module is asked, with its slopes as they were then."""
    arguments = run.record()["network_arguments"]
    network = build_network(run.spec(), arguments).eval()
    curves = {}
    with _plain_equation():
        channels = _input_channels(network, arguments)
        for layer, slopes in layers.items():
            module = network.get_submodule(layer)
            x = GRID.view(-1, 1).expand(-1, channels[layer])
            rows = []
            for at in range(len(next(iter(slopes.values())))):
                for key, values in slopes.items():
                    module.get_parameter(key).copy_(values[at])
                rows.append(_averaged(module(x)))
            curves[layer] = np.stack(rows)
    return curves


@contextmanager
def _plain_equation() -> Iterator[None]:
    """Without a compiled kernel: some points of a shape are no reason to build one for a minute."""
    chosen = os.environ.get("SPLASH_KERNEL")
    os.environ["SPLASH_KERNEL"] = "reference"
    try:
        yield
    finally:
        if chosen is None:
            del os.environ["SPLASH_KERNEL"]
        else:
            os.environ["SPLASH_KERNEL"] = chosen


def _averaged(y: Tensor) -> Array:
    """The mean over channels, and over positions if each has its own shape."""
    mean: Array = y.reshape(len(GRID), -1).mean(1).numpy()
    return mean


def _input_channels(network: nn.Module, arguments: Mapping[str, Any]) -> dict[str, int]:
    """How many channels reach each module, seen by sending a black image through the network."""
    channels: dict[str, int] = {}
    hooks = [
        module.register_forward_pre_hook(
            lambda _, inputs, name=name: channels.__setitem__(name, inputs[0].shape[1])
        )
        for name, module in network.named_modules()
    ]
    with torch.no_grad():
        network(torch.zeros(1, arguments["in_channels"], *arguments["image_size"]))
    for hook in hooks:
        hook.remove()
    return channels


def _spread(count: int, most: int) -> list[int]:
    """At most so many of `count` indices, first and last among them."""
    return sorted({round(i) for i in np.linspace(0, count - 1, min(count, most))})


def draw_run(run: Run, path: Path) -> Path:
    """Draw a run's losses, errors and shapes into a .png or .svg file."""
    from matplotlib.figure import Figure

    suffixes = (".png", ".svg", ".pdf")
    if path.suffix not in suffixes:
        raise ValueError(f"{path}: a picture's name must end in {', '.join(suffixes)}")
    learned = evolutions(run)
    rows = -(-len(learned) // SHAPES_A_ROW)
    columns = min(max(len(learned), 2), SHAPES_A_ROW)
    figure = Figure(figsize=(2.4 * max(columns, 3), 3.2 + 2.2 * rows), layout="constrained")
    figure.suptitle(describe(run.spec()), fontsize=10)
    top, *below = figure.subfigures(
        2 if rows else 1, 1, height_ratios=[3.2, 2.2 * rows] if rows else None, squeeze=False
    ).ravel()
    losses, errors = top.subplots(1, 2)
    draw_curves(losses, errors, run.history())
    for panels in below:
        grid = panels.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).ravel()
        for axes, evolution in zip(grid, learned, strict=False):
            draw_evolution(axes, evolution)
        for axes in grid[len(learned) :]:
            axes.set_visible(False)
        add_time_bar(panels, grid, learned[0])
    return save(figure, path)


def draw_curves(losses: Axes, errors: Axes, history: Sequence[Mapping[str, Any]]) -> None:
    """Training and test loss, training and test error, over the epochs."""
    epochs = [line["epoch"] for line in history]
    for part, colour in (("train", TRAIN), ("test", TEST)):
        marker = "o" if len(epochs) < 3 else ""
        loss = [line[f"{part}_loss"] for line in history]
        losses.plot(epochs, loss, marker=marker, color=colour)
        percent = [100 * line[f"{part}_error"] for line in history]
        errors.plot(epochs, percent, marker=marker, color=colour, label=part)
    losses.set(xlabel="epoch", ylabel="loss", yscale="log")
    errors.set(xlabel="epoch", ylabel="error in %", ylim=(0, None))
    errors.legend(frameon=False, fontsize=8)
    for axes in (losses, errors):
        _over_epochs(axes)


def draw_evolution(axes: Axes, evolution: Evolution) -> None:
    """One unit's shape from its start (dashed) to its end (dark)."""
    for curve, colour in zip(evolution.curves, time_colours(evolution), strict=True):
        axes.plot(GRID, curve, color=colour, linewidth=1.2)
    axes.plot(GRID, evolution.curves[0], **AT_THE_START)
    axes.set_title(evolution.layer, fontsize=8)
    _cross(axes)
    _tidy(axes)


def time_colours(evolution: Evolution) -> Array:
    """From light to dark by rank rather than by time, since shapes change most at first."""
    import matplotlib

    return matplotlib.colormaps["viridis_r"](np.linspace(0.1, 1.0, len(evolution.times)))


def add_time_bar(panels: Any, grid: Sequence[Axes], evolution: Evolution) -> None:
    """Say which colour is which epoch."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import BoundaryNorm, ListedColormap

    count = len(evolution.times)
    colours = ListedColormap(time_colours(evolution))
    mappable = ScalarMappable(BoundaryNorm(np.arange(count + 1) - 0.5, count), colours)
    bar = panels.colorbar(mappable, ax=list(grid), ticks=range(count), aspect=40, pad=0.01)
    bar.ax.set_yticklabels([f"{time:.3g}" for time in evolution.times], fontsize=7)
    bar.minorticks_off()
    bar.set_label("epoch", fontsize=8)


def save(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    return path


def _over_epochs(axes: Axes) -> None:
    """Whole epochs along x, plain numbers along y."""
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter("{x:g}")
    _tidy(axes)


def _cross(axes: Axes) -> None:
    axes.axhline(0, color=FAINT, linewidth=0.6, zorder=0)
    axes.axvline(0, color=FAINT, linewidth=0.6, zorder=0)


def _tidy(axes: Axes) -> None:
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8)


def draw_comparison(groups: Mapping[str, Sequence[Run]], path: Path) -> Path:
    """Training loss and test error of several units: the mean over seeds, and their range."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    losses, errors = figure.subplots(1, 2)
    for label, runs in groups.items():
        histories = [run.history() for run in runs if run.history()]
        if histories:
            _band(losses, label, histories, "train_loss", 1)
            _band(errors, label, histories, "test_error", 100)
    losses.set(xlabel="epoch", ylabel="training loss", yscale="log")
    errors.set(xlabel="epoch", ylabel="test error in %", yscale="log")
    errors.legend(frameon=False, fontsize=8)
    for axes in (losses, errors):
        _over_epochs(axes)
    return save(figure, path)


def _band(axes: Axes, label: str, histories: Sequence[Any], key: str, factor: float) -> None:
    epochs = range(1, 1 + min(len(history) for history in histories))
    values = np.array([[factor * line[key] for line in h[: len(epochs)]] for h in histories])
    style = unit_style(label)
    axes.plot(epochs, values.mean(0), label=label, **style)
    axes.fill_between(
        epochs, values.min(0), values.max(0), color=style["color"], alpha=0.12, linewidth=0
    )


def unit_style(name: str) -> dict[str, Any]:
    """A unit's line: SPLASH stands out, the others keep their colour from picture to picture."""
    if name == "splash":
        return {"color": TEST, "linewidth": 2.2, "zorder": 3}
    colours = ("#1f5fa8", "#2a9d8f", "#e9a03b", "#7b5ea7", "#5c6770", "#8c6d46")
    order = ("relu", "prelu", "apl", "swish", "leaky_relu", "elu")
    at = order.index(name) if name in order else sum(name.encode())
    return {"color": colours[at % len(colours)], "linewidth": 1.3}


def draw_learned_shapes(groups: Mapping[str, Sequence[Run]], path: Path) -> Path:
    """The shapes at the end of training, a row a unit and a column a layer, one line a seed."""
    from matplotlib.figure import Figure

    learned = {label: [evolutions(run, 2) for run in runs] for label, runs in groups.items()}
    learned = {label: found for label, found in learned.items() if any(found)}
    if not learned:
        raise ValueError("none of these runs has a unit that learns its shape")
    columns = max(len(found) for runs in learned.values() for found in runs)
    size = (2.3 * columns, 2.1 * len(learned) + 0.3)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(learned), columns, sharex=True, sharey=True, squeeze=False)
    for row, (label, runs) in zip(grid, learned.items(), strict=True):
        row[0].set_ylabel(label)
        for axes in row:
            _cross(axes)
            _tidy(axes)
        for found in runs:
            for axes, evolution in zip(row, found, strict=False):
                axes.plot(GRID, evolution.curves[-1], alpha=0.8, **unit_style(label))
                axes.plot(GRID, evolution.curves[0], **AT_THE_START)
    for axes, evolution in zip(grid[0], next(iter(learned.values()))[0], strict=False):
        axes.set_title(evolution.layer, fontsize=9)
    figure.supxlabel("input (dashed: the shape at the start)", fontsize=9)
    return save(figure, path)
