"""Why shared slopes diverge: how curved the loss is along them, and up to which learning rate.

    python benchmarks/slope_curvature.py [mlp lenet5 resnet20 ...] [--batch 24] [--results FILE]

For a network at its start, and one batch: the Hessian of the loss with respect to all slopes, from
differences of gradients. SGD with momentum m moves along an eigenvector of curvature c without
growing while rate * c < 2(1 + m), and with Nesterov's momentum while rate * c < 2(1 + m)/(1 + 2m).
A rule that scales the gradients of unit u by s_u makes the matrix sqrt(s) H sqrt(s) of H.
"""

import argparse
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
    parser.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with own_settings(CPU, 1):
        numbers = {model: measure(model, arguments.batch) for model in arguments.models}
        keep(arguments.results, numbers)
    for model, found in numbers.items():
        print(model, found["largest_rate"])


def measure(model: str, batch: int) -> dict[str, Any]:
    """Each unit's curvature, and the largest learning rate that each rule would stand."""
    spec = TrainSpec(
        model=model,
        data="mnist" if model == "mlp" else "cifar-10",
        unit_options={"grad_scale": 1.0},
    )
    images = data.load(spec.data)
    network = laid_out(build_network(spec, network_arguments(images)))
    x, y = next(iter(data.batches(images.train_images, images.train_labels, batch)))
    sharing = sharing_of(network.eval(), x)
    network.train()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.eval()  # chance would drown the differences
    gradient, hessian = curvature(network, x, y)
    size = hessian.shape[0] // len(sharing)
    blocks = [slice(i * size, (i + 1) * size) for i in range(len(sharing))]
    how = recipe(model, spec.data)
    return {
        "batch": batch,
        "learning_rate": how.lr,
        "sharing": sharing,
        "gradient": [round(float(gradient[block].norm()), 4) for block in blocks],
        "curvature": [round(largest(hessian[block, block]), 4) for block in blocks],
        "largest_rate": {
            rule.name: round(limit(how) / largest(scaled(hessian, size, scales)), 4)
            for rule in RULES
            if rule.factor is not None and rule.clip is None and rule.adam is None
            for scales in [[rule.scale(n) for n in sharing]]
        },
    }


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


def curvature(network: nn.Module, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The gradient and the Hessian of the loss with respect to all slopes, unit by unit."""
    units = [module for module in network.modules() if isinstance(module, Splash)]
    slopes = [a for unit in units for a in (unit.a_pos, unit.a_neg)]

    def gradient() -> Tensor:
        loss = F.cross_entropy(network(x), y)
        return torch.cat([g.flatten() for g in torch.autograd.grad(loss, slopes)]).double()

    here = gradient()
    rows = []
    for a in slopes:
        for i in range(a.numel()):
            before = a.detach().clone()
            with torch.no_grad():
                a.view(-1)[i] += DIFFERENCE
            rows.append((gradient() - here) / DIFFERENCE)
            with torch.no_grad():
                a.copy_(before)
    hessian = torch.stack(rows)
    return here, (hessian + hessian.T) / 2


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
