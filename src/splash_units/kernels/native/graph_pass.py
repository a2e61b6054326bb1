"""In a graph that torch compiles: batch norm, the unit behind it and the bias in front as one.

A network whose units stand beside its batch norms, as `convert` leaves it, would have two passes
over memory there, where the compiler makes one of batch norm and ReLU; and backward a pass of its
own for the bias of the linear layer in front, which the compiler makes in passing, too. Imported
while a graph with a unit is traced, and not before: it needs torch's compiler.
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
from torch.utils._pytree import arg_tree_leaves

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


class _Pass(CustomGraphPass):
    """One that torch's cache on disk knows, and one of its kind is enough."""

    def uuid(self) -> bytes:
        """What torch keeps on disk of a compiled graph is good for this text and this library.

        It would not ask what the operators promise, which may be other in another library.
        """
        operators = native.load()
        return get_hash_for_files((__file__,), "" if operators is None else operators.library.name)

    @classmethod
    def install(cls, hook: str) -> None:
        """Have torch's compiler run the pass, after those that others have given it."""
        given = getattr(config, hook)
        passes = get_custom_graph_passes(given)
        if any(isinstance(each, cls) for each in passes):
            return
        if isinstance(given, list):
            given.append(cls())  # it stays the list that its owner knows
        else:
            setattr(config, hook, (*passes, cls()))


class MergeBatchNorm(_Pass):
    """Where nobody else wants what batch norm gives, it and the unit become one operator."""

    def __call__(self, graph: fx.Graph) -> None:
        _forget_questions(graph)
        target = torch.ops.splash_units.splash.default
        for unit in graph.find_nodes(op="call_function", target=target):
            norm = _arguments(unit, _UNIT_ARGUMENTS)["x"]
            if isinstance(norm, fx.Node) and _is_only_for(norm, unit):
                _merge(graph, norm, unit)


class TakeSumOfGradient(_Pass):
    """The gradient of a bias in front of batch norm and unit is what their backward has learned.

    Of one bias: two would have the same memory, and who changes a gradient would change both.
    """

    def __call__(self, graph: fx.Graph) -> None:
        target = torch.ops.splash_units.batch_norm_splash_backward.default
        for backward in graph.find_nodes(op="call_function", target=target):
            dx, learned = (_result(backward, which) for which in (0, 1))
            if dx is None or learned is None or not _have_one_type(dx, learned):
                continue
            sums = [node for node in dx.users if _is_sum_of_rows(node, dx)]
            if len(sums) == 1 and learned < sums[0] and _goes_to_one(sums[0]):
                _take_instead(graph, sums[0], learned)


def install() -> None:
    """Have torch's compiler run the passes."""
    MergeBatchNorm.install("pre_grad_custom_pass")
    TakeSumOfGradient.install("post_grad_custom_pre_pass")


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


def _result(node: fx.Node, which: int) -> fx.Node | None:
    """What stands for one of the results of an operator that has several."""
    found = (user for user in node.users if user.target is operator.getitem)
    return next((user for user in found if user.args[1] == which), None)


def _have_one_type(dx: fx.Node, learned: fx.Node) -> bool:
    """What was learned is float32 for a bfloat16 x, whose sum is not."""
    types = {getattr(node.meta.get("val"), "dtype", None) for node in (dx, learned)}
    return None not in types and len(types) == 1


def _is_sum_of_rows(node: fx.Node, dx: fx.Node) -> bool:
    if node.target is not torch.ops.aten.sum.dim_IntList or node.kwargs or "val" not in node.meta:
        return False
    summed, dimensions, *_ = node.args
    return summed is dx and dimensions == [0] and len(dx.meta["val"].shape) == 2


def _goes_to_one(node: fx.Node) -> bool:
    """Whether a tensor, or a view of it, is given to one place."""
    if len(node.users) != 1:
        return False
    user = next(iter(node.users))
    if user.target is torch.ops.aten.view.default:
        return _goes_to_one(user)
    return sum(given is node for given in arg_tree_leaves(*user.args, **user.kwargs)) == 1


def _take_instead(graph: fx.Graph, total: fx.Node, learned: fx.Node) -> None:
    """A channel's number is the first of what was learned (Learned in native_ops.cpp)."""
    shape = total.meta["val"].shape
    with graph.inserting_after(learned):
        first = _computed(graph, torch.ops.aten.slice.Tensor, learned, 0, 0, shape[-1])
    with graph.inserting_after(first):
        total.replace_all_uses_with(_computed(graph, torch.ops.aten.view.default, first, shape))
    graph.erase_node(total)


def _computed(graph: fx.Graph, function: Any, tensor: fx.Node, *others: Any) -> fx.Node:
    """A node that torch's later passes know the size of."""
    node = graph.call_function(function, (tensor, *others))
    value = tensor.meta["val"]
    with value.fake_mode:
        node.meta["val"] = function(value, *others)
    return node
