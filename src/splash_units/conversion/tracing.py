"""The calls that a module's own `forward` makes, as torch.fx graphs that can stand in for it.

One module at a time, with its children as leaves: what can't be traced spoils nothing else. A graph
is taken for each way through `forward` that a caller can choose: training or not, and each optional
argument given or not, each flag set or not. All are kept, since torch.fx alone would freeze the way
that happened to be traced.

torch.fx also loses silently what isn't an operation on a traced value. Whatever of that can be
noticed is refused here as :class:`UntraceableError`: attributes that `forward` sets, tensors and
random numbers of its own, gradient and autocast contexts, questions after the type of an input.
What can't be noticed is a decision on anything else in the outside world: it is frozen.
"""

import copy
import dis
import inspect
import itertools
import operator
import os
import random
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import fx, nn

MOST_WAYS = 16

_NOT_THE_USERS = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, __file__))


class UntraceableError(Exception):
    """A `forward` that a graph can't stand in for; the message says why."""


@dataclass(frozen=True)
class Choice:
    """A yes or no that a caller decides: `expression` tells it inside `forward`."""

    expression: str
    argument: str | None = None
    if_true: Any = None
    if_false: Any = None


@dataclass(frozen=True)
class Way:
    """One way through `forward`: the answer to each choice, and the graph of it."""

    answers: tuple[bool, ...]
    graph: fx.Graph


@dataclass(frozen=True)
class Trace:
    """Every way through the `forward` of one module."""

    parameters: tuple[str, ...]
    choices: tuple[Choice, ...]
    ways: tuple[Way, ...]


@dataclass(frozen=True)
class Origin:
    """Where in the user's code a node comes from."""

    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def origin_of(node: fx.Node) -> Origin:
    """Where in the user's code a node of a :class:`Trace` comes from."""
    origin = node.meta["origin"]
    assert isinstance(origin, Origin)
    return origin


def has_own_forward(module: nn.Module) -> bool:
    """Whether `forward` was written by the user, not by torch."""
    if isinstance(module, fx.GraphModule | torch.jit.ScriptModule):  # generated from the user's
        return True
    return not (type(module).forward.__module__ or "").startswith("torch.")


def trace(module: nn.Module) -> Trace:
    """Every way through the `forward` of `module`, or :class:`UntraceableError`."""
    if isinstance(module, fx.GraphModule):
        return _own_graph(module)
    if isinstance(module, torch.jit.ScriptModule):
        raise UntraceableError("it is compiled by TorchScript")
    if "forward" in vars(module):
        raise UntraceableError("its forward was replaced on the instance")
    parameters = _parameters(module)
    choices = _choices(parameters)
    if 2 ** len(choices) > MOST_WAYS:
        raise UntraceableError(f"its forward has {len(choices) - 1} optional arguments")
    ways = tuple(
        Way(answers, _traced_once(module, choices, answers))
        for answers in itertools.product((True, False), repeat=len(choices))
    )
    return Trace(tuple(p.name for p in parameters), choices, ways)


def _own_graph(module: fx.GraphModule) -> Trace:
    """The graph that a module made by torch.fx consists in; its nodes stand for lines."""
    graph = copy.deepcopy(module.graph)
    for line, node in enumerate(graph.nodes, start=1):
        node.meta["origin"] = Origin(f"graph of {type(module).__name__}", line, "forward")
    return Trace((), (), (Way((), graph),))


def _parameters(module: nn.Module) -> tuple[inspect.Parameter, ...]:
    """The parameters of `forward` after self, if a plain list can stand for them."""
    parameters = tuple(inspect.signature(type(module).forward).parameters.values())[1:]
    optional = False
    for p in parameters:
        if p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD):
            raise UntraceableError(f"its forward takes {p}")
        if optional and p.default is p.empty:
            raise UntraceableError(f"its forward needs {p.name} after optional arguments")
        optional = p.default is not p.empty
    return parameters


_GIVEN = object()


def _choices(parameters: tuple[inspect.Parameter, ...]) -> tuple[Choice, ...]:
    choices = [Choice("self.training")]
    for p in parameters:
        if p.default is None:
            choices.append(Choice(f"{p.name} is None", p.name, None, _GIVEN))
        elif isinstance(p.default, bool):
            choices.append(Choice(f"bool({p.name})", p.name, True, False))
    return tuple(choices)


def _traced_once(
    module: nn.Module, choices: tuple[Choice, ...], answers: tuple[bool, ...]
) -> fx.Graph:
    chosen = {
        choice.argument: choice.if_true if answer else choice.if_false
        for choice, answer in zip(choices, answers, strict=True)
        if choice.argument is not None
    }
    fixed = {name: value for name, value in chosen.items() if value is not _GIVEN}
    before = module.training
    module.training = answers[0]
    try:
        with _undisturbed(module):
            return _ForwardTracer(fixed).trace(module)
    except UntraceableError:
        raise
    except Exception as error:
        reason = str(error).strip().split("\n")[0]
        raise UntraceableError(
            f"torch.fx can't trace it ({type(error).__name__}: {reason})"
        ) from error
    finally:
        module.training = before


class _ForwardTracer(fx.Tracer):
    """Records what one `forward` does; its children are leaves, its buffers are not constants."""

    proxy_buffer_attributes = True

    def __init__(self, fixed: Mapping[str, Any]) -> None:
        super().__init__()
        self._fixed = fixed
        self._surroundings = _surroundings()

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True

    def proxy(self, node: fx.Node) -> fx.Proxy:
        return _UntypedProxy(node, self)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """A traced value can't be decided on, but what is asserted of it can be recorded.

        (torch.fx has a way of its own, `trace_asserts`, that no Python from 3.11 on gets to see.)
        """
        asking = sys._getframe(2)  # past Proxy.__bool__
        if not _is_assertion(asking):
            return super().to_bool(obj)
        record: Any = torch._assert
        record(obj, f"the assertion at {_origin(self.root)} does not hold")
        return True

    def create_node(self, *args: Any, **kwargs: Any) -> fx.Node:
        if _surroundings() != self._surroundings:
            raise UntraceableError("it enters a gradient or autocast context")
        node = super().create_node(*args, **kwargs)
        node.meta["origin"] = _origin(self.root)
        return node

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """A placeholder for each parameter; `fixed` ones are ignored in favour of their value."""
        positional: list[Any] = [self.root]
        by_name: dict[str, Any] = {}
        for p in tuple(inspect.signature(root_fn).parameters.values())[1:]:
            proxy = self.create_proxy("placeholder", p.name, (), {})
            value = self._fixed.get(p.name, proxy)
            if p.kind is p.KEYWORD_ONLY:
                by_name[p.name] = value
            else:
                positional.append(value)

        def call(*_: Any) -> Any:
            return root_fn(*positional, **by_name)

        return call, positional


class _UntypedProxy(fx.Proxy):
    """A traced value that refuses to say what it is: isinstance(x, Tensor) would be False."""

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        asking = sys._getframe(1)
        # torch looks at the type of its arguments, too, in the name of whoever calls it.
        by_user = _is_user_code(asking) and "isinstance" in asking.f_code.co_names
        if by_user or asking.f_code is torch.is_tensor.__code__:
            raise UntraceableError("it asks for the type of a value, which tracing doesn't know")
        return _UntypedProxy


def _is_user_code(frame: FrameType) -> bool:
    return not frame.f_code.co_filename.startswith(_NOT_THE_USERS)


def _origin(module: object) -> Origin:
    """The line of user code that is running, and the method of `module` that it belongs to."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_user_code(frame):
        frame = frame.f_back
    if frame is None:
        return Origin("", 0, "")
    file, line = frame.f_code.co_filename, frame.f_lineno
    while frame is not None and not _is_method_of(module, frame):
        frame = frame.f_back
    return Origin(file, line, "" if frame is None else frame.f_code.co_name)


def _is_assertion(frame: FrameType) -> bool:
    """Whether the instruction that is running is the condition of an `assert`."""
    after = (i.opname for i in dis.get_instructions(frame.f_code) if i.offset > frame.f_lasti)
    following = [name for name in itertools.islice(after, 4) if name != "CACHE"]
    return "LOAD_ASSERTION_ERROR" in following[:2]


def _is_method_of(module: object, frame: FrameType) -> bool:
    return any(frame.f_locals.get(name) is module for name in frame.f_code.co_varnames[:1])


def _surroundings() -> tuple[bool, bool, int]:
    autocast_contexts = torch.autocast_increment_nesting()  # the only way to read it
    torch.autocast_decrement_nesting()
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), autocast_contexts


@contextmanager
def _undisturbed(module: nn.Module) -> Iterator[None]:
    """Undo what tracing `forward` does beside its operations, and refuse a graph that would not."""
    attributes, contents = dict(vars(module)), _contents(module)
    generators = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    seen = _random_states()
    try:
        yield
    finally:
        drew = _random_states() != seen
        random.setstate(generators[0])
        np.random.set_state(generators[1])  # noqa: NPY002 - the global state is meant
        torch.set_rng_state(generators[2])
        changed = _changed(module, attributes, contents)
        if changed:
            _restore(module, attributes, contents)
    if drew:
        raise UntraceableError("it draws random numbers, which a graph would freeze")
    if any(name.startswith("_tensor_constant") for name in changed):
        raise UntraceableError("it makes a tensor of its own, which a graph would freeze")
    if changed:
        raise UntraceableError(f"it sets its own attribute {', '.join(sorted(changed))}")


def _random_states() -> tuple[object, ...]:
    """The states of the global generators, in a form that compares."""
    numpys: Mapping[str, Any] = np.random.get_state(legacy=False)  # noqa: NPY002
    keys, position = numpys["state"]["key"], numpys["state"]["pos"]
    return random.getstate(), keys.tobytes(), position, torch.get_rng_state().tolist()


def _contents(module: nn.Module) -> dict[str, Any]:
    """What each attribute that is a container holds; its parameters and buffers among them."""
    return {k: v.copy() for k, v in vars(module).items() if isinstance(v, list | dict | set)}


def _changed(
    module: nn.Module, attributes: Mapping[str, Any], contents: Mapping[str, Any]
) -> set[str]:
    now = vars(module)
    changed = {name for name, value in now.items() if attributes.get(name, module) is not value}
    changed |= {name for name in attributes if name not in now}
    return changed | {
        name for name, held in contents.items() if name in now and not _same(held, now[name])
    }


def _same(held: Any, holds: Any) -> bool:
    """Whether a container holds the very same objects as its copy did."""
    if type(held) is not type(holds) or len(held) != len(holds):
        return False
    if isinstance(held, dict):
        return all(name in holds and holds[name] is value for name, value in held.items())
    return held == holds if isinstance(held, set) else all(map(operator.is_, held, holds))


def _restore(module: nn.Module, attributes: Mapping[str, Any], contents: Mapping[str, Any]) -> None:
    vars(module).clear()
    vars(module).update(attributes)
    for name, held in contents.items():
        container = attributes[name]
        container.clear()
        container.extend(held) if isinstance(held, list) else container.update(held)
