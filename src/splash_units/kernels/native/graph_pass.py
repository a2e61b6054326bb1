"""In a graph that torch compiles: batch norm and the unit behind it as one operator.

A network whose units stand beside its batch norms, as `convert` leaves it, would have two passes
over memory there, where the compiler makes one of batch norm and ReLU. Imported while a graph with
a unit is traced, and not before: it needs torch's compiler.
"""

import operator
from collections.abc import Iterator, Mapping
from itertools import takewhile
from typing import Any

import torch
import torch.nn.functional as F
from torch import fx
from torch._inductor import config
from torch._inductor.custom_graph_pass import (
    CustomGraphPass,
    get_custom_graph_passes,
    get_hash_for_files,
)

from splash_units.kernels import native

_NORM_ARGUMENTS = {  # of F.batch_norm, with what they are if they are not given
    "input": None,
    "running_mean": None,
    "running_var": None,
    "weight": None,
    "bias": None,
    "training": False,
    "momentum": 0.1,
    "eps": 1e-5,
}
_UNIT_ARGUMENTS = {
    "x": None,
    "a_pos": None,
    "a_neg": None,
    "hinges": None,
    "trailing": 0,
    "grad_scale": 1.0,
}
_NUMBERS = (int, float, torch.SymInt, torch.SymFloat, torch.SymBool, torch.Size)


class MergeBatchNorm(CustomGraphPass):
    """Where nobody else wants what batch norm gives, it and the unit become one operator."""

    def __call__(self, graph: fx.Graph) -> None:
        _forget_questions(graph)
        target = torch.ops.splash_units.splash.default
        for unit in graph.find_nodes(op="call_function", target=target):
            norm = _arguments(unit, _UNIT_ARGUMENTS)["x"]
            if isinstance(norm, fx.Node) and _is_only_for(norm, unit):
                _merge(graph, norm, unit)

    def uuid(self) -> bytes:
        """What torch keeps on disk of a compiled graph is good for this text and this library.

        It would not ask what the operators promise, which may be other in another library.
        """
        operators = native.load()
        return get_hash_for_files((__file__,), "" if operators is None else operators.library.name)


def install() -> None:
    """Have torch's compiler run the pass, after those that others have given it."""
    given = config.pre_grad_custom_pass
    passes = get_custom_graph_passes(given)
    if any(isinstance(each, MergeBatchNorm) for each in passes):
        return
    if isinstance(given, list):
        given.append(MergeBatchNorm())  # it stays the list that its owner knows
    else:
        config.pre_grad_custom_pass = (*passes, MergeBatchNorm())


def _forget_questions(graph: fx.Graph) -> None:
    """What was asked of a tensor while the graph was traced, such as `x.is_cpu`, stands in it."""
    for node in graph.find_nodes(op="call_function", target=getattr):
        if not node.users:
            graph.erase_node(node)


def _is_only_for(norm: fx.Node, unit: fx.Node) -> bool:
    """Whether `norm` is a batch norm with nothing but `unit` behind it.

    Between the two, numbers may be computed from sizes, but nothing else: it may write to a tensor,
    or begin a context.
    """
    if norm.op != "call_function" or norm.target is not F.batch_norm or len(norm.users) > 1:
        return False
    others = [value for name, value in _arguments(unit, _UNIT_ARGUMENTS).items() if name != "x"]
    if norm in others:
        return False
    between = takewhile(lambda node: node is not unit, _after(norm))
    return all(node.op in ("get_attr", "placeholder") or _is_number(node) for node in between)


def _after(node: fx.Node) -> Iterator[fx.Node]:
    while (node := node.next).op != "root":
        yield node


def _is_number(node: fx.Node) -> bool:
    """Whether a node is a number, made of nothing that anyone in the graph could write to."""
    is_settled = all(_is_one(each) or _is_given_to_one(each) for each in node.all_input_nodes)
    return _is_one(node) and is_settled


def _is_one(node: fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), _NUMBERS)


def _is_given_to_one(node: fx.Node) -> bool:
    """Numbers of a module that may change are given to the graph as tensors."""
    return node.op == "placeholder" and len(node.users) == 1


def _merge(graph: fx.Graph, norm: fx.Node, unit: fx.Node) -> None:
    of_norm = _arguments(norm, _NORM_ARGUMENTS)
    of_unit = _arguments(unit, _UNIT_ARGUMENTS)
    if not _fits(of_norm, of_unit):
        return
    with graph.inserting_before(unit):
        both = graph.call_function(
            torch.ops.splash_units.batch_norm_splash.default,
            (
                *(of_norm[name] for name in ("input", "weight", "bias")),
                *(of_norm[name] for name in ("running_mean", "running_var")),
                *(of_unit[name] for name in ("a_pos", "a_neg", "hinges")),
                *(of_norm[name] for name in ("training", "momentum", "eps")),
                of_unit["grad_scale"],
            ),
        )
        y = graph.call_function(operator.getitem, (both, 0))
    both.meta |= {name: unit.meta[name] for name in ("stack_trace",) if name in unit.meta}
    y.meta = dict(unit.meta)
    unit.replace_all_uses_with(y)
    graph.erase_node(unit)
    graph.erase_node(norm)


def _arguments(node: fx.Node, defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {**defaults, **dict(zip(defaults, node.args, strict=False)), **node.kwargs}


def _fits(of_norm: Mapping[str, Any], of_unit: Mapping[str, Any]) -> bool:
    """Whether the operator serves: one shape for the layer, or one for each of its channels.

    Not in evaluation: the operator's schema says that it writes to running statistics, and tensors
    that it only might write to count as changed behind a compiled graph.
    """
    written = {of_norm["running_mean"], of_norm["running_var"]} - {None}
    if of_norm["training"] is not True or written & set(of_unit.values()):
        return False
    x, slopes = _value(of_norm["input"]), _value(of_unit["a_pos"])
    if x is None or slopes is None or any(isinstance(n, int) and n == 0 for n in x.shape):
        return False
    own = tuple(slopes.shape[1:])
    return not own or (own == (x.shape[1],) and of_unit["trailing"] == x.dim() - 2)


def _value(node: fx.Node) -> torch.Tensor | None:
    """The tensor without memory that stands for a node, as the tracer left it."""
    value = node.meta.get("example_value")
    return value if isinstance(value, torch.Tensor) else None
