"""Batch norm and the SPLASH unit behind it as one module, in a network that has them side by side.

network = fuse(convert(model))       # a training step takes less than the model's own with ReLU
"""

import copy as copying
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CodeType, FunctionType
from typing import TypeVar, cast

from torch import fx, nn

from splash_units.conversion.installing import has_hooks
from splash_units.conversion.survey import is_unit
from splash_units.conversion.tracing import UntraceableError, has_own_forward, trace
from splash_units.unit import BatchNormSplash, Splash

Network = TypeVar("Network", bound=nn.Module)
AnyNorm = nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d
NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def fuse(model: Network, *, copy: bool = True) -> Network:
    """Replace each batch norm with nothing but a SPLASH unit behind it by a `BatchNormSplash`.

    It stands where the batch norm stood, and an `nn.Identity` where the unit did. It has their very
    parameters and buffers, so a checkpoint keeps the batch norm's names, and an optimizer stays
    valid with `copy=False`. It computes the same, up to rounding.

    A pair stays as it is if either is used elsewhere too or has hooks, if each neuron has slopes of
    its own, if the `forward` that calls them can't be traced by torch.fx, and if a module around
    them whose own can't be might call either by itself. An `nn.Identity` between them is nothing.

    A copy of the model is changed unless `copy` is False.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"fuse needs a torch.nn.Module, got {model!r}")
    network = copying.deepcopy(model) if copy else model
    seen = _observed(network)
    for norm, unit in seen.pairs():
        owner, name = seen.places[norm][0]
        owner._modules[name] = _joined(norm, unit)
        owner, name = seen.places[unit][0]
        owner._modules[name] = nn.Identity().train(unit.training)
    return network


@dataclass
class _Observed:
    """Where modules are held, and by whom they are called.

    Attributes:
        places: of each module the attributes that hold it.
        givers: of each module, who gives what it is called with, call by call; None is nobody, or
            more than one.
        takers: of each module, the only one that takes what it gives; None if there are others.
        closed: modules that may be called by somebody who can't be traced.
    """

    places: dict[nn.Module, list[tuple[nn.Module, str]]] = field(default_factory=dict)
    givers: dict[nn.Module, set[nn.Module | None]] = field(default_factory=dict)
    takers: dict[nn.Module, set[nn.Module | None]] = field(default_factory=dict)
    closed: set[nn.Module] = field(default_factory=set)

    def called(self, module: nn.Module, giver: nn.Module | None, taker: nn.Module | None) -> None:
        self.givers.setdefault(module, set()).add(giver)
        self.takers.setdefault(module, set()).add(taker)

    def pairs(self) -> list[tuple[AnyNorm, Splash]]:
        """Each batch norm and unit that are always called one after the other, and never apart."""
        found = []
        for norm, takers in self.takers.items():
            unit = next(iter(takers))
            if type(norm) not in NORMS or type(unit) is not Splash or takers != {unit}:
                continue
            if self.givers[unit] == {norm} and self._may_change(cast(AnyNorm, norm), unit):
                found.append((cast(AnyNorm, norm), unit))
        return found

    def _may_change(self, norm: AnyNorm, unit: Splash) -> bool:
        by_channel = unit.share == "channel" and unit.dim == 1
        by_its_channel = by_channel and unit.features == (norm.num_features,)
        return (unit.share == "layer" or by_its_channel) and not any(
            module in self.closed or len(self.places.get(module, ())) != 1 or has_hooks(module)
            for module in (norm, unit)
        )


def _observed(network: nn.Module) -> _Observed:
    seen = _Observed()
    for module in network.modules():
        for name, child in module._modules.items():
            if child is not None:
                seen.places.setdefault(child, []).append((module, name))
        if is_unit(module) or not module._modules:
            continue
        if type(module).forward is nn.Sequential.forward:
            _observe_chain(seen, module)
        elif has_own_forward(module):
            _observe_forward(seen, module)
    return seen


def _observe_chain(seen: _Observed, chain: nn.Module) -> None:
    links = (child for child in chain._modules.values() if child and not _is_nothing(child))
    children = [None, *links, None]
    for giver, module, taker in zip(children, children[1:], children[2:], strict=False):
        seen.called(cast(nn.Module, module), giver, taker)


def _observe_forward(seen: _Observed, module: nn.Module) -> None:
    try:
        ways = trace(module).ways
    except UntraceableError:
        seen.closed.update(_within_reach(module))
        return
    for way in ways:
        for node in way.graph.nodes:
            if (called := _called(module, node)) is not None:
                seen.called(called, _giver(module, node), _taker(module, node))


def _within_reach(module: nn.Module) -> Iterator[nn.Module]:
    """What a module can call by itself: its children, and whose name or number its code may say."""
    said = _names_in(type(module))
    for path, inner in module.named_modules():
        *_, name = path.split(".")
        if "." not in path or name.isdecimal() or name in said:
            yield inner


def _names_in(cls: type) -> set[str]:
    """The names in the code of a class, but for what it has of `nn.Module`."""
    own = cls.__mro__[: cls.__mro__.index(nn.Module)]
    codes = [f.__code__ for c in own for f in vars(c).values() if isinstance(f, FunctionType)]
    names: set[str] = set()
    for code in codes:  # grows by what is defined inside
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
        names |= {*code.co_names, *(text for text in code.co_consts if isinstance(text, str))}
    return names


def _called(module: nn.Module, node: fx.Node) -> nn.Module | None:
    return module.get_submodule(str(node.target)) if node.op == "call_module" else None


def _is_nothing(module: nn.Module | None) -> bool:
    return type(module) is nn.Identity and not has_hooks(module)


def _giver(module: nn.Module, node: fx.Node) -> nn.Module | None:
    """The module whose result is all that `node` is called with."""
    given = node.args[0] if len(node.args) == 1 and not node.kwargs else None
    giver = _called(module, given) if isinstance(given, fx.Node) else None
    return _giver(module, cast(fx.Node, given)) if _is_nothing(giver) else giver


def _taker(module: nn.Module, node: fx.Node) -> nn.Module | None:
    """The module that is called with what `node` gives, if nobody else is."""
    users = list(node.users)
    taker = _called(module, users[0]) if len(users) == 1 else None
    return _taker(module, users[0]) if _is_nothing(taker) else taker


def _joined(norm: AnyNorm, unit: Splash) -> BatchNormSplash:
    """One module with the parameters and buffers of both, not copies."""
    joined = BatchNormSplash(
        norm.num_features,
        norm.eps,
        norm.momentum,
        norm.affine,
        norm.track_running_stats,
        hinges=unit.hinges.tolist(),
        share=unit.share,
        constraint=unit.constraint,
        grad_scale=unit.grad_scale,
    )
    for module in (norm, unit):  # slopes that were folded are buffers
        for name in (*module._parameters, *module._buffers):
            joined._parameters.pop(name, None), joined._buffers.pop(name, None)
        joined._parameters |= module._parameters
        joined._buffers |= module._buffers
    joined.init = unit.init
    return joined.train(norm.training)
