"""The CPU kernel as torch operators: found in the cache or built, loaded once, or else explained.

:func:`load` gives the operators. Where there are none to be had, one warning says why and what to
do, and the caller goes on with the plain equation. `python -m splash_units.kernels.native` builds
ahead of the first use.
"""

import importlib.machinery
import importlib.util
import os
import threading
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from splash_units.kernels.native import building, cache, second_derivative, toolchain
from splash_units.kernels.native.toolchain import Compiler, Unavailable
from splash_units.kernels.native.toolchain import WrongSetting as WrongSetting

NAMESPACE = "splash_units"
MOST_HINGES = 64  # native.h: most_hinges


class Operators:
    """The library's operators as attributes, each the function behind its overload.

    Calling `torch.ops.splash_units.splash` would look for the right overload in every call, and an
    overload is one more Python frame, which shows beside the few microseconds of a small tensor.
    """

    def __init__(self, library: Path) -> None:
        self.library = library

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function: Callable[..., Any] = getattr(getattr(torch.ops, NAMESPACE), name).default._op
        setattr(self, name, function)  # the next time without this detour
        return function


class Calls(Protocol):
    """The library's functions for ordinary calls of its operators; None is their answer to others.

    Those that `with_general_way` gives hand other calls on to a function instead.
    """

    def splash(self, *arguments: Any) -> Tensor | None: ...
    def unit(self, *arguments: Any) -> Tensor | None: ...
    def batch_norm_splash(self, *arguments: Any) -> tuple[Tensor, Tensor] | None: ...
    def with_general_way(self, name: str, general: Callable[..., Any]) -> Callable[..., Any]: ...


# None before the library is loaded, and where it was built without Python's headers.
calls: Calls | None = None

_first_time = threading.Lock()
_outcome: Operators | Unavailable | None = None
_has_warned = False
_registrations: list[torch.library.Library] = []  # what they register goes when they do


def load() -> Operators | None:
    """The operators; None, after one warning, where they can't be had."""
    outcome = _outcome or attempt()
    if isinstance(outcome, Operators):
        return outcome
    _warn_once(outcome)
    return None


def why_not() -> str | None:
    """Why there are no operators, or None if there are; no warning."""
    outcome = attempt()
    return str(outcome) if isinstance(outcome, Unavailable) else None


def attempt() -> Operators | Unavailable:
    """The operators or why there are none: found out once, by whichever thread comes first."""
    global _outcome
    with _first_time:
        if _outcome is None:
            try:
                _outcome = _loaded(_library())
            except Unavailable as error:
                _outcome = error
        return _outcome


def _library() -> Path:
    """The library for this machine, built if it is not in the cache."""
    if os.name != "posix":
        raise Unavailable("it is built on Linux and macOS only; on Windows use WSL")
    instruction_set = toolchain.chosen_instruction_set()
    try:
        compiler: Compiler | Unavailable = toolchain.find_compiler()
    except Unavailable as error:
        compiler = error
    return building.library(cache.default_folder(), instruction_set, compiler)


def _loaded(library: Path) -> Operators:
    global calls
    try:
        torch.ops.load_library(str(library))  # type: ignore[no-untyped-call]
    except OSError as error:
        raise Unavailable(
            f"the library was built but does not load: {error.__cause__ or error}. If its folder "
            "is on a file system that runs no programs (noexec), set SPLASH_CACHE to another"
        ) from error
    registration = torch.library.Library(NAMESPACE, "IMPL")  # type: ignore[no-untyped-call]
    for name, function in second_derivative.IMPLEMENTATIONS.items():
        registration.impl(  # type: ignore[no-untyped-call]
            name, function, "CompositeImplicitAutograd"
        )
    _registrations.append(registration)
    calls = _calls(library)
    if calls is not None:
        _shorten_the_way(calls)
    return Operators(library)


def _shorten_the_way(calls: Calls) -> None:
    """Have the operators called directly, where someone else calls them: a compiled graph.

    Between two small layers torch's general way takes longer than the operator itself.
    """
    for name in ("splash", "splash_backward", "batch_norm_splash", "batch_norm_splash_backward"):
        overload = getattr(getattr(torch.ops, NAMESPACE), name).default
        overload._op = calls.with_general_way(name, overload._op)


def _calls(library: Path) -> Calls | None:
    """The Python module in `library`, if it was built with one."""
    loader = importlib.machinery.ExtensionFileLoader("splash_units_calls", str(library))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    try:
        module = importlib.util.module_from_spec(spec)
    except ImportError:
        return None
    loader.exec_module(module)
    return cast("Calls", module)


def _warn_once(reason: Unavailable) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warnings.warn(
            "SPLASH units run on the plain equation, many times slower than the CPU kernel: "
            f"{reason}. SPLASH_KERNEL=reference chooses the plain equation without this warning.",
            RuntimeWarning,
            stacklevel=3,
        )
