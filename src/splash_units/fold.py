"""A trained network for deployment: each unit as the cheapest module that computes the same.

"The same" is meant to the last bit: a slope that is only nearly that of a ReLU stays what it is.
"""

import copy as copying
from typing import TypeGuard, TypeVar, cast

import torch
from torch import Tensor, nn

from splash_units.conversion.installing import hand_over_hooks
from splash_units.rivals import PReLU
from splash_units.unit import Splash, shared_splash

Network = TypeVar("Network", bound=nn.Module)


class FoldedSplash(nn.Module):
    """A SPLASH unit without parameters: its slopes are buffers, and hinges without a corner go."""

    a_pos: Tensor
    a_neg: Tensor
    hinges: Tensor

    def __init__(
        self, a_pos: Tensor, a_neg: Tensor, hinges: Tensor, share: str = "layer", dim: int = 1
    ) -> None:
        super().__init__()
        self.share, self.dim = share, dim
        for name, tensor in (("a_pos", a_pos), ("a_neg", a_neg), ("hinges", hinges)):
            self.register_buffer(name, tensor.detach().clone())

    def forward(self, x: Tensor) -> Tensor:
        return shared_splash(x, self.a_pos, self.a_neg, self.hinges, self.share, self.dim, 1.0)

    def extra_repr(self) -> str:
        shared = "" if self.share == "layer" else f", share={self.share!r}, dim={self.dim}"
        return f"hinges={tuple(round(b, 4) for b in self.hinges.tolist())}{shared}"


def fold(model: Network, *, copy: bool = True) -> Network:
    """Replace each SPLASH unit by Identity, ReLU, LeakyReLU, PReLU or a SPLASH without parameters.

    Outputs and their gradients with respect to inputs stay; slopes can't be trained any more. A
    copy of the model is folded unless `copy` is False. Tied units stay tied, and hooks stay.
    """
    folded = copying.deepcopy(model) if copy else model
    made: dict[Splash, nn.Module] = {}

    def cheapest(unit: Splash) -> nn.Module:
        if unit not in made:
            made[unit] = _cheapest(unit).train(unit.training)
            hand_over_hooks(unit, made[unit])
        return made[unit]

    if _is_plain(folded):
        return cast(Network, cheapest(folded))
    for module in list(folded.modules()):
        for name, child in module._modules.items():
            if _is_plain(child):
                module._modules[name] = cheapest(child)
    return folded


def _is_plain(module: object) -> TypeGuard[Splash]:
    return type(module) is Splash  # a subclass may compute something else


@torch.no_grad()
def _cheapest(unit: Splash) -> nn.Module:
    a_pos, a_neg, hinges, share = unit.a_pos.data, unit.a_neg.data, unit.hinges, unit.share
    if all(_is_alike_everywhere(a) for a in (a_pos, a_neg)):
        a_pos, a_neg, share = _rows(a_pos)[:, 0], _rows(a_neg)[:, 0], "layer"
    corners = (_rows(a_pos) != 0).any(1) | (_rows(a_neg) != 0).any(1)
    corners[0] = True  # where h is grounded
    a_pos, a_neg, hinges = a_pos[corners], a_neg[corners], hinges[corners]

    left = -a_neg[0]  # the slope left of zero
    if len(hinges) == 1 and bool((a_pos == 1).all()) and share != "unit":
        if share == "layer":
            return _one_slope(left.item())
        if bool((left != 0).all()):  # PReLU makes NaN of 0·(−∞), where a unit is 0
            return _prelu(left, unit.dim)
    return FoldedSplash(a_pos, a_neg, hinges, share, unit.dim)


def _one_slope(left: float) -> nn.Module:
    if left == 1:
        return nn.Identity()
    return nn.ReLU() if left == 0 else nn.LeakyReLU(left)


def _is_alike_everywhere(a: Tensor) -> bool:
    return bool((_rows(a) == _rows(a)[:, :1]).all())


def _rows(a: Tensor) -> Tensor:
    """Slopes as (hinges, features), with one feature for a whole layer."""
    return a.reshape(len(a), -1)


def _prelu(slopes: Tensor, dim: int) -> PReLU:
    prelu = PReLU(len(slopes), dim=dim)
    prelu.weight = nn.Parameter(slopes.clone(), requires_grad=False)
    return prelu
