"""Who gets which unit, and the graphs that call it.

An activation module that is used at several places becomes a unit for each ("separate"), or one for
all ("tied"). A `forward` is rewritten only if it calls an activation as a function, uses one module
twice, or relies on an activation having overwritten its input.
"""

from dataclasses import dataclass, field, replace
from typing import Literal

from torch import fx, nn

from splash_units.conversion.activations import works_in_place
from splash_units.conversion.report import Left
from splash_units.conversion.survey import (
    CalledActivation,
    CallKey,
    HeldActivation,
    Slot,
    Survey,
    keyed_calls,
    name_called,
)
from splash_units.conversion.tracing import Trace, origin_of

Reused = Literal["separate", "tied"]


@dataclass(frozen=True)
class Site:
    """One unit to be made.

    Attributes:
        slots: where it goes; several if it is tied.
        activation: what is there now, as a module.
        where: file:line if it is called as a function.
        takes_over: the path of the module it replaces, whose hooks it gets; None for a function.
        notes: for the report.
    """

    slots: tuple[Slot, ...]
    activation: nn.Module
    where: str = ""
    takes_over: str | None = None
    notes: tuple[str, ...] = ()


@dataclass
class Plan:
    """Units to be made, new graphs for the `forward` of some modules, and what stays."""

    left: list[Left]
    ignored: list[Left]
    sites: list[Site] = field(default_factory=list)
    rewritten: dict[str, Trace] = field(default_factory=dict)


@dataclass(frozen=True)
class _Edit:
    """What a call in a graph becomes: a call of the child at `target`."""

    target: str
    in_place: bool


Edits = dict[str, dict[CallKey, _Edit]]


def plan(found: Survey, reused: Reused) -> Plan:
    """Decide for each activation found. The graphs in `found` are edited accordingly."""
    edits: Edits = {path: {} for path in found.traces}
    made = Plan(list(found.left), list(found.ignored))
    decide = _tied if reused == "tied" else _separate
    for held in found.held:
        if _is_never_called(held, found):
            why = "no forward calls it, so slopes here would never learn"
            made.left.append(Left(held.slots[0].path, str(held.activation), "", why))
        else:
            made.sites += decide(held, found, edits)
    for called in found.called:
        made.sites.append(_for_function(called, found, edits))
    for path, traced in found.traces.items():
        changed = [_edit(way.graph, edits[path]) for way in traced.ways]
        if any(changed):
            made.rewritten[path] = traced
    return made


def _separate(held: HeldActivation, found: Survey, edits: Edits) -> list[Site]:
    """A unit for each use, in the attributes there are and then in new ones."""
    sites = [_site(held, slot, found) for slot in held.slots if _is_called_by_owner(slot, found)]
    free = [slot for slot in held.slots if not _is_called_by_owner(slot, found)]
    called = len(sites)
    for (path, key), node in held.calls.items():
        slot = next((slot for slot in free if _is_within(slot, path)), None)
        if slot is None:
            slot = _new_slot(path, name_called(node).rpartition(".")[2], found, edits)
        else:
            free.remove(slot)
        edits[path][key] = _Edit(_relative(slot, path), works_in_place(held.activation))
        sites.append(_site(held, slot, found, node))
    if held.calls:  # an attribute that nobody calls would hold slopes that never learn
        sites[called] = replace(sites[called], slots=(*sites[called].slots, *free))
    else:
        sites += [_site(held, slot, found) for slot in free]
    if len(sites) > 1:
        note = f"one module was used at {len(sites)} places; each has its own unit"
        sites = [replace(site, notes=(*site.notes, note)) for site in sites]
    return sites


def _tied(held: HeldActivation, found: Survey, edits: Edits) -> list[Site]:
    """One unit for all uses."""
    for (path, key), node in held.calls.items():
        edits[path][key] = _Edit(str(node.target), works_in_place(held.activation))
    nodes = list(held.calls.values())
    site = _site(held, held.slots[0], found, *nodes[:1])
    uses = len(nodes) + sum(_is_called_by_owner(slot, found) for slot in held.slots)
    if max(uses, len(held.slots)) > 1:
        note = f"one module was used at {max(uses, len(held.slots))} places; they share this unit"
        site = replace(site, notes=(*site.notes, note))
    return [replace(site, slots=tuple(held.slots))]


def _for_function(called: CalledActivation, found: Survey, edits: Edits) -> Site:
    slot = _new_slot(called.path, name_called(called.node), found, edits)
    edits[called.path][called.key] = _Edit(slot.name, works_in_place(called.activation))
    notes = _notes(called.activation, called.node)
    origin = origin_of(called.node)
    if origin.function not in ("", "forward"):
        notes += (f"called in {origin.function}(), which on its own still has the function",)
    return Site((slot,), called.activation, str(origin), notes=notes)


def _site(held: HeldActivation, slot: Slot, found: Survey, node: fx.Node | None = None) -> Site:
    notes = _notes(held.activation, node)
    is_first = next(iter(found.modules[slot.module]._modules), "") == slot.name
    if is_first and works_in_place(held.activation) and _is_called_by_owner(slot, found):
        notes += (_IN_PLACE_ON_INPUT,)
    reading = found.readings.get(slot.module)
    times = 0 if reading is None else reading.uses.count(slot.name)
    if times > 1:
        notes += (f"called {times} times in a forward that can't be traced; they share this unit",)
    takes_over = held.slots[0].path if held.is_module else None
    return Site((slot,), held.activation, takes_over=takes_over, notes=notes)


_IN_PLACE_ON_INPUT = (
    "it overwrote the input of its module; a caller that reads that tensor again now sees the input"
)


def _notes(activation: nn.Module, node: fx.Node | None) -> tuple[str, ...]:
    if node is None or not works_in_place(activation):
        return ()
    return (_IN_PLACE_ON_INPUT,) if _input_of(node).op == "placeholder" else ()


def _input_of(node: fx.Node) -> fx.Node:
    return node.all_input_nodes[0]


def _is_never_called(held: HeldActivation, found: Survey) -> bool:
    """Whether that is certain: its owners were traced, and so was everyone else."""
    traced = all(slot.module in found.traces and slot.name for slot in held.slots)
    return traced and not held.calls and not found.readings


def _is_called_by_owner(slot: Slot, found: Survey) -> bool:
    owner = found.modules[slot.module]
    return type(owner).forward is nn.Sequential.forward and slot.name != ""


def _is_within(slot: Slot, path: str) -> bool:
    return path == "" or slot.module == path or slot.module.startswith(f"{path}.")


def _relative(slot: Slot, path: str) -> str:
    return slot.path.removeprefix(f"{path}.") if path else slot.path


def _new_slot(path: str, name: str, found: Survey, edits: Edits) -> Slot:
    """A child that the module doesn't have yet, named after what is called: "relu_1"."""
    taken = {edit.target for edit in edits[path].values()}
    number = 1
    while hasattr(found.modules[path], f"{name}_{number}") or f"{name}_{number}" in taken:
        number += 1
    return Slot(path, f"{name}_{number}")


def _edit(graph: fx.Graph, edits: dict[CallKey, _Edit]) -> bool:
    """Let the calls in a graph be calls of units; whether that changed anything."""
    changed = False
    position = {node: i for i, node in enumerate(graph.nodes)}
    for key, node in keyed_calls(graph):
        edit = edits.get(key)
        if edit is None:
            continue
        source, unit = _input_of(node), node
        if node.op != "call_module":
            with graph.inserting_before(node):
                unit = graph.call_module(edit.target, (source,))
            unit.meta = dict(node.meta)
            position[unit] = position[node]
            node.replace_all_uses_with(unit)
            graph.erase_node(node)
            changed = True
        elif node.target != edit.target:
            node.target = edit.target
            changed = True
        if edit.in_place:  # whoever read the overwritten input saw the output
            for reader in [user for user in source.users if position[user] > position[unit]]:
                reader.replace_input_with(source, unit)
                changed = True
    return changed
