"""Putting units into a network, with everything that belonged to what they replace."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from splash_units.conversion.plan import Plan, Site
from splash_units.conversion.rewriting import rewrite

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
    "_is_full_backward_hook",
)


def install(network: nn.Module, plan: Plan, units: Sequence[nn.Module]) -> nn.Module:
    """Put a unit at each site of the plan; the network, or the unit if it was one activation."""
    replaced = {
        site.takes_over: network.get_submodule(site.takes_over)
        for site in plan.sites
        if site.takes_over is not None
    }
    for site, unit in zip(plan.sites, units, strict=True):
        old = None if site.takes_over is None else replaced[site.takes_over]
        place = old if old is not None else network.get_submodule(site.slots[0].module)
        unit.train(place.training)
        neighbour = _neighbour(network, site, old)
        if neighbour is not None:
            unit.to(neighbour.device, neighbour.dtype)
        if old is not None:
            hand_over_hooks(old, unit)
    for site, unit in zip(plan.sites, units, strict=True):
        for slot in site.slots:
            if not slot.name:
                return unit
            _put(network.get_submodule(slot.module), slot.name, unit)
    for path, traced in plan.rewritten.items():
        rewrite(network.get_submodule(path), traced)
    _leave_fused_transformers(network, units)
    return network


def _put(owner: nn.Module, name: str, unit: nn.Module) -> None:
    vars(owner).pop(name, None)  # a function that was an attribute
    owner._modules[name] = unit


def _neighbour(network: nn.Module, site: Site, old: nn.Module | None) -> Tensor | None:
    """A tensor that says which device and dtype belong to a place: the nearest that floats."""
    path = site.slots[0].module
    candidates = [] if old is None else [old]
    while True:
        candidates.append(network.get_submodule(path))
        if not path:
            break
        path = path.rpartition(".")[0]
    for module in candidates:
        for tensor in (*module.parameters(), *module.buffers()):
            if tensor.is_floating_point():
                return tensor
    return None


def hand_over_hooks(old: nn.Module, unit: nn.Module) -> None:
    """The same dictionaries, so that handles that were given out still remove their hooks."""
    for name in _HOOKS:
        if getattr(old, name, None):
            setattr(unit, name, getattr(old, name))


def has_hooks(module: nn.Module) -> bool:
    """Whether someone wants to hear when the module is called."""
    return any(getattr(module, name, None) for name in _HOOKS)


def _leave_fused_transformers(network: nn.Module, units: Sequence[nn.Module]) -> None:
    """torch's transformer layers have a fused path for inference, with an activation of its own."""
    known = set(map(id, units))
    for layer in network.modules():
        if isinstance(layer, nn.TransformerEncoderLayer) and id(layer.activation) in known:
            layer.activation_relu_or_gelu = 0
    for stack in network.modules():
        if isinstance(stack, nn.TransformerEncoder) and not all(
            getattr(layer, "activation_relu_or_gelu", 0) for layer in stack.layers
        ):
            stack.use_nested_tensor = False


class Probe(nn.Module):
    """An activation that remembers the shape of its input."""

    def __init__(self, activation: nn.Module) -> None:
        super().__init__()
        self.activation = activation
        self.shape: torch.Size | None = None

    def forward(self, x: Tensor) -> Tensor:
        self.shape = x.shape
        y: Tensor = self.activation.forward(x)
        return y
