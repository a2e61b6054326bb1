"""The activations of torch that a SPLASH unit can take over, as modules and as functions.

A unit is grounded, h(0) = 0, and piecewise linear. Where the activation is both, :func:`pieces_of`
gives its segments exactly; where it is smooth, :func:`asymptotes_of` gives the two lines it tends
to, and the rest is a fit.
"""

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Change = float | Tensor


@dataclass(frozen=True)
class Pieces:
    """(hinge, change of slope) going out from zero: the aₛ of a unit at the hinges bₛ it needs.

    A change of slope is a number, or a vector with one number for each channel. Hinges are float32
    numbers, as a unit keeps them.
    """

    right: tuple[tuple[float, Change], ...] = ()
    left: tuple[tuple[float, Change], ...] = ()

    @property
    def hinges(self) -> tuple[float, ...]:
        """The positive hinges without which these pieces can't be had."""
        return tuple(sorted({b for b, _ in (*self.right, *self.left) if b > 0}))

    @property
    def channels(self) -> int | None:
        """The number of channels that have pieces of their own; None if all share them."""
        vectors = [a for _, a in (*self.right, *self.left) if isinstance(a, Tensor)]
        return len(vectors[0]) if vectors else None


@dataclass(frozen=True)
class Asymptotes:
    """(slope, intercept) of the lines that a smooth activation tends to at −∞ and +∞."""

    left: tuple[float, float]
    right: tuple[float, float]


class NotGroundedError(ValueError):
    """An activation that isn't 0 at 0, which no SPLASH unit can be."""


def _hardtanh(activation: Any) -> Pieces:
    low, high = torch.tensor([activation.min_val, activation.max_val]).float().tolist()
    if not low <= 0.0 <= high:
        raise NotGroundedError(f"it is {low if low > 0 else high:g} at 0, where a unit is 0")
    right = ((0.0, 1.0), (high, -1.0)) if high > 0 else ()
    left = ((0.0, -1.0), (-low, 1.0)) if low < 0 else ()
    return Pieces(right, left)


def _prelu(activation: Any) -> Pieces:
    weight = activation.weight.detach().double().cpu()
    return Pieces(((0.0, 1.0),), ((0.0, -weight.item() if len(weight) == 1 else -weight),))


_PIECES: Mapping[type[nn.Module], Callable[[Any], Pieces]] = {
    nn.ReLU: lambda _: Pieces(((0.0, 1.0),)),
    nn.ReLU6: _hardtanh,
    nn.Hardtanh: _hardtanh,
    nn.LeakyReLU: lambda a: Pieces(((0.0, 1.0),), ((0.0, -float(a.negative_slope)),)),
    nn.PReLU: _prelu,
}

_RECTIFIED = Asymptotes(left=(0.0, 0.0), right=(1.0, 0.0))


def _saturating_left(alpha: float, scale: float = 1.0) -> Asymptotes:
    return Asymptotes(left=(0.0, -scale * alpha), right=(scale, 0.0))


_ASYMPTOTES: Mapping[type[nn.Module], Callable[[Any], Asymptotes]] = {
    nn.GELU: lambda _: _RECTIFIED,
    nn.SiLU: lambda _: _RECTIFIED,
    nn.Mish: lambda _: _RECTIFIED,
    nn.Hardswish: lambda _: _RECTIFIED,
    nn.ELU: lambda a: _saturating_left(float(a.alpha)),
    nn.CELU: lambda a: _saturating_left(float(a.alpha)),
    # The constants of Klambauer et al. 2017, as torch has them.
    nn.SELU: lambda _: _saturating_left(1.6732632423543772, scale=1.0507009873554805),
    nn.Tanh: lambda _: Asymptotes(left=(0.0, -1.0), right=(0.0, 1.0)),
}

EXACT: tuple[type[nn.Module], ...] = tuple(_PIECES)
FITTED: tuple[type[nn.Module], ...] = tuple(_ASYMPTOTES)
KNOWN = EXACT + FITTED


def pieces_of(activation: nn.Module) -> Pieces | None:
    """The segments of a piecewise linear activation; None if it is smooth."""
    describe = _PIECES.get(type(activation))
    return None if describe is None else describe(activation)


def asymptotes_of(activation: nn.Module) -> Asymptotes:
    """The lines that a smooth activation tends to."""
    return _ASYMPTOTES[type(activation)](activation)


def works_in_place(activation: nn.Module) -> bool:
    """Whether it overwrites its input, so that later readers of that tensor see its output."""
    return bool(getattr(activation, "inplace", False))


def _in_place(kind: type[nn.Module]) -> Callable[..., nn.Module]:
    def make(*arguments: Any, **options: Any) -> nn.Module:
        activation = kind(*arguments, **options)
        setattr(activation, "inplace", True)  # noqa: B010 - some modules don't have it
        return activation

    return make


# Called with a function's arguments after the input, each gives the module that computes the same.
# There are no clamps here, not even max(0, x): most guard a range that must not be learned away.
_FUNCTIONS: Mapping[Callable[..., Any], Callable[..., nn.Module]] = {
    F.relu: nn.ReLU,
    F.relu6: nn.ReLU6,
    F.leaky_relu: nn.LeakyReLU,
    F.leaky_relu_: _in_place(nn.LeakyReLU),
    F.prelu: nn.PReLU,  # is only found to be left: its slope is a tensor of the network
    F.hardtanh: nn.Hardtanh,
    F.hardtanh_: _in_place(nn.Hardtanh),
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
    F.mish: nn.Mish,
    F.hardswish: nn.Hardswish,
    F.elu: nn.ELU,
    F.elu_: _in_place(nn.ELU),
    F.celu: nn.CELU,
    F.selu: nn.SELU,
    F.tanh: nn.Tanh,
    torch.relu: nn.ReLU,
    torch.relu_: _in_place(nn.ReLU),
    torch.celu: nn.CELU,
    torch.celu_: _in_place(nn.CELU),
    torch.selu: nn.SELU,
    torch.selu_: _in_place(nn.SELU),
    torch.tanh: nn.Tanh,
    torch.tanh_: _in_place(nn.Tanh),
}

_METHODS: Mapping[str, Callable[..., nn.Module]] = {
    "relu": nn.ReLU,
    "relu_": _in_place(nn.ReLU),
    "tanh": nn.Tanh,
    "tanh_": _in_place(nn.Tanh),
}


def module_for(
    function: Any, arguments: tuple[Any, ...] = (), options: Mapping[str, Any] | None = None
) -> nn.Module | None:
    """The module that computes what a function of torch, or a method of a tensor, computes.

    `arguments` and `options` are those after the input; None if it isn't an activation.
    """
    if isinstance(function, partial):
        arguments, options = (*function.args, *arguments), {**function.keywords, **(options or {})}
        function = function.func
    known: Any = _METHODS if isinstance(function, str) else _FUNCTIONS
    make = known.get(function) if isinstance(function, Hashable) else None
    return None if make is None else make(*arguments, **(options or {}))
