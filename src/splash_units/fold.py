"""A trained network for deployment: each unit as the cheapest module that computes the same.

"The same" is meant to the last bit: a slope that is only nearly that of a ReLU stays what it is.
"""

import copy as copying
from typing import TypeVar, cast

import torch
from torch import Tensor, nn

from splash_units.conversion.installing import hand_over_hooks
from splash_units.parameters import SLOPES
from splash_units.rivals import PReLU
from splash_units.unit import Splash

Network = TypeVar("Network", bound=nn.Module)


def fold(model: Network, *, copy: bool = True) -> Network:
    """Replace each SPLASH unit by Identity, ReLU, LeakyReLU, PReLU or a SPLASH without parameters.

    Outputs and their gradients with respect to inputs stay; slopes are constants from now on, and
    hinges without a corner are gone. A subclass of `Splash`, `BatchNormSplash` among them, stays
    what it is, with its slopes as buffers. Tied units stay tied, and hooks stay.

    A copy of the model is folded unless `copy` is False.
    """
    network = copying.deepcopy(model) if copy else model
    folded = {unit: _folded(unit) for unit in network.modules() if isinstance(unit, Splash)}
    for module in list(network.modules()):
        for name, child in module._modules.items():
            if isinstance(child, Splash):
                module._modules[name] = folded[child]
    return cast(Network, folded[network]) if isinstance(network, Splash) else network


def _folded(unit: Splash) -> nn.Module:
    if type(unit) is Splash:
        _simplify(unit)
        cheaper = _without_splash(unit)
        if cheaper is not None:
            hand_over_hooks(unit, cheaper)
            return cheaper.train(unit.training)
    for name in SLOPES:
        slopes = getattr(unit, name).detach()
        delattr(unit, name)
        unit.register_buffer(name, slopes)
    unit.grad_scale = 1.0
    return unit


@torch.no_grad()
def _simplify(unit: Splash) -> None:
    """One shape for features that are all alike, and no hinge without a corner."""
    a_pos, a_neg = unit.a_pos.data, unit.a_neg.data
    if _is_alike_everywhere(a_pos) and _is_alike_everywhere(a_neg):
        a_pos, a_neg = _rows(a_pos)[:, 0], _rows(a_neg)[:, 0]
        unit.share, unit.features = "layer", ()
    corners = (_rows(a_pos) != 0).any(1) | (_rows(a_neg) != 0).any(1)
    corners[0] = True  # where h is grounded
    unit.a_pos, unit.a_neg = (nn.Parameter(a[corners]) for a in (a_pos, a_neg))
    unit.hinges = unit.hinges[corners]


@torch.no_grad()
def _without_splash(unit: Splash) -> nn.Module | None:
    """The module of torch that computes the same as a simplified unit, if there is one."""
    if len(unit.hinges) > 1 or unit.share == "unit" or not bool((unit.a_pos == 1).all()):
        return None
    left = -unit.a_neg[0]  # the slope left of zero
    if unit.share == "channel":
        # PReLU makes NaN of 0·(−∞), where a unit is 0.
        return _prelu(left, unit.dim) if bool((left != 0).all()) else None
    if left == 1:
        return nn.Identity()
    return nn.ReLU() if left == 0 else nn.LeakyReLU(left.item())


def _prelu(slopes: Tensor, dim: int) -> PReLU:
    prelu = PReLU(len(slopes), dim=dim)
    prelu.weight = nn.Parameter(slopes.clone(), requires_grad=False)
    return prelu


def _is_alike_everywhere(a: Tensor) -> bool:
    return bool((_rows(a) == _rows(a)[:, :1]).all())


def _rows(a: Tensor) -> Tensor:
    """Slopes as (hinges, features), with one feature for a whole layer."""
    return a.reshape(len(a), -1)
