"""A unit of one's own for the lab: a plugin, and the study `own_unit.toml` that compares it.

    splash run examples/own_unit.toml --plugin examples/own_unit.py
    splash table examples/own_unit.toml --plugin examples/own_unit.py

trains LeNet5 with four units on scikit-learn's digits, three seeds each, attacks every network, and
prints errors, tests between the units, and successes of the attack.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from splash_units import catalogue


class Snake(nn.Module):
    """x + sin²(f·x)/f with a learned frequency f (Ziyin et al. 2020)."""

    def __init__(self, frequency: float) -> None:
        super().__init__()
        self.frequency = nn.Parameter(torch.tensor(float(frequency)))

    def forward(self, x: Tensor) -> Tensor:
        return x + torch.sin(self.frequency * x) ** 2 / self.frequency


def build(features: Sequence[int], dim: int, *, frequency: float = 1.0) -> nn.Module:
    """What the catalogue calls for every layer; the options are those a study file may give."""
    if not frequency > 0:
        raise ValueError(f"snake: frequency must be positive, got {frequency}")
    return Snake(frequency)


catalogue.register("snake", build, replace=True)

if __name__ == "__main__":
    print(f"registered beside {', '.join(catalogue.names()[:3])} and others: snake")
    print("compare it: splash run examples/own_unit.toml --plugin examples/own_unit.py")
