"""What is measured: sections of cases, each some contenders, a yardstick, and targets to meet."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from splash_units.lab.benchmarks import contenders as units
from splash_units.lab.benchmarks import steps
from splash_units.lab.benchmarks.contenders import RELU, SPLASH, Inputs, Make
from splash_units.lab.benchmarks.published import published_ratio
from splash_units.lab.timing import Prepare
from splash_units.unit import BatchNormSplash, Splash

SECTIONS = ("units", "batchnorm", "steps", "hinges", "sizes", "memory", "compile")

Shape = tuple[int, ...]
LARGE, MEDIUM, SMALL, DENSE = (64, 64, 32, 32), (128, 16, 32, 32), (128, 6, 28, 28), (128, 256)
# Forward, and forward with backward, as multiples of F.relu.
BOUNDS: Mapping[Shape, tuple[float, float]] = {
    LARGE: (1.05, 1.10),
    MEDIUM: (1.10, 1.20),
    SMALL: (1.30, 1.60),
    DENSE: (1.50, 1.60),
}
BY_CHANNEL_BOUND = 1.3
HINGES = (3, 5, 7, 9, 11, 31)
HINGE_BOUNDS = {11: 1.15, 31: 1.5}
STEP_BOUND, FUSED_STEP_BOUND, FUSED_BOUND, COMPILED_STEP_BOUND = 1.05, 1.0, 1.0, 1.05

NORM_RELU, NORM_SPLASH, FUSED = "BN + ReLU", "BN + Splash", "BatchNormSplash"


@dataclass(frozen=True)
class Target:
    """`contender` is to take at most so many times what `against` takes."""

    contender: str
    against: str
    at_most: float


@dataclass(frozen=True)
class Case:
    """Contenders that take turns; `count` instead of `contenders` where bytes are the matter.

    `rounds` of a case whose turns take seconds are so many, without a warm-up. `findings` are what
    else there is to say of a contender after its last turn.
    """

    section: str
    name: str
    yardstick: str
    contenders: Mapping[str, Prepare] = field(default_factory=dict)
    count: Mapping[str, Callable[[], int]] = field(default_factory=dict)
    targets: tuple[Target, ...] = ()
    published: Mapping[str, float] = field(default_factory=dict)
    rounds: int | None = None
    findings: Mapping[str, Callable[[], dict[str, Any]]] = field(default_factory=dict)
    records_gradients: bool = True
    compiles: bool = False

    @property
    def measures(self) -> Literal["seconds", "bytes"]:
        return "bytes" if self.count else "seconds"


def cases(sections: Sequence[str], device: str = "cpu", peers: bool = False) -> list[Case]:
    """The cases of these sections, in the order of SECTIONS. Nothing large is made yet."""
    unknown = [name for name in sections if name not in SECTIONS]
    if unknown:
        raise ValueError(f"unknown section {unknown[0]!r}: choose from {', '.join(SECTIONS)}, all")
    rivals = units.installed_peers() if peers else {}
    made: dict[str, Callable[[], Iterator[Case]]] = {
        "units": lambda: _unit_cases(device, rivals),
        "batchnorm": lambda: _batch_norm_cases(device),
        "steps": lambda: _step_cases(device),
        "hinges": lambda: _hinge_cases(device),
        "sizes": lambda: _size_cases(device),
        "memory": lambda: _memory_cases(device, rivals),
        "compile": lambda: _compile_cases(device),
    }
    return [case for name in SECTIONS if name in sections for case in made[name]()]


class _InCommon:
    """Inputs that all contenders of a case share, for as long as one of them has them.

    With memory of their own, contenders would differ by where in it they happen to be: the same
    ReLU can take nearly twice as long, depending on how its numbers meet in a shared cache.
    """

    def __init__(self, draw: Callable[[], Inputs]) -> None:
        self._draw = draw
        self._drawn: Callable[[], Inputs | None] = lambda: None

    def __call__(self) -> Inputs:
        inputs = self._drawn()
        if inputs is None:
            inputs = self._draw()
            self._drawn = weakref.ref(inputs)
        return inputs


@dataclass(frozen=True)
class _Passes:
    """A tensor and what is done with it: forward alone without gradients, or both passes."""

    shape: Shape
    device: str
    backward: bool
    dtype: torch.dtype = torch.float32
    channels_last: bool = False

    @property
    def name(self) -> str:
        said = [str(self.shape)]
        said += ["channels_last"] if self.channels_last else []
        said += [str(self.dtype).removeprefix("torch.")] if self.dtype != torch.float32 else []
        return f"{' '.join(said)}, {self.direction}"

    @property
    def direction(self) -> str:
        return "forward + backward" if self.backward else "forward"

    def inputs(self) -> Inputs:
        return units.draw_inputs(
            self.shape,
            device=self.device,
            dtype=self.dtype,
            channels_last=self.channels_last,
            requires_grad=self.backward,
        )

    def case(self, section: str, yardstick: str, makes: Mapping[str, Make]) -> Case:
        work = units.forward_backward if self.backward else units.forward
        inputs = _InCommon(self.inputs)
        contenders = {
            name: partial(lambda make: work(make, inputs()), make) for name, make in makes.items()
        }
        return Case(section, self.name, yardstick, contenders, records_gradients=self.backward)


def _unit_cases(device: str, rivals: Mapping[str, Make]) -> Iterator[Case]:
    for shape, bounds in BOUNDS.items():
        for backward, bound in zip((False, True), bounds, strict=True):
            passes = _Passes(shape, device, backward)
            target = Target(SPLASH, RELU, bound)
            by_channel = Target("Splash, by channel", "Splash", BY_CHANNEL_BOUND)
            yield replace(passes.case("units", RELU, units.UNITS), targets=(target, by_channel))
            few = {name: units.UNITS[name] for name in (RELU, SPLASH)}
            if len(shape) == 4:
                last = replace(passes, channels_last=True)
                yield replace(last.case("units", RELU, few), targets=(target,))
            short = replace(passes, dtype=torch.bfloat16)
            yield replace(short.case("units", RELU, few), targets=(target,))
            others = passes.case("units", RELU, {**few, **units.EQUATIONS, **rivals})
            yield replace(others, name=f"{others.name}, learnable units", compiles=True)


def _norm_then(unit: Callable[[], nn.Module]) -> Callable[[Inputs], nn.Module]:
    def build(inputs: Inputs) -> nn.Module:
        norm = nn.BatchNorm1d if inputs.x.dim() == 2 else nn.BatchNorm2d
        return nn.Sequential(norm(inputs.channels), unit())

    return build


_NORMS: Mapping[str, Make] = {
    NORM_RELU: units.module(_norm_then(nn.ReLU)),
    NORM_SPLASH: units.module(_norm_then(lambda: Splash(init="random"))),
    FUSED: units.module(lambda inputs: BatchNormSplash(inputs.channels, init="random")),
}


def _batch_norm_cases(device: str) -> Iterator[Case]:
    for shape in BOUNDS:
        for channels_last in (False, True) if len(shape) == 4 else (False,):
            passes = _Passes(shape, device, backward=True, channels_last=channels_last)
            target = Target(FUSED, NORM_RELU, FUSED_BOUND)
            yield replace(passes.case("batchnorm", NORM_RELU, _NORMS), targets=(target,))


_BUILDS: Mapping[str, steps.Build] = {
    NORM_RELU: steps.with_relu,
    NORM_SPLASH: steps.with_splash,
    FUSED: steps.with_fused_splash,
}


def _step_cases(device: str) -> Iterator[Case]:
    for name in steps.NETWORKS:
        ratio = published_ratio(name, units.NUM_HINGES)
        yield Case(
            "steps",
            name,
            NORM_RELU,
            _step_contenders(name, _BUILDS, device),
            targets=(
                Target(NORM_SPLASH, NORM_RELU, STEP_BOUND),
                Target(FUSED, NORM_RELU, FUSED_STEP_BOUND),
            ),
            published={} if ratio is None else {NORM_SPLASH: ratio},
        )


def _step_contenders(
    name: str, builds: Mapping[str, steps.Build], device: str, compiled: bool = False
) -> dict[str, Prepare]:
    return {
        label: partial(steps.training_step, name, build, device, compiled)
        for label, build in builds.items()
    }


def _hinge_cases(device: str) -> Iterator[Case]:
    makes = {
        RELU: units.UNITS[RELU],
        **{f"S = {s}": units.splash_function(s) for s in HINGES},
    }
    targets = tuple(Target(f"S = {s}", "S = 3", bound) for s, bound in HINGE_BOUNDS.items())
    for shape in (LARGE, MEDIUM, DENSE):
        for backward in (False, True):
            case = _Passes(shape, device, backward).case("hinges", RELU, makes)
            yield replace(case, targets=targets if shape in (LARGE, MEDIUM) else ())
    for name in ("mlp", "lenet5"):
        builds: dict[str, steps.Build] = {NORM_RELU: steps.with_relu}
        published: dict[str, float] = {}
        for s in HINGES:
            builds[f"S = {s}"] = partial(steps.with_fused_splash, num_hinges=s)
            ratio = published_ratio(name, s)
            published |= {} if ratio is None else {f"S = {s}": ratio}
        contenders = _step_contenders(name, builds, device)
        yield Case("hinges", f"{name} step", NORM_RELU, contenders, published=published)


def _size_cases(device: str) -> Iterator[Case]:
    few = {name: units.UNITS[name] for name in (RELU, SPLASH)}
    for elements in (2**power for power in range(8, 25, 4)):
        shape = (min(elements, 128), max(elements // 128, 1))
        for backward in (False, True):
            passes = _Passes(shape, device, backward)
            named = f"{elements:,} elements, {passes.direction}"
            yield replace(passes.case("sizes", RELU, few), name=named)


def _memory_cases(device: str, rivals: Mapping[str, Make]) -> Iterator[Case]:
    of_units = {**units.UNITS, **units.EQUATIONS, **rivals}
    for name, yardstick, makes, target in (
        ("units", RELU, of_units, Target(SPLASH, RELU, 0.0)),
        ("batch norm", NORM_RELU, _NORMS, Target(FUSED, NORM_RELU, 1.0)),
    ):
        passes = _Passes(MEDIUM, device, backward=True)
        yield Case(
            "memory",
            f"{MEDIUM}, saved beside x, {name}",
            yardstick,
            count={label: partial(_saved, make, passes) for label, make in makes.items()},
            targets=(target,),
            compiles=makes is of_units,
        )


def _saved(make: Make, passes: _Passes) -> int:
    return units.saved_bytes(make, passes.inputs())


def _compile_cases(device: str) -> Iterator[Case]:
    for name in ("mlp", "lenet5", "resnet20"):
        yield Case(
            "compile",
            f"{name}, compiled",
            NORM_RELU,
            _step_contenders(name, _BUILDS, device, compiled=True),
            targets=tuple(
                Target(label, NORM_RELU, COMPILED_STEP_BOUND) for label in (NORM_SPLASH, FUSED)
            ),
            compiles=True,
        )
