"""Where the inputs of a network's units fall: histograms kept beside the shapes they belong to."""

import torch
from torch import Tensor, nn

from splash_units.shape.tapping import observe_inputs
from splash_units.unit import Splash

# Batch norm stands before every unit, so nearly all inputs lie within four of its standard
# deviations; what lies outside counts in the outermost bins.
EDGES = torch.linspace(-4, 4, 65)


def input_histograms(network: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """How many inputs of each SPLASH unit fall between EDGES, by name, when it sees the images."""
    if not any(isinstance(module, Splash) for module in network.modules()):
        return {}
    counts: dict[str, Tensor] = {}

    def count(name: str, unit: Splash, x: Tensor) -> None:
        inside = x.float().flatten().cpu().clamp(EDGES[0].item(), EDGES[-1].item())
        here = torch.histc(inside, len(EDGES) - 1, EDGES[0].item(), EDGES[-1].item())
        counts[name] = counts.get(name, torch.zeros_like(here)) + here

    observe_inputs(network, images, count, None)
    return counts
