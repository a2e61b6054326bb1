"""A module with another `forward`, that is otherwise what it was.

The module object stays, with its class's methods, its hooks and its children; only its class
becomes a subclass with the new `forward`. The subclass goes by the name of the class, copies, and
pickles as its class and the source of the new `forward`.
"""

import copy
import inspect
import linecache
import re
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from types import FunctionType, ModuleType
from typing import Any

from torch import fx, nn

from splash_units.conversion.tracing import Trace

_numbers = count(1)


@dataclass(frozen=True)
class _Module:
    """A Python module by its name, since modules don't pickle."""

    name: str


@dataclass(frozen=True)
class Source:
    """A generated `forward`: its text, and the objects that the names in it stand for."""

    text: str
    names: tuple[tuple[str, Any], ...]

    @classmethod
    def of(cls, graph: fx.Graph) -> "Source":
        code = graph.python_code("self")
        names = {
            name: _Module(value.__name__) if isinstance(value, ModuleType) else value
            for name, value in sorted(code.globals.items(), key=lambda item: item[0])
            if re.search(rf"\b{name}\b", code.src)
        }
        return cls(code.src.strip() + "\n", tuple(names.items()))

    def function(self, file: str, **names: Any) -> FunctionType:
        """The `forward` that the text defines, which tracebacks can quote."""
        scope: dict[str, Any] = {
            name: import_module(value.name) if isinstance(value, _Module) else value
            for name, value in self.names
        }
        scope |= names  # and no __name__: torch.compile would look the names up in that module
        linecache.cache[file] = (len(self.text), None, self.text.splitlines(keepends=True), file)
        exec(compile(self.text, file, "exec"), scope)
        forward: FunctionType = scope["forward"]
        return forward


@dataclass(frozen=True)
class Forward:
    """A new `forward`: one source, or one for each answer to the caller's choices.

    `chooser` is the source that picks among several.
    """

    sources: tuple[tuple[tuple[bool, ...], Source], ...]
    chooser: Source | None = None

    @classmethod
    def of(cls, traced: Trace) -> "Forward":
        sources = tuple((way.answers, Source.of(way.graph)) for way in traced.ways)
        if len({source for _, source in sources}) == 1:
            return cls(sources[:1])
        given = ", ".join(("self", *traced.parameters))
        answers = ", ".join(choice.expression for choice in traced.choices)
        chooser = f"def forward({given}):\n    return _ways[{answers},]({given})\n"
        return cls(sources, Source(chooser, ()))

    def function(self, file: str) -> FunctionType:
        if self.chooser is None:
            return self.sources[0][1].function(file)
        ways = {answers: source.function(f"{file} {answers}") for answers, source in self.sources}
        return self.chooser.function(file, _ways=ways)


def rewrite(module: nn.Module, traced: Trace) -> None:
    """Give a module the `forward` that its graphs say, once it has the children they call."""
    if isinstance(module, fx.GraphModule):  # has a graph of its own, which must not go stale
        module.graph = copy.deepcopy(traced.ways[0].graph)
        return
    original: type[nn.Module] = getattr(type(module), "_before_conversion", type(module))
    module.__class__ = _subclass(original, Forward.of(traced))


_subclasses: dict[tuple[type, Forward], type[nn.Module]] = {}


def _subclass(cls: type[nn.Module], forward: Forward) -> type[nn.Module]:
    """`cls` with another `forward`; the same class for the same `forward`."""
    if (cls, forward) not in _subclasses:
        _subclasses[cls, forward] = _new_subclass(cls, forward)
    return _subclasses[cls, forward]


def _new_subclass(cls: type[nn.Module], forward: Forward) -> type[nn.Module]:
    function = forward.function(f"<forward of {cls.__qualname__} with units, {next(_numbers)}>")
    parameters = inspect.signature(cls.forward).parameters.values()
    function.__defaults__ = tuple(p.default for p in parameters if p.default is not p.empty)
    function.__module__ = cls.__module__
    function.__doc__ = cls.forward.__doc__
    function.__qualname__ = f"{cls.__qualname__}.forward"

    def __reduce_ex__(self: nn.Module, protocol: Any) -> tuple[Any, ...]:
        reduced = super(rewritten, self).__reduce_ex__(protocol)
        return (_blank, (cls, forward), *reduced[2:])

    metaclass: Any = type(cls)
    rewritten: type[nn.Module] = metaclass(
        cls.__name__,
        (cls,),
        {
            "__module__": cls.__module__,
            "__qualname__": cls.__qualname__,
            "__doc__": cls.__doc__,
            "__reduce_ex__": __reduce_ex__,
            "_before_conversion": cls,
            "forward": function,
        },
    )
    return rewritten


def _blank(cls: type[nn.Module], forward: Forward) -> nn.Module:
    """What copying and unpickling start from: an object of the rewritten class without state."""
    rewritten = _subclass(cls, forward)
    return rewritten.__new__(rewritten)
