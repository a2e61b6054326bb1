"""What the CPU kernel's passes take by themselves, on one thread, beside ReLU's: docs/cost.md.

python benchmarks/passes.py

Nanoseconds for sixteen float32 numbers, which are one register of AVX-512: medians of calls that
take turns, each unit's operator without autograd, all writing to the same memory.
"""

import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor

from splash_units import Splash
from splash_units.kernels import native

HINGES = (3, 7, 11, 31)
SIZES = {"second cache": 2**16, "third cache": 2**21}
SECONDS = 2.0
NUMBERS = 16

Call = Callable[[], object]


def calls(direction: str, size: int) -> dict[str, Call]:
    """ReLU's pass and the unit's with each number of hinges, over the same numbers."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(size, generator=generator) for _ in range(2))
    found: dict[str, Call] = {"ReLU": _relu(direction, x, grad)}
    for count in HINGES:
        found[f"S = {count}"] = _splash(direction, x, grad, Splash(count, init="random"))
    return found


def _relu(direction: str, x: Tensor, grad: Tensor) -> Call:
    if direction == "forward":
        return lambda: torch.relu(x)
    return lambda: torch.ops.aten.threshold_backward(grad, x, 0)


def _splash(direction: str, x: Tensor, grad: Tensor, unit: Splash) -> Call:
    operators = native.load()
    assert operators is not None, native.why_not()
    shape = (unit.a_pos.detach(), unit.a_neg.detach(), unit.hinges)
    if direction == "forward":
        return lambda: operators.splash(x, *shape, 0, 1.0)
    return lambda: operators.splash_backward(grad, x, *shape, 0, 1.0)


def medians(contenders: dict[str, Call], size: int) -> dict[str, float]:
    """Nanoseconds for so many numbers."""
    at_a_time = max(1, 2**18 // size)
    took: dict[str, list[float]] = {name: [] for name in contenders}
    end = time.perf_counter() + SECONDS * len(contenders)
    while time.perf_counter() < end:
        for name, call in contenders.items():
            begin = time.perf_counter_ns()
            for _ in range(at_a_time):
                call()
            took[name].append((time.perf_counter_ns() - begin) / at_a_time / size * NUMBERS)
    return {name: statistics.median(times) for name, times in took.items()}


def main() -> None:
    torch.set_num_threads(1)
    names = ["ReLU", *(f"S = {count}" for count in HINGES)]
    print(f"| | {' | '.join(names)} |\n|{' --- |' * (len(names) + 1)}")
    for place, size in SIZES.items():
        for direction in ("forward", "backward"):
            found = medians(calls(direction, size), size)
            cells = [f"{found[name]:.1f}" for name in names]
            print(f"| {direction}, {place} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
