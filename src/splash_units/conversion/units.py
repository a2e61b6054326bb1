"""The unit that takes an activation's place, and how far it is from it."""

import copy
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from splash_units.catalogue import Unit
from splash_units.conversion.activations import Change, Pieces, pieces_of
from splash_units.conversion.fitting import SPAN, fitted_pieces, pieces_on
from splash_units.conversion.report import Exactness
from splash_units.starts import default_hinges
from splash_units.unit import Splash

POINTS = 3201  # at which an error is measured, over [−SPAN, SPAN]


@dataclass(frozen=True)
class MadeUnit:
    """A unit, and how it compares with the activation that it was made for."""

    module: nn.Module
    exactness: Exactness
    largest_error: float


@dataclass(frozen=True)
class Recipe:
    """What makes units: `to`, and what to call it with."""

    to: Callable[..., nn.Module]
    arguments: tuple[Any, ...]
    options: Mapping[str, Any]

    @classmethod
    def of(cls, to: Any, options: Mapping[str, Any]) -> "Recipe":
        """The recipe for `convert(to=to, **options)`, checked."""
        if isinstance(to, nn.Module):
            raise TypeError(
                f"each place needs a unit of its own: let to be the class {type(to).__name__} or "
                f"a function that makes one, not the module {to!r}"
            )
        if not callable(to):
            raise TypeError(
                f"to must be a class of units such as Splash, or a function that makes one, got "
                f"{to!r}; units that have a name are made by splash_units.catalogue.unit(name)"
            )
        if isinstance(to, Unit) and to.inputs_per_output != 1:
            raise ValueError(
                f"{to!r} needs {to.inputs_per_output} inputs for each output, so it can't replace "
                "an activation without a wider layer before it"
            )
        if isinstance(to, partial):
            return cls(to.func, to.args, {**to.keywords, **options})
        return cls(to, (), dict(options))

    @property
    def wants_shape(self) -> bool:
        """Whether a unit can't be made without knowing the shape of its input."""
        if self.options.get("features") is not None:
            return False
        told = self._parameters.get("features")
        required = told is not None and told.default is told.empty
        return required or self.options.get("share", "layer") != "layer"

    @property
    def _parameters(self) -> Mapping[str, inspect.Parameter]:
        try:
            return inspect.signature(self.to).parameters
        except ValueError:  # a class that doesn't tell
            return {}

    def unit(self, shape: torch.Size | None, channels: int | None) -> nn.Module:
        """A fresh unit for inputs of this shape, or with a shape for each of the `channels`."""
        options = dict(self.options)
        if self.wants_shape and shape is not None:
            options["features"] = self._features(shape)
        elif channels is not None and {"share", "features"} <= self._parameters.keys():
            options |= {"share": "channel", "features": channels}
        elif self.wants_shape:
            raise ValueError(
                "the units must be told how many features they will see: pass example_inputs, an "
                "input of the network, with which it can be found out"
            )
        made = self.to(*self.arguments, **options)
        if not isinstance(made, nn.Module):
            raise TypeError(f"to must make modules, but {self.to!r} made {made!r}")
        return made

    def _features(self, shape: torch.Size) -> int | tuple[int, ...]:
        if isinstance(self.to, Unit) or self.options.get("share") == "unit":
            return tuple(shape[1:])
        dim: int = self.options.get("dim", 1)
        if not -len(shape) <= dim < len(shape):
            raise ValueError(f"there is no dimension {dim} in an input of shape {tuple(shape)}")
        return shape[dim]


def unit_for(activation: nn.Module, recipe: Recipe, shape: torch.Size | None) -> MadeUnit:
    """A fresh unit that starts as `activation`, for inputs of this shape (None: not known)."""
    pieces = pieces_of(activation)
    unit = recipe.unit(shape, None if pieces is None else pieces.channels)
    if not isinstance(unit, Splash) or unit.init != "relu":
        return MadeUnit(unit, "own start", _largest_error(unit, activation))
    exact = pieces is not None
    free = recipe.options.get("hinges") is None and _has_default_hinges(unit)
    if pieces is None and free:
        pieces = fitted_pieces(activation, max(len(unit.hinges) - 1, 1))
    elif pieces is None:
        pieces = pieces_on(activation, np.array(unit.hinges.tolist()))
    hinges = _hinges_with(pieces.hinges, unit.hinges.tolist(), free, activation)
    _start_as(unit, hinges, pieces, activation)
    slopes = unit.a_neg.detach().clone()
    unit.project()
    exact &= torch.equal(slopes, unit.a_neg)
    return MadeUnit(unit, "exact" if exact else "fitted", _largest_error(unit, activation))


def _has_default_hinges(unit: Splash) -> bool:
    return unit.hinges.tolist() == torch.tensor(default_hinges(unit.num_hinges)).tolist()


def _start_as(unit: Splash, hinges: list[float], pieces: Pieces, activation: nn.Module) -> None:
    """Give a unit these hinges and the slopes of these pieces."""
    if pieces.channels is not None and unit.features[:1] != (pieces.channels,):
        raise ValueError(
            f"{activation} has a slope for each of {pieces.channels} channels, and the units that "
            "were asked for do not: let them have share='channel', or leave nn.PReLU out of from_"
        )
    unit.hinges = torch.tensor(hinges, dtype=torch.float32)
    for name, side in (("a_pos", pieces.right), ("a_neg", pieces.left)):
        slopes = torch.zeros(len(hinges), *unit.features, dtype=torch.float64)
        for hinge, change in side:
            slopes[hinges.index(hinge)] = _for_features(change, unit.features)
        learned = getattr(unit, name).requires_grad
        setattr(unit, name, nn.Parameter(slopes.to(torch.float32), requires_grad=learned))
    unit.init = type(activation).__name__.lower()


def _for_features(change: Change, features: tuple[int, ...]) -> Change:
    if isinstance(change, Tensor):  # channels are the first of the features
        return change.reshape(-1, *(1 for _ in features[1:]))
    return change


def _hinges_with(
    needed: tuple[float, ...], hinges: list[float], free: bool, activation: nn.Module
) -> list[float]:
    """As many hinges, if they are free, with the nearest moved to where corners are needed."""
    missing = [b for b in needed if b not in hinges]
    if missing and not free:
        raise ValueError(
            f"{activation} has a corner at {missing[0]:g}, which is not among the hinges "
            f"{tuple(hinges)} that were asked for; without hinges= they are chosen for it"
        )
    for b in missing:
        movable = [c for c in hinges if c > 0 and c not in needed]
        if movable:
            hinges.remove(min(movable, key=lambda c: abs(c - b)))
        hinges.append(b)
    return sorted(hinges)


@torch.no_grad()
def _largest_error(unit: nn.Module, activation: nn.Module) -> float:
    """The largest |unit − activation| on [−SPAN, SPAN]; NaN for a unit that isn't a SPLASH unit."""
    if not isinstance(unit, Splash):
        return math.nan
    channels = unit.features[0] if isinstance(activation, nn.PReLU) and unit.features else 1
    a_pos, a_neg = (
        a.reshape(len(a), *unit.features[:1], -1)[..., 0].reshape(len(a), -1)[:, :channels]
        for a in (unit.a_pos, unit.a_neg)  # features that start alike are measured once
    )
    x = torch.linspace(-SPAN, SPAN, POINTS, dtype=torch.float64)[:, None]
    b = unit.hinges.double()
    h = torch.relu(x - b) @ a_pos.double() + torch.relu(-x - b) @ a_neg.double()
    as_it_is = copy.deepcopy(activation).to("cpu", torch.float64)
    return float((h - as_it_is.forward(x.repeat(1, channels))).abs().max())  # without its hooks
