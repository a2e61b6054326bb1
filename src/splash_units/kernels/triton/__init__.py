"""The GPU kernel as torch operators, loaded once, or else explained.

:func:`load` gives the operators. Without the triton package, or where it can't run a kernel, one
warning says why, and the caller goes on with the plain equation. With TRITON_INTERPRET=1 in the
environment before triton is first imported the kernel runs in Triton's interpreter, on CPU tensors:
slow, and how it is tested without a GPU.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Operators:
    """What the kernel offers; a ValueError or TypeError says what it does not serve."""

    splash: Callable[..., Tensor]
    batch_norm_splash: Callable[..., tuple[Tensor, Tensor, Tensor]]


_outcome: Operators | str | None = None
_has_warned = False


def load() -> Operators | None:
    """The operators; None, after one warning, where they can't be had."""
    outcome = _outcome or _attempt()
    if isinstance(outcome, Operators):
        return outcome
    _warn_once(outcome)
    return None


def why_not() -> str | None:
    """Why there are no operators, or None if there are; no warning."""
    outcome = _attempt()
    return outcome if isinstance(outcome, str) else None


def interpreted() -> bool:
    """Whether the kernel runs in Triton's interpreter, on CPU tensors."""
    if why_not() is not None:
        return False
    from splash_units.kernels.triton import launching

    return launching.INTERPRETED


def _attempt() -> Operators | str:
    """The operators or why there are none, found out once."""
    global _outcome
    if _outcome is None:
        _outcome = _loaded()
    return _outcome


def _loaded() -> Operators | str:
    try:
        from splash_units.kernels.triton import operators
    except (ImportError, OSError) as error:
        return (
            f"the triton package can't be imported ({error}). Install the version made for your "
            "torch, which is triton==3.7.1 for torch 2.13; on Windows the package is triton-windows"
        )
    try:
        _launch_once(operators.splash)
    except Exception as error:  # of a compiler, a driver, an assembler: whatever it is, say it
        return (
            f"Triton can't run a kernel on this GPU ({type(error).__name__}: {error}). It needs a "
            "GPU that its version supports, and a C compiler for its launcher"
        )
    return Operators(operators.splash, operators.batch_norm_splash)


def _launch_once(splash: Callable[..., Tensor]) -> None:
    """Triton compiles in the first launch; if that fails, it must before anyone relies on it."""
    if torch.cuda.is_available() and not torch.compiler.is_compiling():
        splash(*torch.zeros(4, 1, device="cuda"))


def _warn_once(reason: str) -> None:
    global _has_warned
    if not _has_warned:
        _has_warned = True
        warnings.warn(
            "SPLASH units run on the plain equation, many times slower than the GPU kernel: "
            f"{reason}. SPLASH_KERNEL=reference chooses the plain equation without this warning.",
            RuntimeWarning,
            stacklevel=3,
        )
