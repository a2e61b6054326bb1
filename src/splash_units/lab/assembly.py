"""From a spec or a run to a network and its optimizer, and all their state by name."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from splash_units import catalogue
from splash_units.lab import models
from splash_units.lab.data import DataSet
from splash_units.lab.plan import Plan
from splash_units.lab.spec import TrainSpec, stream_seed
from splash_units.lab.store import Run
from splash_units.parameters import SLOPES, parameter_groups
from splash_units.unit import Splash

FEWEST_CHANNELS = 16


def network_arguments(images: DataSet) -> dict[str, Any]:
    """What a network must know of its data set; kept with a run, to build it without the data."""
    return {
        "num_classes": images.num_classes,
        "in_channels": images.channels,
        "image_size": images.image_size,
        "mean": images.mean,
        "std": images.std,
    }


def build_network(spec: TrainSpec, arguments: Mapping[str, Any]) -> nn.Module:
    """The network of a spec at its start, which depends on the seed alone.

    It is drawn on the CPU, so that every device starts from the same values.
    """
    unit = catalogue.unit(spec.unit, **spec.unit_options)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(stream_seed(spec.seed, "start"))
        options = {**arguments, "fused": not goes_on_as_another(spec), **spec.model_options}
        return models.build(spec.model, unit, **options)


def goes_on_as_another(spec: TrainSpec) -> bool:
    """Whether a training goes on with the weights of a network that had another unit.

    Then batch norms stay modules of their own, as they are with ReLU: fused with the unit they
    round differently, and the network would not start with its source's bits.
    """
    if spec.source is None or spec.take != "weights":
        return False
    return (spec.unit, spec.unit_options) != (spec.source.unit, spec.source.unit_options)


def load_network(run: Run) -> nn.Module:
    """The trained network of a run, in eval mode, without its data set."""
    network = build_network(run.spec(), run.record()["network_arguments"])
    network.load_state_dict(run.model())
    return network.eval()


def wants_channels_last(network: nn.Module) -> bool:
    """Whether convolutions run faster with each pixel's channels side by side.

    They do (ResNet-20 by a seventh on a CPU), but torch's batch norm is slow on few channels that
    way, which makes LeNet5 with its six channels slower by two fifths on two threads.
    """
    convolutions = [m for m in network.modules() if isinstance(m, nn.Conv2d)]
    return min((layer.out_channels for layer in convolutions), default=0) >= FEWEST_CHANNELS


def laid_out(network: nn.Module) -> nn.Module:
    """The network with its kernels in the layout that it wants."""
    if wants_channels_last(network):
        network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def build_optimizer(spec: TrainSpec, planned: Plan, network: nn.Module) -> torch.optim.Optimizer:
    """SGD as the recipe has it, or Adam: decay on kernels only, slopes with their own factor."""
    recipe = planned.recipe
    # SPLASH units are known to it by themselves, with batch norm or without.
    kinds = {type(unit) for unit in units_of(network).values() if not isinstance(unit, Splash)}
    groups = parameter_groups(
        network,
        recipe.weight_decay,
        lr=recipe.lr,
        slope_lr=spec.slope_lr,
        activations=tuple(kinds),
    )
    fused = next(network.parameters()).device.type in {"cpu", "cuda"}
    if spec.optimizer == "adam":
        return torch.optim.Adam(groups, lr=recipe.lr, fused=fused)
    return torch.optim.SGD(
        groups, lr=recipe.lr, momentum=recipe.momentum, nesterov=recipe.nesterov, fused=fused
    )


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float, slope_lr: float) -> None:
    """Give every group the schedule's learning rate, and slopes their factor of it."""
    for group in optimizer.param_groups:
        group["lr"] = lr * slope_lr if group["name"] == "slopes" else lr


def state_of(network: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Every tensor of network and optimizer, by name."""
    tensors = {f"network/{name}": value for name, value in network.state_dict().items()}
    for name, parameter in network.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                tensors[f"optimizer/{name}/{key}"] = value
    return tensors


def restore(
    network: nn.Module, optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor]
) -> None:
    """Put back what `state_of` gave, with the memory layout that the parameters have."""
    parameters = dict(network.named_parameters())
    of_network: dict[str, Tensor] = {}
    for key, value in tensors.items():
        owner, _, name = key.partition("/")
        if owner == "network":
            of_network[name] = value
            continue
        name, _, kind = name.partition("/")
        parameter = parameters[name]
        like = parameter if value.shape == parameter.shape else value
        optimizer.state[parameter][kind] = torch.empty_like(like).copy_(value)
    network.load_state_dict(of_network)


def units_of(network: nn.Module) -> dict[str, nn.Module]:
    """The modules that learn a shape, by name: those with parameters, but layers and norms."""
    layers = (nn.modules.conv._ConvNd, nn.Linear, nn.modules.batchnorm._BatchNorm)
    return {
        name: module
        for name, module in network.named_modules()
        if not isinstance(module, layers) and any(True for _ in module.parameters(recurse=False))
    }


def slopes_of(network: nn.Module) -> dict[str, Tensor]:
    """The parameters of every unit in the network, by name."""
    return {
        f"{name}.{key}": value
        for name, module in units_of(network).items()
        for key, value in module.named_parameters(recurse=False)
        # Fused with batch norm, a SPLASH unit has a weight and a bias, too.
        if not isinstance(module, Splash) or key in SLOPES
    }


def constants_of(network: nn.Module) -> dict[str, Tensor]:
    """The hinges of every SPLASH unit in the network, by name."""
    return {
        f"{name}.hinges": module.hinges
        for name, module in units_of(network).items()
        if isinstance(module, Splash)
    }


def snapshot(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Copies that stay as they are while the network trains on."""
    return {name: t.detach().to("cpu", torch.float32, copy=True) for name, t in tensors.items()}
