"""What a training begins with when its spec names a source: that run's shapes, or its weights.

`shapes`: every unit gets the shape that the source's unit in its place ended with, and keeps it;
kernels and batch norms start afresh. This is the paper's "fixed SPLASH", which says no more of it:
every layer keeps its own shape here, where one shape averaged over layers would be another reading.

`weights`: kernels and batch norms are the source's. A unit's own parameters are, too, if both specs
have the same unit; otherwise the units start as they do. SPLASH units start as ReLU, so a trained
ReLU network with SPLASH units in it gives the same bits as before, until it is trained.
"""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from splash_units.lab.assembly import constants_of, goes_on_as_another, slopes_of, units_of
from splash_units.lab.spec import TrainSpec
from splash_units.unit import BatchNormSplash

_LAYERS = (nn.modules.conv._ConvNd, nn.Linear)
_NORMS = (nn.modules.batchnorm._BatchNorm, BatchNormSplash)
_OF_A_NORM = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")


def inherit(network: nn.Module, spec: TrainSpec, source: nn.Module) -> None:
    """Give a fresh network what its spec takes from the source's trained network."""
    assert spec.source is not None
    if spec.take == "shapes":
        take_shapes(network, source)
        return
    take_weights(network, source)
    if not goes_on_as_another(spec):
        _copy(slopes_of(network), slopes_of(source), "slopes")


def take_shapes(network: nn.Module, source: nn.Module) -> None:
    """Every unit's final shape, for good: its parameters ask for no gradient any more."""
    slopes = slopes_of(source)
    if not slopes:
        raise ValueError("the source has no units that learn a shape, so there is none to take")
    hinges, wanted = constants_of(network), constants_of(source)
    for name in hinges.keys() & wanted.keys():
        if not torch.equal(hinges[name], wanted[name]):
            raise ValueError(
                f"the shapes cannot be taken: {name} is {hinges[name].tolist()}, "
                f"the source's is {wanted[name].tolist()}"
            )
    _copy(slopes_of(network), slopes, "slopes")
    for unit in units_of(network).values():
        for name, parameter in unit.named_parameters(recurse=False):
            if not (isinstance(unit, BatchNormSplash) and name in _OF_A_NORM):
                parameter.requires_grad_(False)


def take_weights(network: nn.Module, source: nn.Module) -> None:
    """All kernels and batch norms.

    Norms are matched by their order: fused with a unit they have another name than in front of one.
    """
    _copy(_kernels(network), _kernels(source), "kernels")
    _copy(_norms(network), _norms(source), "batch norms")


def _kernels(network: nn.Module) -> dict[str, Tensor]:
    layers = {name: m for name, m in network.named_modules() if isinstance(m, _LAYERS)}
    return {
        f"{name}.{key}": value
        for name, layer in layers.items()
        for key, value in layer.named_parameters(recurse=False)
    }


def _norms(network: nn.Module) -> dict[str, Tensor]:
    norms = [module for module in network.modules() if isinstance(module, _NORMS)]
    return {
        f"norm {place}.{name}": value
        for place, norm in enumerate(norms, 1)
        for name in _OF_A_NORM
        if (value := getattr(norm, name, None)) is not None
    }


@torch.no_grad()
def _copy(into: Mapping[str, Tensor], values: Mapping[str, Tensor], what: str) -> None:
    """Copy by name, if names and shapes are the same on both sides."""
    if into.keys() != values.keys():
        odd = sorted(into.keys() ^ values.keys())
        raise ValueError(
            f"the {what} cannot be taken: network and source are built differently "
            f"({', '.join(odd[:3])}{', ...' if len(odd) > 3 else ''})"
        )
    for name, value in values.items():
        if into[name].shape != value.shape:
            raise ValueError(
                f"the {what} cannot be taken: {name} has shape {tuple(into[name].shape)}, "
                f"the source's has {tuple(value.shape)}"
            )
    for name, value in values.items():
        into[name].copy_(value)
