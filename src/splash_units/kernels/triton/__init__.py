"""The GPU kernel as torch operators, loaded once, or else explained.

:func:`load` gives the operators. Without the triton package, one warning says so, and the caller
goes on with the plain equation. With TRITON_INTERPRET=1 in the environment before triton is first
imported the kernel runs in Triton's interpreter, on CPU tensors: slow, and how it is tested without
a GPU.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True)
class Operators:
    """What the kernel offers; a ValueError or TypeError says what it does not serve."""

    splash: Callable[..., Tensor]
    batch_norm_splash: Callable[..., tuple[Tensor, Tensor, Tensor]]


def load() -> Operators | None:
    """The operators; None, after one warning, without the triton package."""
    outcome = _attempt()
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


@functools.cache
def _attempt() -> Operators | str:
    try:
        from splash_units.kernels.triton import operators
    except (ImportError, OSError) as error:
        return (
            f"the triton package can't be imported ({error}). Install the version made for your "
            "torch, which is triton==3.7.1 for torch 2.13; on Windows the package is triton-windows"
        )
    return Operators(operators.splash, operators.batch_norm_splash)


@functools.cache
def _warn_once(reason: str) -> None:
    warnings.warn(
        "SPLASH units run on the plain equation, many times slower than the GPU kernel: "
        f"{reason}. SPLASH_KERNEL=reference chooses the plain equation without this warning.",
        RuntimeWarning,
        stacklevel=3,
    )
