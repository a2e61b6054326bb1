"""The kernel's quick way in from Python: the same results, and none where others want a say."""

import subprocess
import sys
import weakref

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from splash_units import BatchNormSplash, Splash, splash
from splash_units.kernels import native
from splash_units.kernels.native import building

OPERATORS = native.load()
if OPERATORS is None:
    pytest.skip(f"no CPU kernel here: {native.why_not()}", allow_module_level=True)
if native.calls is None:
    pytest.skip("built without Python's headers", allow_module_level=True)
CALLS = native.calls


def arguments(*own: int) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    slopes = (torch.randn(4, *own, generator=generator).requires_grad_() for _ in range(2))
    return (*slopes, torch.tensor([0.0, 1.0, 2.0, 2.5]))


def test_has_the_operators_results() -> None:
    x, unit = torch.randn(5, 3, 7, requires_grad=True), arguments(3)
    ours = CALLS.splash(x, *unit, 1, 0.5)
    theirs = OPERATORS.splash(x, *unit, 1, grad_scale=0.5)  # a name: torch's general way
    assert torch.equal(ours, theirs)
    wanted = (x, *unit[:2])
    grads = (torch.autograd.grad(y.sum(), wanted) for y in (ours, theirs))
    assert all(torch.equal(a, b) for a, b in zip(*grads, strict=True))


def shape(unit: Splash) -> tuple[Tensor, ...]:
    return unit.a_pos, unit.a_neg, unit.hinges


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
def test_has_the_fused_operators_results(affine: bool, tracked: bool) -> None:
    x = torch.randn(6, 3, 4, 4)
    units = [BatchNormSplash(3, affine=affine, track_running_stats=tracked) for _ in range(2)]
    given = [
        (x, u.weight, u.bias, u.running_mean, u.running_var, *shape(u), True, 0.1, 1e-5)
        for u in units
    ]
    ours = CALLS.batch_norm_splash(*given[0], 0.5)
    theirs = OPERATORS.batch_norm_splash(*given[1], grad_scale=0.5)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    if tracked:
        assert torch.equal(units[0].running_var, units[1].running_var)


def test_tensors_are_borrowed_and_given_back_even_after_an_error() -> None:
    unit, x = BatchNormSplash(3), torch.randn(6, 3, 4, 4)
    of_channels = [torch.full((3,), 1.0 + i) for i in range(4)]
    wrong = torch.ones(5)
    for last, channels in enumerate([of_channels, [*of_channels[:3], wrong]] * 50):
        given = (x, *channels, *shape(unit), True, 0.0, 1e-5, 0.5)
        if last % 2 == 0:
            CALLS.batch_norm_splash(*given)
        else:
            with pytest.raises(ValueError, match="3 channels"):
                CALLS.batch_norm_splash(*given)
    assert [t.tolist() for t in of_channels] == [[1.0 + i] * 3 for i in range(4)]
    watched = [weakref.ref(t) for t in (*of_channels, wrong)]
    del of_channels, wrong, channels, given
    assert all(tensor() is None for tensor in watched)


@pytest.mark.parametrize("rows", [2, 2000])
def test_small_tensors_and_large_ones_may_be_kept_by_python_code(rows: int) -> None:
    """Whether or not Python's lock was let go: hooks, which are Python, run in either case."""
    packed: list[Tensor] = []
    x, unit = torch.randn(rows, 40, requires_grad=True), arguments()

    def pack(tensor: Tensor) -> Tensor:
        packed.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = CALLS.splash(x, *unit, 0, 1.0)
    assert len(packed) == 4
    gradient = torch.autograd.grad(y.sum(), x)[0]
    assert torch.equal(gradient, torch.autograd.grad(CALLS.splash(x, *unit, 0, 1.0).sum(), x)[0])


class OwnKind(Tensor):
    """A tensor with a mind of its own."""


class Watching(TorchFunctionMode):
    """Under which every call goes the general way."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {}))


class WatchingBelow(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.* is deprecated:DeprecationWarning")
def test_is_not_for_calls_that_someone_watches() -> None:
    x, unit = torch.randn(3, 4), arguments()
    answers: list[Tensor | None] = []

    def ask(t: Tensor) -> Tensor:
        answers.append(CALLS.splash(t, *unit, 0, 1.0))
        answers.append(CALLS.unit(t, *unit, "layer", 1, "auto"))
        return t * 1

    torch.func.vmap(ask)(x)
    torch.jit.trace(ask, x, check_trace=False)
    with Watching():
        ask(x)
    with WatchingBelow():
        ask(x)
    ask(x.as_subclass(OwnKind))
    ask(x.to("meta"))
    assert answers == [None] * 12


def test_who_watches_sees_the_operator() -> None:
    with WatchingBelow() as watching:
        Splash()(torch.randn(3, 4))
    assert any("splash_units.splash" in name for name in watching.seen)


def test_an_operator_leaves_other_calls_to_the_general_way() -> None:
    x, unit = torch.randn(3, 4), arguments()
    usual = torch.ops.splash_units.splash.default(x, *unit, 0, 1.0)
    assert torch.equal(torch.ops.splash_units.splash.default(x, *unit), usual)
    assert torch.equal(OPERATORS.splash(x=x, a_pos=unit[0], a_neg=unit[1], hinges=unit[2]), usual)
    with WatchingBelow() as watching:
        watched = OPERATORS.splash(x, *unit, 0, 1.0)
    assert torch.equal(watched, usual)
    assert watching.seen == ["splash_units.splash.default"]
    with pytest.raises(RuntimeError, match="splash_units::splash"):
        OPERATORS.splash(x, *unit, "0", 1.0)
    with pytest.raises(ValueError, match="no such operator"):
        CALLS.with_general_way("relu", torch.relu)


def test_a_wrong_argument_is_an_error_like_any_other() -> None:
    x, (a_pos, a_neg, hinges) = torch.randn(3, 4), arguments()
    with pytest.raises(ValueError, match="one row for each"):
        CALLS.splash(x, a_pos[:3], a_neg, hinges, 0, 1.0)
    assert CALLS.splash(x, a_pos, a_neg, hinges, "0", 1.0) is None
    assert CALLS.splash(x, a_pos, a_neg, hinges) is None
    with pytest.raises(ValueError, match="a_pos must have one row for each of the 4 hinges"):
        splash(x, a_pos[:3], a_neg[:3], hinges)


def test_without_it_the_operators_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    x, network = torch.randn(5, 3, 4, 4), nn.Sequential(BatchNormSplash(3), Splash(init="tanh"))
    with_calls = network(x)
    monkeypatch.setattr(native, "calls", None)
    assert torch.equal(network(x), with_calls)


def test_without_pythons_headers_the_library_is_built_without_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def sources() -> list[str]:
        return [u.source for u in building.translation_units(building.SOURCES, "portable")]

    assert "native_python.cpp" in sources()
    monkeypatch.setattr(building, "has_python_headers", lambda: False)
    assert sources() == ["batch_norm.cpp", "layout.cpp", "native.cpp", "native_ops.cpp"]


def test_a_library_without_it_has_no_calls(tmp_path) -> None:
    empty = tmp_path / "empty.so"
    source = tmp_path / "empty.c"
    source.write_text("int nothing;\n")
    subprocess.run(["cc", "-shared", "-fPIC", str(source), "-o", str(empty)], check=True)
    assert native._calls(empty) is None


def test_another_python_gets_another_library() -> None:
    program = (
        "from importlib import machinery; machinery.EXTENSION_SUFFIXES[0] = '.another.so'\n"
        "from splash_units.kernels.native import building\n"
        "print([u.key for u in building.translation_units(building.SOURCES, 'portable')])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    keys = {u.source: u.key for u in building.translation_units(building.SOURCES, "portable")}
    assert keys["native.cpp"] in done.stdout
    assert keys["native_ops.cpp"] in done.stdout
    assert keys["native_python.cpp"] not in done.stdout


PLACES: tuple[tuple[tuple[int, ...], int], ...] = (
    ((5, 6), 1),
    ((5, 6), -1),
    ((6, 5), 0),
    ((5, 6, 7, 4), 1),
    ((5, 4, 3, 6), -1),
    ((6, 5, 4), -3),
    ((5, 6, 1, 1), 1),
    ((0, 6), 1),
    ((6,), 0),
)
SHARED = [
    *(("layer", *place) for place in PLACES),
    *(("channel", *place) for place in PLACES),
    *(("unit", *place) for place in PLACES[:-1]),  # a sample without dimensions has no units
]


@pytest.mark.parametrize("grad_scale", ["auto", 0.3, 2])
@pytest.mark.parametrize(("share", "shape", "dim"), SHARED)
def test_the_short_way_of_a_unit_computes_what_the_general_way_does(
    share: str, shape: tuple[int, ...], dim: int, grad_scale: float | str
) -> None:
    torch.manual_seed(0)
    features = {"layer": None, "channel": 6, "unit": shape[1:]}[share]
    unit = Splash(5, init="random", share=share, features=features, dim=dim, grad_scale=grad_scale)
    x, grad = torch.randn(shape, requires_grad=True), torch.randn(shape)

    def results() -> list[Tensor]:
        y = unit(x)
        return [y, *torch.autograd.grad(y, (x, unit.a_pos, unit.a_neg), grad)]

    short = results()
    with Watching():
        general = results()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(short, general, strict=True))
    answer = CALLS.unit(x, unit.a_pos, unit.a_neg, unit.hinges, share, dim, unit.grad_scale)
    assert (answer is None) == (share == "unit")


@pytest.mark.parametrize("dim", [10**30, -(10**30), 2, -3, True, "1", None])
def test_the_short_way_of_a_unit_leaves_strange_dimensions_to_the_general_way(dim: object) -> None:
    unit = Splash(share="channel", features=6)
    x = torch.randn(5, 6)
    assert CALLS.unit(x, unit.a_pos, unit.a_neg, unit.hinges, "channel", dim, "auto") is None


@pytest.mark.parametrize("shape", [(5, 7), (5, 1), (5,), (7, 6)])
def test_the_short_way_of_a_unit_refuses_other_channels(shape: tuple[int, ...]) -> None:
    unit = Splash(share="channel", features=6, dim=0 if shape == (7, 6) else 1)
    with pytest.raises(ValueError, match=r"made for 6 channels along dimension \d, got an input"):
        unit(torch.randn(shape))


def test_what_the_kernel_refuses_saves_nothing_on_the_way(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who counts what is saved, as checkpoints do, must not meet tensors of no backward."""
    unit = Splash(hinges=[0.01 * i for i in range(native.MOST_HINGES + 1)])
    x = torch.randn(3, 4, requires_grad=True)

    def number_saved() -> int:
        packed: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t) or t, lambda t: t):
            unit(x)
        return len(packed)

    ours = number_saved()
    monkeypatch.setenv("SPLASH_KERNEL", "reference")
    assert ours == number_saved()


@pytest.mark.parametrize("name", ["unit", "with_general_way", "nonsense"])
def test_only_operators_have_a_general_way(name: str) -> None:
    with pytest.raises(ValueError, match="no such operator"):
        CALLS.with_general_way(name, print)
