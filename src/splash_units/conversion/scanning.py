"""The activations that a `forward` calls, read from its source where it can't be traced.

Reading finds a call wherever it is written, also on ways that are never taken, but only under a
name that can be looked up: it serves the report, never a conversion.
"""

import ast
import inspect
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import FunctionType
from typing import Any

from torch import nn

from splash_units.conversion.activations import module_for

MOST_FUNCTIONS = 200  # that are read for one module


@dataclass(frozen=True)
class Reading:
    """What the `forward` of a module says, with the methods and functions that it calls.

    Attributes:
        calls: activations called as functions, with file:line.
        uses: the attributes of the module that are called, as often as they are.
        unreadable: functions whose source isn't at hand.
    """

    calls: tuple[tuple[str, str], ...] = ()
    uses: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()


def read(module: nn.Module, kinds: tuple[type[nn.Module], ...]) -> Reading:
    """The calls of activations of these `kinds` that `module` makes itself."""
    cls: type = type(module)
    packages = {_package(owner) for owner in cls.__mro__} - {"torch", "builtins"}
    readings: dict[object, Reading] = {}
    waiting: list[Any] = [type(module).forward]
    while waiting and len(readings) < MOST_FUNCTIONS:
        function = inspect.unwrap(waiting.pop(0))
        wanted = not readings or (
            isinstance(function, FunctionType) and _package(function) in packages
        )
        if wanted and function not in readings:
            readings[function], called = _read_function(function, cls, kinds)
            waiting += called
    return Reading(
        *(
            tuple(item for reading in readings.values() for item in getattr(reading, name))
            for name in ("calls", "uses", "unreadable")
        )
    )


def _package(thing: type | FunctionType) -> str:
    return (thing.__module__ or "").split(".")[0]


@cache
def _read_function(
    function: FunctionType, cls: type, kinds: tuple[type[nn.Module], ...]
) -> tuple[Reading, tuple[Any, ...]]:
    """What one function says, and the functions that it calls."""
    try:
        lines, first = inspect.getsourcelines(function)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return Reading(unreadable=(getattr(function, "__qualname__", "forward"),)), ()
    variables = inspect.getclosurevars(function)
    names = {**variables.globals, **variables.nonlocals}
    calls, uses, called = [], [], []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        own = _name_within(_own_name(function), node.func)
        if own is not None:
            uses.append(own)
            called.append(getattr(cls, own, None))
        elif (inherited := _name_within_super(node.func)) is not None:
            called += [vars(base).get(inherited) for base in cls.__mro__]
        else:
            target = _looked_up(node.func, names)
            called.append(target)
            if _kind_of(target, node) in kinds:
                where = f"{function.__code__.co_filename}:{first + node.lineno - 1}"
                calls.append((ast.unparse(node.func), where))
    return Reading(tuple(calls), tuple(uses)), tuple(filter(callable, called))


def _own_name(function: FunctionType) -> str:
    """What a method calls its module: "self", most of the time."""
    return next(iter(function.__code__.co_varnames), "")


def _name_within(own: str, func: ast.expr) -> str | None:
    """ "block.act" for self.block.act: a call of a child, not of a tensor's method."""
    names: list[str] = []
    while isinstance(func, ast.Attribute):
        names.insert(0, func.attr)
        func = func.value
    return ".".join(names) if isinstance(func, ast.Name) and func.id == own and names else None


def _name_within_super(func: ast.expr) -> str | None:
    """ "forward" for super().forward."""
    if not isinstance(func, ast.Attribute) or not isinstance(func.value, ast.Call):
        return None
    of = func.value.func
    return func.attr if isinstance(of, ast.Name) and of.id == "super" else None


def _looked_up(func: ast.expr, names: Mapping[str, Any]) -> Any:
    """What a called expression stands for: an object, or the name of a method of some value."""
    found = _global_object(func, names)
    return func.attr if found is None and isinstance(func, ast.Attribute) else found


def _global_object(expression: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(expression, ast.Name):
        return names.get(expression.id)
    if isinstance(expression, ast.Attribute):
        return getattr(_global_object(expression.value, names), expression.attr, None)
    return None


def _kind_of(target: Any, node: ast.Call) -> type | None:
    """The kind of activation that a call computes, as far as its arguments are constants."""
    is_method = isinstance(target, str)
    try:
        arguments = tuple(ast.literal_eval(a) for a in node.args[0 if is_method else 1 :])
        options = {k.arg: ast.literal_eval(k.value) for k in node.keywords if k.arg != "input"}
        activation = module_for(target, arguments, {k: v for k, v in options.items() if k})
    except (ValueError, TypeError):  # computed arguments
        try:
            activation = module_for(target)
        except TypeError:
            return None
    return None if activation is None else type(activation)
