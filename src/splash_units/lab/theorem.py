"""The approximation theorem as numbers: the largest error of interpolating units against S."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from splash_units.shape import fit

INTERVAL = (-3.0, 3.0)


@dataclass(frozen=True)
class Example:
    """A function to approximate; `lipschitz` bounds its steepness on INTERVAL, if anything does."""

    function: Callable[[Tensor], Tensor]
    lipschitz: float | None


EXAMPLES: Mapping[str, Example] = {
    "tanh": Example(torch.tanh, 1.0),
    "ELU": Example(torch.nn.functional.elu, 1.0),
    "Swish (beta 1)": Example(torch.nn.functional.silu, 1.1),
    "sin(2x)": Example(lambda x: torch.sin(2 * x), 2.0),
    "sign(x) sqrt|x|": Example(lambda x: torch.sign(x) * x.abs().sqrt(), None),
}


@functools.cache  # tables, figures and verdicts ask for the same ones
def largest_error(name: str, num_hinges: int) -> float:
    """The largest error on INTERVAL of the unit that interpolates an example at its hinges."""
    return fit(EXAMPLES[name].function, *INTERVAL, num_hinges).max_error


def promised_error(name: str, num_hinges: int) -> float | None:
    """What the theorem promises: between two hinges a Lipschitz function moves by L 2M/(S + 1)."""
    steepness = EXAMPLES[name].lipschitz
    width = 2 * max(map(abs, INTERVAL)) / (num_hinges + 1)
    return None if steepness is None else steepness * width
