"""Every unit by name: one name, one factory, and `register` for a unit of one's own.

A network is given a unit as a factory, not as a module: each layer needs its own, some units must
know the features they will see, and maxout needs a wider layer before it.

    relu = unit("relu")
    maxout = unit("maxout", k=6)
    layer = nn.Conv2d(3, 16 * maxout.inputs_per_output, 3, padding=1)
    after = maxout.with_batch_norm((16, 32, 32))
"""

import difflib
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from splash_units.rivals import APL, Maxout, PReLU, SReLU, Swish, finite_number, whole_number
from splash_units.unit import BatchNormSplash, Splash

Features = int | Sequence[int]
Shape = tuple[int, ...]
Build = Callable[..., nn.Module]
BuildWithBatchNorm = Callable[..., nn.Module | None]


@dataclass(frozen=True, repr=False)
class Unit:
    """A unit with its options settled: call it for a fresh module. Made by :func:`unit`.

    It is a plain record of names and values, so it can be compared, hashed (if its options can) and
    sent to another process, where a unit of one's own must have been registered too.
    """

    name: str
    settings: tuple[tuple[str, Any], ...] = ()

    @property
    def options(self) -> dict[str, Any]:
        """The options that were given; a copy."""
        return dict(self.settings)

    @property
    def inputs_per_output(self) -> int:
        """How many input channels one output channel needs: 1, or the pieces of maxout."""
        return _entry(self.name).inputs(self.options)

    def __call__(self, features: Features, dim: int = 1) -> nn.Module:
        """A fresh module with `features` output channels along `dim` of its input.

        `features` may also be the shape of one sample of its output, which units with a shape for
        each neuron (share="unit") need.
        """
        return _entry(self.name).module(sample_shape(features), dim, self.options)

    def with_batch_norm(self, features: Features, **batch_norm_options: Any) -> nn.Module:
        """Batch norm, then the unit, as one fused module where there is one.

        `features` is a number of output channels, for inputs of shape (N, C), or the shape (C,) or
        (C, H, W) of one sample of the output.
        """
        entry, shape = _entry(self.name), sample_shape(features)
        if len(shape) not in (1, 3):
            raise ValueError(f"batch norm needs features C, (C,) or (C, H, W), got {features!r}")
        fused = entry.fused(shape, batch_norm_options, self.options)
        if fused is not None:
            return fused
        batch_norm = nn.BatchNorm1d if len(shape) == 1 else nn.BatchNorm2d
        normed = batch_norm(shape[0] * self.inputs_per_output, **batch_norm_options)
        return nn.Sequential(normed, self(shape))

    def __repr__(self) -> str:
        options = (f", {key}={value!r}" for key, value in self.settings)
        return f"unit({self.name!r}{''.join(options)})"


def unit(name: str, /, **options: Any) -> Unit:
    """The unit of that name with these options, all checked now, before any network is built."""
    entry = _entry(name)
    settings = {key: _plain(value) for key, value in options.items()}
    entry.check(name, settings)
    return Unit(name, tuple(sorted(settings.items())))


def names() -> tuple[str, ...]:
    """The names there are, in the order in which they were registered."""
    return tuple(_entries)


def register(
    name: str,
    build: Build,
    *,
    inputs_per_output: int | Callable[..., int] = 1,
    with_batch_norm: BuildWithBatchNorm | None = None,
    replace: bool = False,
) -> None:
    """Add a unit of one's own under `name`.

    Args:
        name: what :func:`unit` will know it by.
        build: `build(features, dim, **options)` gives a fresh module. `features` is always a tuple:
            (C,), or the shape of one sample of the output; see :func:`channels`.
        inputs_per_output: input channels for each output channel, or a function of the options.
        with_batch_norm: `with_batch_norm(features, batch_norm_options, **options)` gives batch norm
            and the unit in one module, or None to have them one after the other.
        replace: whether a unit of that name may be replaced.
    """
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"a unit's name must be a word like 'my_unit', got {name!r}")
    if name in _entries and not replace:
        raise ValueError(
            f"there already is a unit {name!r}; take another name, or replace=True. "
            f"Taken are {', '.join(names())}"
        )
    if not callable(build) or isinstance(build, nn.Module):  # one module would serve all layers
        raise TypeError(f"build must be a function of (features, dim, **options), got {build!r}")
    _entries[name] = _Entry(build, inputs_per_output, with_batch_norm)


def channels(features: Sequence[int], dim: int = 1) -> int:
    """The number of channels along `dim`, given it alone or the shape of one sample."""
    if len(features) == 1:
        return features[0]
    return features[dim - 1 if dim > 0 else dim]


def sample_shape(features: Features) -> Shape:
    """`features` as a tuple of positive whole numbers, or an error that names it."""
    shape = (features,) if isinstance(features, int) else tuple(features)
    if not shape or not all(isinstance(n, int) and n is not True and n > 0 for n in shape):
        raise ValueError(f"features must be a positive whole number or several, got {features!r}")
    return shape


@dataclass(frozen=True)
class _Entry:
    """What is known of a name. `options_of` says which options `build` hands on to whom."""

    build: Build
    inputs_per_output: int | Callable[..., int] = 1
    with_batch_norm: BuildWithBatchNorm | None = None
    options_of: Callable[..., nn.Module] | None = None
    fixed: tuple[tuple[str, Any], ...] = ()
    ours: bool = False

    def check(self, name: str, options: Mapping[str, Any]) -> None:
        parameters = self._option_parameters()
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        known = [key for key, p in parameters.items() if p.kind is not p.VAR_KEYWORD]
        has = f"its options are {', '.join(known)}" if known else "it has none"
        for key in options:
            if key not in known and not takes_any:
                raise TypeError(f"unit {name!r} has no option {key!r}; {has}")
        for key in known:
            if parameters[key].default is inspect.Parameter.empty and key not in options:
                raise TypeError(f"unit {name!r} needs a value for option {key!r}; {has}")
        if self.ours:
            self._try(name, options)
        self.inputs(options)

    def _try(self, name: str, options: Mapping[str, Any]) -> None:
        """Build the smallest module there is: its constructor knows which values are right."""
        try:
            with torch.random.fork_rng(devices=[]):
                self.module((1,), 1, options)
        except (TypeError, ValueError) as error:
            raise type(error)(f"unit {name!r}: {error}") from None

    def _option_parameters(self) -> dict[str, inspect.Parameter]:
        if self.options_of is None:
            named = list(inspect.signature(self.build).parameters.items())
            return dict(named[2:])
        given = {"features", "dim", "inplace", *dict(self.fixed)}
        named = list(inspect.signature(self.options_of).parameters.items())
        return {key: parameter for key, parameter in named if key not in given}

    def inputs(self, options: Mapping[str, Any]) -> int:
        count = self.inputs_per_output
        return whole_number("inputs_per_output", count(**options) if callable(count) else count)

    def module(self, shape: Shape, dim: int, options: Mapping[str, Any]) -> nn.Module:
        return self.build(shape, dim, **dict(self.fixed), **options)

    def fused(
        self, shape: Shape, batch_norm_options: Mapping[str, Any], options: Mapping[str, Any]
    ) -> nn.Module | None:
        if self.with_batch_norm is None:
            return None
        return self.with_batch_norm(shape, batch_norm_options, **dict(self.fixed), **options)


def _entry(name: str) -> _Entry:
    if name not in _entries:
        nearest_first = difflib.get_close_matches(str(name), names(), n=len(_entries), cutoff=0.0)
        raise ValueError(f"unknown unit {name!r}; there is {', '.join(nearest_first)}")
    return _entries[name]


def _plain(value: Any) -> Any:
    """Lists, arrays and tensors as tuples: a unit is a record, and hashes if it can."""
    if hasattr(value, "tolist"):
        value = value.tolist()
    return tuple(_plain(item) for item in value) if isinstance(value, list | tuple) else value


def _parameterless(kind: Callable[[], nn.Module]) -> _Entry:
    return _Entry(lambda features, dim: kind(), ours=True)


def _channelwise(kind: Callable[..., nn.Module], **entry: Any) -> _Entry:
    """An entry for a module that is told its number of channels."""

    def build(features: Shape, dim: int, **options: Any) -> nn.Module:
        return kind(features=channels(features, dim), dim=dim, **options)

    return _Entry(build, options_of=kind, ours=True, **entry)


def _shared(kind: Callable[..., nn.Module], **entry: Any) -> _Entry:
    """An entry for a module whose `share` says what it must be told of the features."""

    def build(features: Shape, dim: int, **options: Any) -> nn.Module:
        told = {"channel": channels(features, dim), "unit": features}
        return kind(features=told.get(options.get("share", "layer")), dim=dim, **options)

    return _Entry(build, options_of=kind, ours=True, **entry)


def _splash(**fixed: Any) -> _Entry:
    return _shared(Splash, fixed=tuple(fixed.items()), with_batch_norm=_batch_norm_splash)


def _batch_norm_splash(
    features: Shape, batch_norm_options: Mapping[str, Any], **options: Any
) -> nn.Module | None:
    if options.get("share") == "unit":  # one pass over memory knows channels, not neurons
        return None
    return BatchNormSplash(features[0], **batch_norm_options, **options)


def _leaky_relu(features: Shape, dim: int, *, negative_slope: float = 0.01) -> nn.Module:
    return nn.LeakyReLU(finite_number("negative_slope", negative_slope))


def _elu(features: Shape, dim: int, *, alpha: float = 1.0) -> nn.Module:
    return nn.ELU(finite_number("alpha", alpha))


_entries: dict[str, _Entry] = {
    "relu": _parameterless(nn.ReLU),
    "leaky_relu": _Entry(_leaky_relu, ours=True),
    "prelu": _channelwise(PReLU),
    "tanh": _parameterless(nn.Tanh),
    "sigmoid": _parameterless(nn.Sigmoid),
    "elu": _Entry(_elu, ours=True),
    "maxout": _channelwise(Maxout, inputs_per_output=lambda k=9: k),
    "swish": _shared(Swish),
    "apl": _shared(APL),
    "selu": _parameterless(nn.SELU),
    "srelu": _channelwise(SReLU),
    "splash": _splash(),
    "splash_positive": _splash(constraint="positive"),
    "splash_negative": _splash(constraint="negative"),
    "splash_fixed": _splash(trainable=False),
    "splash_literal": _splash(grad_scale=1.0),
}
