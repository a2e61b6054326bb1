"""Give a trained network SPLASH units, fine-tune it, look at what it learned, and fold it.

    python examples/convert_and_finetune.py --pictures docs/pictures

The network is small and its data, scikit-learn's digits, come with scikit-learn, so all of it takes
seconds. Pictures are only made if asked for.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from splash_units import convert, fold, parameter_groups
from splash_units.convert import FITTED
from splash_units.shape import plot


class Digits(nn.Module):
    """A network as anyone may have written it: one ReLU is a module, two are calls."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 12, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(12)
        self.conv2 = nn.Conv2d(12, 24, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(24)
        self.relu = nn.ReLU(inplace=True)
        self.hidden = nn.Linear(24 * 4, 32)
        self.classes = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.norm1(self.conv1(x))), 2)
        x = F.max_pool2d(self.relu(self.norm2(self.conv2(x))), 2)
        x = torch.relu(self.hidden(x.flatten(1)))
        return self.classes(x)


def digits() -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training images and labels, test images and labels; pixels from 0 to 1."""
    images, labels = load_digits(return_X_y=True)
    x = torch.tensor(images / 16, dtype=torch.float32).reshape(-1, 1, 8, 8)
    y = torch.tensor(labels)
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    train, test = order[:1200], order[1200:]
    return x[train], y[train], x[test], y[test]


def train(model: nn.Module, x: Tensor, y: Tensor, epochs: int) -> None:
    # Kernels decay, slopes and biases don't. Slopes learn faster, for so few steps to show.
    groups = parameter_groups(model, weight_decay=5e-4, lr=0.02, slope_lr=10.0)
    optimizer = torch.optim.SGD(groups, momentum=0.9, nesterov=True)
    model.train()
    for _ in range(epochs):
        for batch in torch.randperm(len(x)).split(64):
            optimizer.zero_grad()
            F.cross_entropy(model(x[batch]), y[batch]).backward()
            optimizer.step()
    model.eval()


@torch.no_grad()
def percent_wrong(model: nn.Module, x: Tensor, y: Tensor) -> float:
    return 100 * (model(x).argmax(1) != y).float().mean().item()


def plot_fits(file: Path) -> None:
    """Smooth activations, and the SPLASH units that take them over."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 4, figsize=(11, 5), layout="constrained", sharex=True)
    x = torch.linspace(-5, 5, 1001)
    for axis, kind in zip(axes.flat, FITTED, strict=True):
        unit, report = convert(kind(), from_=FITTED, return_report=True)
        axis.plot(x, kind()(x), color="#BBBBBB", linewidth=5)
        axis.plot(x, unit(x).detach(), color="#0072B2", linewidth=1.5)
        axis.set_title(f"{kind.__name__}: off by at most {report.largest_error:.3f}", fontsize=9)
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=100)
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=5, help="before, and again after")
    parser.add_argument("--pictures", type=Path, help="a folder to write pictures to")
    options = parser.parse_args()

    torch.manual_seed(0)
    x, y, test_x, test_y = digits()
    model = Digits()
    train(model, x, y, options.epochs)
    print(f"trained with ReLU:       test error {percent_wrong(model, test_x, test_y):.2f} %")

    network, report = convert(model, return_report=True, example_inputs=test_x[:8])
    print(f"converted:               test error {percent_wrong(network, test_x, test_y):.2f} %")
    print(report)

    train(network, x, y, options.epochs)
    print(f"fine-tuned:              test error {percent_wrong(network, test_x, test_y):.2f} %")

    folded = fold(network)
    with torch.no_grad():
        off = (folded(test_x) - network(test_x)).abs().max().item()
    print(f"folded:                  test error {percent_wrong(folded, test_x, test_y):.2f} %")
    print(f"largest difference of the folded network's outputs: {off}")

    if options.pictures is not None:
        options.pictures.mkdir(parents=True, exist_ok=True)
        plot(network, test_x, options.pictures / "finetuned.png", title="After fine-tuning")
        plot_fits(options.pictures / "fits.png")


if __name__ == "__main__":
    main()
