"""What a gradient costs that arrives in another order of memory than x: docs/kernels.md.

python benchmarks/layouts.py

Backward passes of the unit and of ReLU, two threads, x with channels last and the gradient
contiguous or the other way round, as multiples of ReLU's where both lie alike: medians of calls
that take turns. The C library keeps the memory of freed tensors, as in `splash bench`.
"""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from splash_units import Splash
from splash_units.kernels import native
from splash_units.lab.benchmarks.record import keep_freed_memory
from splash_units.lab.timing import Effort, Stopwatch, Work, ratio

SHAPES = ((128, 6, 28, 28), (128, 16, 32, 32), (64, 64, 32, 32))
YARDSTICK = "ReLU, both alike"


def contenders(shape: tuple[int, ...]) -> dict[str, Callable[[], Work]]:
    """The passes over one shape, all with the same numbers."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(shape, generator=generator) for _ in range(2))
    last = partial(Tensor.contiguous, memory_format=torch.channels_last)
    operators = native.load()
    assert operators is not None, native.why_not()
    unit = Splash(init="random")
    slopes = (unit.a_pos.detach(), unit.a_neg.detach(), unit.hinges)

    def relu(x: Tensor, grad: Tensor) -> Work:
        return lambda: torch.ops.aten.threshold_backward(grad, x, 0)

    def splash(x: Tensor, grad: Tensor) -> Work:
        return lambda: operators.splash_backward(grad, x, *slopes, 0, 1.0)

    found: dict[str, Callable[[], Work]] = {}
    for name, of in (("ReLU", relu), ("SPLASH", splash)):
        found[f"{name}, both alike"] = partial(of, x, grad)
        found[f"{name}, x with channels last"] = partial(of, last(x), grad)
        found[f"{name}, gradient with channels last"] = partial(of, x, last(grad))
    return found


def main() -> None:
    torch.set_num_threads(2)
    keep_freed_memory()
    for number, shape in enumerate(SHAPES):
        with torch.no_grad():
            samples = Stopwatch().compare(contenders(shape), Effort(seconds=4.0))
        if number == 0:
            print(f"| | {' | '.join(samples)} |\n|{' --- |' * (len(samples) + 1)}")
        ratios = (
            ratio(each.seconds, samples[YARDSTICK].seconds).median for each in samples.values()
        )
        print(f"| {shape} | {' | '.join(f'{r:.2f}' for r in ratios)} |", flush=True)


if __name__ == "__main__":
    main()
