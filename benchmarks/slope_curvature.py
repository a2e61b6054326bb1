"""Why shared slopes diverge: how curved the loss is along them, and up to which learning rate.

    python benchmarks/slope_curvature.py [mlp lenet5 resnet20 ...] [--batch 24] [--share channel]

For a network at its start, and one batch: the Hessian of the loss with respect to all slopes, from
differences of gradients; only its largest eigenvalue, by power iteration, where channels have their
own slopes and it would be too large.

SGD with momentum m moves along an eigenvector of curvature c without growing while rate * c is
below 2(1 + m), and with Nesterov's momentum below 2(1 + m)/(1 + 2m). A rule that scales the
gradients of unit u by s_u makes sqrt(s) H sqrt(s) of the matrix H.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from keeping import keep
from slopes import CPU, RULES, elements_that_share
from torch import Tensor, nn
from torch.nn import functional as F

from splash_units import Splash
from splash_units.lab import data
from splash_units.lab.assembly import build_network, laid_out, network_arguments
from splash_units.lab.process import own_settings
from splash_units.lab.recipes import Recipe, recipe
from splash_units.lab.spec import TrainSpec

RESULTS = Path(__file__).parent / "results" / "slope_curvature.json"
DIFFERENCE = 1e-2  # in a slope: large beside float32's rounding, small beside the hinges' distance


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("models", nargs="*", default=["mlp", "lenet5", "resnet20"])
    parser.add_argument("--batch", type=int, default=24)
    parser.add_argument("--share", default="layer", choices=["layer", "channel"])
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    measure = by_hessian if arguments.share == "layer" else by_iteration
    with own_settings(CPU, 1):
        numbers = {model: measure(model, arguments.batch) for model in arguments.models}
        keep(arguments.results, numbers)
    for model, found in numbers.items():
        print(model, found["largest_rate"])


@dataclass(frozen=True)
class Start:
    """A network at its start with a batch, and the slopes of its units in order."""

    network: nn.Module
    x: Tensor
    y: Tensor
    slopes: tuple[Tensor, ...]
    sharing: tuple[int, ...]
    recipe: Recipe

    def gradients(self) -> tuple[Tensor, ...]:
        loss = F.cross_entropy(self.network(self.x), self.y)
        return torch.autograd.grad(loss, self.slopes)

    def gradients_at(self, steps: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The gradients where every slope has moved by its step; the slopes end as they were."""
        before = [a.detach().clone() for a in self.slopes]
        with torch.no_grad():
            for a, step in zip(self.slopes, steps, strict=True):
                a += step
            with torch.enable_grad():
                there = self.gradients()
            for a, value in zip(self.slopes, before, strict=True):
                a.copy_(value)
        return there


def start(model: str, batch: int, share: str) -> Start:
    options = {"grad_scale": 1.0, **({} if share == "layer" else {"share": share})}
    name = "mnist" if model == "mlp" else "cifar-10"
    spec = TrainSpec(model=model, data=name, unit_options=options)
    images = data.load(name)
    network = laid_out(build_network(spec, network_arguments(images)))
    x, y = next(iter(data.batches(images.train_images, images.train_labels, batch)))
    sharing = sharing_of(network.eval(), x)
    network.train()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.eval()  # chance would drown the differences
    units = [module for module in network.modules() if isinstance(module, Splash)]
    slopes = tuple(a for unit in units for a in (unit.a_pos, unit.a_neg))
    return Start(network, x, y, slopes, tuple(sharing), recipe(model, name))


def by_hessian(model: str, batch: int) -> dict[str, Any]:
    """Each unit's curvature, and the largest learning rate that each rule would stand."""
    given = start(model, batch, "layer")
    gradient, matrix = hessian(given)
    size = len(matrix) // len(given.sharing)
    blocks = [slice(i * size, (i + 1) * size) for i in range(len(given.sharing))]
    return {
        "batch": batch,
        "learning_rate": given.recipe.lr,
        "sharing": given.sharing,
        "gradient": [round(float(gradient[block].norm()), 4) for block in blocks],
        "curvature": [round(largest(matrix[block, block]), 4) for block in blocks],
        "largest_rate": {
            name: round(limit(given.recipe) / largest(scaled(matrix, size, scales)), 4)
            for name, scales in scalings(given.sharing).items()
        },
    }


def by_iteration(model: str, batch: int) -> dict[str, Any]:
    """The largest learning rate that each rule would stand if every channel had its own slopes."""
    given = start(model, batch, "channel")
    return {
        "batch": batch,
        "learning_rate": given.recipe.lr,
        "sharing": given.sharing,
        "largest_rate": {
            name: round(limit(given.recipe) / largest_by_iteration(given, scales), 4)
            for name, scales in scalings(given.sharing).items()
            if name in ("literal", "1/sqrt(n)", "3/sqrt(n)")
        },
    }


def scalings(sharing: Sequence[int]) -> dict[str, list[float]]:
    """The scale of every unit by each rule that has one."""
    plain = [r for r in RULES if r.factor is not None and r.clip is None and r.adam is None]
    return {rule.name: [rule.scale(n) for n in sharing] for rule in plain}


def sharing_of(network: nn.Module, x: Tensor) -> list[int]:
    """For every unit, in the order of the network, how many elements of a sample share a slope."""
    found: list[int] = []
    units = [module for module in network.modules() if isinstance(module, Splash)]

    def note(unit: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        assert isinstance(unit, Splash)
        found.append(elements_that_share(unit, inputs[0]))

    hooks = [unit.register_forward_pre_hook(note) for unit in units]
    with torch.inference_mode():
        network(x[:2])
    for hook in hooks:
        hook.remove()
    return found


def hessian(given: Start) -> tuple[Tensor, Tensor]:
    """The gradient and the Hessian of the loss with respect to all slopes, unit by unit."""

    def flat(gradients: Sequence[Tensor]) -> Tensor:
        return torch.cat([g.flatten() for g in gradients]).double()

    here = flat(given.gradients())
    count = len(here)
    rows = []
    for i in range(count):
        step = DIFFERENCE * F.one_hot(torch.tensor(i), count).float()
        parts = step.split([a.numel() for a in given.slopes])
        moved = given.gradients_at([p.view_as(a) for p, a in zip(parts, given.slopes, strict=True)])
        rows.append((flat(moved) - here) / DIFFERENCE)
    matrix = torch.stack(rows)
    return here, (matrix + matrix.T) / 2


def largest_by_iteration(given: Start, scales: Sequence[float], rounds: int = 24) -> float:
    """The largest eigenvalue of the scaled Hessian, by power iteration on differences.

    After a third of the rounds the matrix is shifted by what looks largest by then: the most
    negative eigenvalue would win otherwise, if it is larger in size.
    """
    roots = [scale**0.5 for scale in scales for _ in ("a_pos", "a_neg")]
    chance = torch.Generator().manual_seed(0)
    direction = [torch.randn(a.shape, generator=chance) for a in given.slopes]
    here, shift, found = given.gradients(), 0.0, 0.0
    for i in range(rounds):
        length = norm(direction)
        direction = [d / length for d in direction]
        steps = [root * d for root, d in zip(roots, direction, strict=True)]
        size = DIFFERENCE / max(float(step.abs().max()) for step in steps)
        there = given.gradients_at([size * step for step in steps])
        image = [root * (b - a) / size for root, a, b in zip(roots, here, there, strict=True)]
        found = sum(float((d * h).sum()) for d, h in zip(direction, image, strict=True))
        if i == rounds // 3:
            shift = norm(image)
        direction = [h + shift * d for h, d in zip(image, direction, strict=True)]
    return found


def norm(tensors: Sequence[Tensor]) -> float:
    return float(sum(t.square().sum() for t in tensors)) ** 0.5


def scaled(hessian: Tensor, size: int, scales: list[float]) -> Tensor:
    root = torch.tensor(scales, dtype=hessian.dtype).sqrt().repeat_interleave(size)
    return root.unsqueeze(1) * hessian * root


def largest(matrix: Tensor) -> float:
    return float(torch.linalg.eigvalsh(matrix)[-1])


def limit(how: Recipe) -> float:
    """What rate times curvature must stay below with the recipe's momentum."""
    plain = 2 * (1 + how.momentum)
    return plain / (1 + 2 * how.momentum) if how.nesterov else plain


if __name__ == "__main__":
    main()
