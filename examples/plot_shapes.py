"""Train a small network with SPLASH units on scikit-learn's digits, and look at what they learned.

    python examples/plot_shapes.py docs/pictures

writes three pictures there: the shapes with their inputs behind them, how they came to be, and how
fast a unit with more hinges approaches a given function. It prints the same in words.
"""

import argparse
from itertools import pairwise
from pathlib import Path

import torch
from matplotlib import pyplot
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from splash_units import Splash
from splash_units.shape import Track, fit, nearest_classic, occupancy, plot, segments, track


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels; pixels from 0 to 1."""
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16, dtype=torch.float32), torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1400], order[1400:]
    return x[train], y[train], x[test], y[test]


def network() -> nn.Sequential:
    widths = [64, 64, 48, 32]
    layers = nn.Sequential()
    for i, (before, after) in enumerate(pairwise(widths), start=1):
        layers.add_module(f"linear{i}", nn.Linear(before, after))
        layers.add_module(f"norm{i}", nn.BatchNorm1d(after))
        layers.add_module(f"splash{i}", Splash())
    layers.add_module("classes", nn.Linear(widths[-1], 10))
    return layers


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int) -> Track:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    with track(model) as shapes:
        for _ in range(epochs):
            for batch in torch.randperm(len(x)).split(64):
                optimizer.zero_grad()
                F.cross_entropy(model(x[batch]), y[batch]).backward()
                optimizer.step()
    return shapes


def describe(model: nn.Sequential, x: Tensor) -> None:
    for name, visits in occupancy(model, x).items():
        unit = model.get_submodule(name)
        assert isinstance(unit, Splash)
        nearest = nearest_classic(unit)
        slope = "" if nearest.slope is None else f" of slope {nearest.slope:.2f}"
        print(
            f"{name}: Lipschitz {segments(unit).lipschitz:.2f}, "
            f"nearest {nearest.name}{slope} at {nearest.distance:.2f}, "
            f"segments without inputs: {', '.join(visits.dead_segments) or 'none'}"
        )


def plot_errors() -> Figure:
    """The largest error on [−3, 3] for more and more hinges, on logarithmic axes."""
    functions = {"tanh": torch.tanh, "ELU": F.elu, "sin": torch.sin, "x²": torch.square}
    hinge_counts = [2**k - 1 for k in range(2, 9)]
    figure, axis = pyplot.subplots(figsize=(4.8, 3.4), layout="constrained")
    colours = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")
    rate = [(6 / (count + 1)) ** 2 / 8 for count in hinge_counts]
    axis.loglog(hinge_counts, rate, color="#DDDDDD", linewidth=6, label="h²/8")
    for (name, f), colour, mark in zip(functions.items(), colours, "os^D", strict=True):
        errors = [fit(f, -3, 3, count).max_error for count in hinge_counts]
        axis.loglog(hinge_counts, errors, color=colour, marker=mark, markersize=4, label=name)
        print(f"{name}: error {errors[0]:.2g} with 3 hinges, {errors[-1]:.2g} with 255")
    axis.set_xticks(hinge_counts, [str(count) for count in hinge_counts], minor=False)
    axis.minorticks_off()
    axis.set_xlabel("hinges S")
    axis.set_ylabel("largest error on [−3, 3]")
    axis.legend(frameon=False, fontsize=9)
    axis.spines[["top", "right"]].set_visible(False)
    return figure


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=Path("pictures"))
    parser.add_argument("--epochs", type=int, default=30)
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)

    torch.manual_seed(0)
    x, y, test_x, test_y = digits()
    model = network()
    shapes = train(model, x, y, options.epochs)
    model.eval()
    errors = int((model(test_x).argmax(1) != test_y).sum())
    print(f"test error {100 * errors / len(test_y):.1f} % after {options.epochs} epochs")

    describe(model, test_x)
    plot(model, test_x, options.folder / "shapes.png", title="What three layers learned")
    plot(shapes, path=options.folder / "evolution.png", title="How they came to be")
    plot_errors().savefig(options.folder / "errors.png", dpi=130)


if __name__ == "__main__":
    main()
