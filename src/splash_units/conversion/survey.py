"""Every place where a network computes an activation: what is there, before anything is decided."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from splash_units.conversion.activations import KNOWN, NotGroundedError, module_for, pieces_of
from splash_units.conversion.report import Left
from splash_units.conversion.scanning import Reading, read
from splash_units.conversion.tracing import (
    Trace,
    UntraceableError,
    has_own_forward,
    origin_of,
    trace,
)

NOT_ASKED_FOR = "it is not among from_"
Kinds = tuple[type[nn.Module], ...]
CallKey = tuple[str, int, str, int]  # file, line, what is called there, the how-manieth time


@dataclass(frozen=True)
class Slot:
    """An attribute of a module: the module's path in the network, and the attribute's name."""

    module: str
    name: str

    @property
    def path(self) -> str:
        return f"{self.module}.{self.name}" if self.module else self.name


@dataclass
class HeldActivation:
    """An activation that attributes hold, with the calls of it that were traced."""

    activation: nn.Module
    is_module: bool
    slots: list[Slot] = field(default_factory=list)
    calls: dict[tuple[str, CallKey], fx.Node] = field(default_factory=dict)


@dataclass(frozen=True)
class CalledActivation:
    """An activation called as a function, in the `forward` of the module at `path`."""

    path: str
    key: CallKey
    activation: nn.Module
    node: fx.Node


@dataclass
class Survey:
    """What was found in a network.

    Attributes:
        modules: each module once, by path, without the insides of units.
        traces: of the modules whose `forward` is the user's own.
        readings: of those among them that can't be traced.
        held: activations that are attributes: modules, or functions where nothing was traced.
        called: activations that are function calls.
        left: those that can't get a unit.
        ignored: those of other kinds.
    """

    modules: dict[str, nn.Module]
    traces: dict[str, Trace] = field(default_factory=dict)
    readings: dict[str, Reading] = field(default_factory=dict)
    held: list[HeldActivation] = field(default_factory=list)
    called: list[CalledActivation] = field(default_factory=list)
    left: list[Left] = field(default_factory=list)
    ignored: list[Left] = field(default_factory=list)


def survey(model: nn.Module, kinds: Kinds, leaves: Kinds) -> Survey:
    """Find every activation of these `kinds` outside of units and of `leaves`."""
    found = Survey(_modules(model, leaves))
    for path, module in found.modules.items():
        if type(module) in kinds:
            continue
        if type(module) in KNOWN:
            found.ignored.append(Left(path, str(module), "", NOT_ASKED_FOR))
        elif has_own_forward(module):
            _trace_or_read(found, path, module, kinds)
    by_identity = _find_held(found, model, kinds)
    for path, traced in found.traces.items():
        _find_calls(found, path, traced, kinds, by_identity)
    return found


def is_unit(module: nn.Module) -> bool:
    """Whether a module is one of this library's: what is in it is its own affair."""
    package, _, rest = type(module).__module__.partition(".")
    return package == "splash_units" and not rest.startswith("lab.")


def _modules(model: nn.Module, leaves: Kinds) -> dict[str, nn.Module]:
    modules: dict[str, nn.Module] = {}
    closed: list[str] = []
    for path, module in model.named_modules():
        if any(path.startswith(prefix) for prefix in closed):
            continue
        if is_unit(module) or type(module) in leaves:
            closed.append(f"{path}." if path else "")
        else:
            modules[path] = module
            if isinstance(module, torch.jit.ScriptModule):
                closed.append(f"{path}." if path else "")
    return modules


def _trace_or_read(found: Survey, path: str, module: nn.Module, kinds: Kinds) -> None:
    try:
        found.traces[path] = trace(module)
    except UntraceableError as refusal:
        if isinstance(module, torch.jit.ScriptModule):
            found.left.append(Left(path, "what it may call", "", str(refusal)))
            return
        reading = found.readings[path] = read(module, kinds)
        for what, where in reading.calls:
            found.left.append(Left(path, what, where, f"{type(module).__name__}: {refusal}"))
        for function in reading.unreadable:
            why = f"{refusal}, and its source isn't at hand to look for calls of activations"
            found.left.append(Left(path, function, "", f"{type(module).__name__}: {why}"))


def _find_held(found: Survey, model: nn.Module, kinds: Kinds) -> dict[int, HeldActivation]:
    """Fill in what attributes hold, and return it by the identity of the module held."""
    by_identity: dict[int, HeldActivation] = {}

    def add(slot: Slot, module: nn.Module, activation: nn.Module, is_module: bool = True) -> None:
        if id(module) not in by_identity and _is_grounded(found, slot.path, activation):
            by_identity[id(module)] = HeldActivation(activation, is_module)
            found.held.append(by_identity[id(module)])
        if id(module) in by_identity:
            by_identity[id(module)].slots.append(slot)

    wrapped = {
        id(found.modules[path]): activation
        for path, traced in found.traces.items()
        if (activation := _all_it_does(found.modules[path], traced, kinds)) is not None
    }
    root = model if type(model) in kinds else wrapped.get(id(model))
    if root is not None:
        add(Slot("", ""), model, root)
    for path, module in found.modules.items():
        for name, child in module._modules.items():
            activation = child if type(child) in kinds else wrapped.get(id(child))
            if child is not None and activation is not None:
                add(Slot(path, name), child, activation)
        if path not in found.traces:  # else its calls are found, each on its own
            for name, activation in _functions_held(module, kinds):
                add(Slot(path, name), activation, activation, is_module=False)
    return by_identity


def _all_it_does(module: nn.Module, traced: Trace, kinds: Kinds) -> nn.Module | None:
    """The activation that a module without anything of its own consists in; None if it has more."""
    if module._modules or module._parameters or module._buffers:
        return None
    kept: nn.Module | None = None
    for way in traced.ways:
        nodes = [node for node in way.graph.nodes if node.op != "placeholder"]
        kept = _activation_called(nodes[0]) if len(nodes) == 2 else None
        computed = _has_computed_arguments(nodes[0])
        if type(kept) not in kinds or computed or nodes[1].args != (nodes[0],):
            return None
    return kept


def _functions_held(module: nn.Module, kinds: Kinds) -> Iterator[tuple[str, nn.Module]]:
    for name, value in vars(module).items():
        if callable(value):
            activation = module_for(value)
            if activation is not None and type(activation) in kinds:
                yield name, activation


def _find_calls(
    found: Survey, path: str, traced: Trace, kinds: Kinds, by_identity: dict[int, HeldActivation]
) -> None:
    """Fill in the calls in one `forward`; the same line on two ways through it is one call."""
    module = found.modules[path]
    if id(module) in by_identity:  # the activation itself
        return
    seen: set[CallKey] = set()
    for way in traced.ways:
        for key, node in keyed_calls(way.graph):
            if node.op == "call_module":
                held = by_identity.get(id(module.get_submodule(str(node.target))))
                if held is not None:
                    held.calls.setdefault((path, key), node)
                continue
            activation = _activation_called(node)
            if key in seen or activation is None:
                continue
            seen.add(key)
            where = str(origin_of(node))
            if type(activation) not in kinds:
                found.ignored.append(Left(path, str(activation), where, NOT_ASKED_FOR))
            elif _has_computed_arguments(node):
                why = "its arguments are tensors of the network, which a unit would not follow"
                found.left.append(Left(path, name_called(node), where, why))
            elif _is_grounded(found, path, activation, where):
                found.called.append(CalledActivation(path, key, activation, node))


def keyed_calls(graph: fx.Graph) -> list[tuple[CallKey, fx.Node]]:
    """The calls in a graph under keys that stay the same on every way through a `forward`."""
    counts: dict[tuple[str, int, str], int] = {}
    calls = []
    for node in graph.nodes:
        if node.op in ("call_module", "call_function", "call_method"):
            origin = origin_of(node)
            place = (origin.file, origin.line, name_called(node))
            counts[place] = counts.get(place, 0) + 1
            calls.append(((*place, counts[place]), node))
    return calls


def name_called(node: fx.Node) -> str:
    """ "relu" for torch.relu, F.relu and x.relu_(); the path of a child for a module."""
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "call")
    return name if node.op == "call_module" else name.rstrip("_")


def _activation_called(node: fx.Node) -> nn.Module | None:
    """The activation that a call computes, with default arguments if its own are computed."""
    if node.op not in ("call_function", "call_method"):
        return None
    if _has_computed_arguments(node):
        return module_for(node.target)
    arguments, options = _arguments_after_input(node)
    return module_for(node.target, arguments, options)


def _has_computed_arguments(node: fx.Node) -> bool:
    arguments, options = _arguments_after_input(node)
    return any(isinstance(value, fx.Node) for value in (*arguments, *options.values()))


def _arguments_after_input(node: fx.Node) -> tuple[tuple[Any, ...], dict[str, Any]]:
    options = {name: value for name, value in node.kwargs.items() if name != "input"}
    return node.args[1:], options


def _is_grounded(found: Survey, path: str, activation: nn.Module, where: str = "") -> bool:
    try:
        pieces_of(activation)
    except NotGroundedError as reason:
        found.left.append(Left(path, str(activation), where, str(reason)))
        return False
    return True
