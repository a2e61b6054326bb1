"""What the compiled MLP's loops and operators take inside its training steps: docs/cost.md.

python benchmarks/in_a_step.py

Microseconds, medians of steps that take turns, on two threads. Called again and again by itself, an
operator finds its numbers in the cache of the core that it runs on; inside a network both cores
have some of them, and matrix products have driven out the rest, its code included.
"""

import random
import statistics
import time
from collections.abc import Callable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch
from torch._inductor.codecache import PyCodeCache

from splash_units.kernels import native
from splash_units.lab.benchmarks import steps

BUILDS = {
    "BN + ReLU": steps.with_relu,
    "BN + Splash": steps.with_splash,
    "BatchNormSplash": steps.with_fused_splash,
}
OPERATORS = ("batch_norm_splash", "batch_norm_splash_backward")
WARM_UPS, ROUNDS = 100, 1000

Took = dict[str, list[int]]


def timed(function: Callable[..., Any], name: Callable[..., str], took: Took) -> Callable[..., Any]:
    """The function, which writes down what each call took."""

    def call(*args: Any) -> Any:
        began = time.perf_counter_ns()
        result = function(*args)
        took.setdefault(name(*args), []).append(time.perf_counter_ns() - began)
        return result

    return call


def watched(build: steps.Build) -> tuple[Callable[[], object], Took]:
    """A compiled training step whose loops and operators are timed."""
    others = set(map(id, PyCodeCache.modules))
    step = steps.training_step("mlp", build, "cpu", compiled=True)
    step()
    took: Took = {}
    for module in PyCodeCache.modules:
        if id(module) not in others:
            watch(module, took)
    return step, took


def watch(module: ModuleType, took: Took) -> None:
    for name, value in tuple(vars(module).items()):
        if name.startswith("cpp_fused"):
            setattr(module, name, timed(value, lambda *_, name=name: name, took))
    operators = SimpleNamespace(**dict(_operators(took)))
    # All that the code which inductor writes wants of torch beside them is the types of numbers.
    module.torch = SimpleNamespace(  # type: ignore[attr-defined]
        ops=SimpleNamespace(splash_units=operators), float32=torch.float32, int64=torch.int64
    )


def _operators(took: Took) -> Iterator[tuple[str, SimpleNamespace]]:
    for name in OPERATORS:
        operator = getattr(torch.ops.splash_units, name).default
        named = lambda x, *_, name=name: f"{name}, {x.shape[1]} channels"  # noqa: E731
        yield name, SimpleNamespace(default=timed(operator, named, took))


def main() -> None:
    assert native.load() is not None, native.why_not()
    torch.set_num_threads(2)
    contenders = {name: watched(build) for name, build in BUILDS.items()}
    whole: Took = {name: [] for name in contenders}
    for step, took in contenders.values():
        for _ in range(WARM_UPS):
            step()
        took.clear()
    turns = list(contenders)
    for _ in range(ROUNDS):
        random.shuffle(turns)
        for name in turns:
            began = time.perf_counter_ns()
            contenders[name][0]()
            whole[name].append(time.perf_counter_ns() - began)
    for name, (_, took) in contenders.items():
        parts = {part: statistics.median(values) / 1000 for part, values in took.items()}
        in_all = statistics.median(whole[name]) / 1000
        print(f"{name}: {in_all:.0f} in all, {sum(parts.values()):.1f} in these:")
        for part, microseconds in sorted(parts.items(), key=lambda item: -item[1]):
            print(f"  {microseconds:6.1f}  {part}")


if __name__ == "__main__":
    main()
