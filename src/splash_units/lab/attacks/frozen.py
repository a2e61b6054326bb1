"""A network while it is attacked: in eval mode, its weights fixed, and cheaper for it.

Weights that ask for gradients cost a backward pass up to 1.6 times its price. On a CPU, max-pools
(`pools`), batch norms and convolutions to a few channels (`narrow`) are had for less meanwhile; the
logits are the network's own, bit for bit. What an attack of more than one step claims is checked by
the network's own layers all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from splash_units.lab.attacks.narrow import cheaper_chains
from splash_units.lab.attacks.pools import Forward, halves, max_pool

Model = Callable[[Tensor], Tensor]
"""Any callable that takes images in [0, 1], shape (N, C, H, W), to logits, shape (N, classes)."""

FEWEST_CHANNELS = 16


@contextmanager
def frozen(model: Model) -> Iterator[None]:
    """A module at rest and hurried; a callable that is not a module is left alone."""
    with at_rest(model), hurried(model):
        yield


@contextmanager
def at_rest(model: Model) -> Iterator[None]:
    """Put a module in eval mode without gradients for its weights, then restore it exactly."""
    if not isinstance(model, nn.Module):
        yield
        return
    modes = [(module, module.training) for module in model.modules()]
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    try:
        model.eval()
        for parameter in trainable:
            parameter.requires_grad_(False)
        yield
    finally:
        for module, training in modes:
            module.training = training
        for parameter in trainable:
            parameter.requires_grad_(True)


@contextmanager
def hurried(model: Model) -> Iterator[None]:
    """Let a module at rest have its cheaper layers, then give it back its own."""
    replaced: list[nn.Module] = []
    try:
        for module, forward in cheaper_layers(model) if isinstance(model, nn.Module) else ():
            module.forward = forward
            replaced.append(module)
        yield
    finally:
        for module in replaced:
            del module.forward


def layout_of(model: Model) -> torch.memory_format:
    """How images should lie in memory for a network: channels_last if its convolutions are wide.

    With few channels side by side torch's batch norm and standardisation are slow on a CPU.
    """
    if not isinstance(model, nn.Module):
        return torch.contiguous_format
    channels = [m.out_channels for m in model.modules() if isinstance(m, nn.Conv2d)]
    wide = min(channels, default=0) >= FEWEST_CHANNELS
    return torch.channels_last if wide else torch.contiguous_format


def cheaper_layers(model: nn.Module) -> list[tuple[nn.Module, Forward]]:
    """The modules of a network that can be had for less, and how.

    None of a network that was compiled, which would be compiled anew, and no module whose forward
    somebody has replaced already.
    """
    if any(hasattr(module, "_orig_mod") for module in model.modules()):
        return []
    found = list(cheaper_chains(model))
    for module in model.modules():
        forward = None if "forward" in vars(module) else cheaper_forward(module)
        if forward is not None:
            found.append((module, forward))
    return found


def cheaper_forward(module: nn.Module) -> Forward | None:
    """How a module can be had for less by itself."""
    if type(module) is nn.MaxPool2d and halves(module):
        return max_pool(module)
    if type(module) is nn.BatchNorm1d or type(module) is nn.BatchNorm2d:
        return batch_norm(module) if module.track_running_stats else None
    return None


def batch_norm(module: nn.BatchNorm1d | nn.BatchNorm2d) -> Forward:
    """The forward of a batch norm in eval mode, without what its module asks itself each time.

    On a block of a small network that is half of the time it takes.
    """
    statistics = module.running_mean, module.running_var
    scale, shift, eps = module.weight, module.bias, module.eps
    return lambda x: torch.batch_norm(x, scale, shift, *statistics, False, 0.0, eps, True)
