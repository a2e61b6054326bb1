"""Batch norm and the SPLASH unit behind it as one module, in a network that has them side by side.

network = fuse(convert(model))       # a training step takes less than the model's own with ReLU
"""

import copy as copying
from collections.abc import Iterator
from dataclasses import dataclass, field
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

    A pair stays as it is if either has another caller, a reader or hooks, if each neuron has slopes
    of its own, and if torch.fx can't trace the `forward` that calls them or that of a module around
    them, which might call either by itself. An `nn.Identity` between them is nothing. Only what
    `forward` does is looked at: a method that nobody calls there, and that calls batch norm alone,
    gets the unit too.

    A copy of the model is changed unless `copy` is False.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"fuse needs a torch.nn.Module, got {model!r}")
    network = copying.deepcopy(model) if copy else model
    seen = _observed(network)
    made = [(norm, unit, _joined(norm, unit)) for norm, unit in seen.pairs()]
    for norm, unit, joined in made:
        owner, name = seen.places[norm][0]
        owner._modules[name] = joined
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
        closed: modules that must stay, since somebody else may call them or read what they have.
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
        follows_as_it_says = norm.track_running_stats == (norm.running_mean is not None)
        return (
            (unit.share == "layer" or by_its_channel)
            and follows_as_it_says
            and not any(
                module in self.closed
                or len(self.places.get(module, ())) != 1
                or _is_watched(module)
                for module in (norm, unit)
            )
        )


def _observed(network: nn.Module) -> _Observed:
    seen = _Observed()
    for module in network.modules():
        for name, child in module._modules.items():
            if child is not None:
                seen.places.setdefault(child, []).append((module, name))
        seen.closed.update(_held_besides(module))
        if is_unit(module) or not module._modules:
            continue
        if type(module).forward is nn.Sequential.forward and "forward" not in vars(module):
            _observe_chain(seen, module)
        elif has_own_forward(module) or "forward" in vars(module):
            _observe_forward(seen, module)
    return seen


def _observe_chain(seen: _Observed, chain: nn.Module) -> None:
    held = (child for child in chain._modules.values() if child is not None)
    links = (child for child in held if not _is_nothing(child))
    children = [None, *links, None]
    for giver, module, taker in zip(children, children[1:], children[2:], strict=False):
        seen.called(cast(nn.Module, module), giver, taker)


def _observe_forward(seen: _Observed, module: nn.Module) -> None:
    try:
        ways = trace(module).ways
    except UntraceableError:
        seen.closed.update(module.modules())
        return
    for way in ways:
        for node in way.graph.nodes:
            if (called := _called(module, node)) is not None:
                seen.called(called, _giver(module, node), _taker(module, node))
            elif node.op == "get_attr":  # a module itself, or something that it has
                path = str(node.target)
                seen.closed.update(m for name, m in module.named_modules() if _is_on(path, name))


def _is_on(path: str, name: str) -> bool:
    return name != "" and f"{path}.".startswith(f"{name}.")


def _held_besides(module: nn.Module) -> Iterator[nn.Module]:
    """Modules that a module keeps in lists and the like, where they can't be replaced."""
    for name, value in vars(module).items():
        if name != "_modules" and isinstance(value, list | tuple | set | dict):
            held = value.values() if isinstance(value, dict) else value
            yield from (each for each in held if isinstance(each, nn.Module))


def _called(module: nn.Module, node: fx.Node) -> nn.Module | None:
    return module.get_submodule(str(node.target)) if node.op == "call_module" else None


def _is_nothing(module: nn.Module | None) -> bool:
    return type(module) is nn.Identity and not _is_watched(module)


def _is_watched(module: nn.Module) -> bool:
    """Whether someone wants to hear of a module, or has given this one a `forward` of its own."""
    of_states = ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks")
    hears = has_hooks(module) or any(getattr(module, name, None) for name in of_states)
    return hears or "forward" in vars(module)


def _giver(module: nn.Module, node: fx.Node) -> nn.Module | None:
    """The module whose result is all that `node` is called with."""
    given = node.args[0] if _has_one_argument(node) else None
    giver = _called(module, given) if isinstance(given, fx.Node) else None
    return _giver(module, cast(fx.Node, given)) if _is_nothing(giver) else giver


def _taker(module: nn.Module, node: fx.Node) -> nn.Module | None:
    """The module that is called with what `node` gives, if nobody else is.

    None, too, if the call that `node` is could not be one of another module.
    """
    users = list(node.users)
    is_plain = len(users) == 1 and _has_one_argument(node)
    taker = _called(module, users[0]) if is_plain else None
    return _taker(module, users[0]) if _is_nothing(taker) else taker


def _has_one_argument(node: fx.Node) -> bool:
    return len(node.args) == 1 and not node.kwargs


def _joined(norm: AnyNorm, unit: Splash) -> BatchNormSplash:
    """One module with the parameters and buffers of both, not copies."""
    joined = BatchNormSplash(
        norm.num_features,
        norm.eps,
        norm.momentum,
        norm.affine,
        norm.track_running_stats,
        num_hinges=unit.num_hinges,
        share=unit.share,
        constraint=unit.constraint,
        grad_scale=unit.grad_scale,
    )
    for module in (norm, unit):  # slopes that were folded are buffers
        for name in (*module._parameters, *module._buffers):
            joined._parameters.pop(name, None), joined._buffers.pop(name, None)
        joined._parameters |= module._parameters
        joined._buffers |= module._buffers
        joined._non_persistent_buffers_set |= module._non_persistent_buffers_set
    joined.init = unit.init
    return joined.train(norm.training)
