"""Where the CPU kernel serves and where the plain equation does: nobody can tell which did."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import combinations, product

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves

from splash_units import BatchNormSplash, Splash, splash
from splash_units.functional import _is_one_run, batch_norm_splash
from splash_units.kernels import native, reference
from splash_units.kernels.native.toolchain import Unavailable

if native.load() is None:
    pytest.skip(f"no CPU kernel here: {native.why_not()}", allow_module_level=True)


def small_network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), Splash(), nn.Conv2d(6, 8, 3), BatchNormSplash(8),
        nn.Flatten(), nn.Linear(128, 20), Splash(share="channel", features=20), nn.Linear(20, 10),
    )  # fmt: skip


def twenty_losses(network: nn.Module) -> list[float]:
    generator = torch.Generator().manual_seed(3)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for _ in range(20):
        x = torch.randn(16, 1, 8, 8, generator=generator)
        y = torch.randint(10, (16,), generator=generator)
        loss = F.cross_entropy(network(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_twenty_steps_and_a_state_from_one_kernel_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    networks, losses = {}, {}
    for kernel in ("native", "reference"):
        monkeypatch.setenv("SPLASH_KERNEL", kernel)
        networks[kernel] = small_network()
        losses[kernel] = twenty_losses(networks[kernel])
    assert losses["native"] == pytest.approx(losses["reference"], rel=1e-4)
    for kernel, other in (("native", "reference"), ("reference", "native")):
        monkeypatch.setenv("SPLASH_KERNEL", kernel)
        resumed = small_network()
        resumed.load_state_dict(networks[other].state_dict())
        losses[kernel] = twenty_losses(resumed)
    assert losses["native"] == pytest.approx(losses["reference"], rel=1e-3)


def test_forcing_it_on_what_it_does_not_serve(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPLASH_KERNEL", "native")
    x, hinges = torch.randn(2, 3, 4, 5), torch.tensor([0.0, 1.0, 2.0, 2.5])
    with pytest.raises(ValueError, match="no run of whole dimensions"):
        splash(x, torch.ones(4, 3, 1, 5), torch.ones(4, 3, 1, 5), hinges)
    many = torch.arange(65.0)
    with pytest.raises(ValueError, match="1 to 64 hinges"):
        splash(x, torch.zeros(65), torch.zeros(65), many)
    monkeypatch.delenv("SPLASH_KERNEL")
    assert not splash(x, torch.zeros(65), torch.zeros(65), many).any()


def test_forcing_what_cannot_be() -> None:
    program = "import torch, splash_units as s; s.Splash()(torch.randn(3, device='{}'))"
    for kernel, device, message in (
        ("nonsense", "cpu", "unknown SPLASH_KERNEL 'nonsense'"),
        ("native", "meta", "needs tensors on the CPU"),
    ):
        done = subprocess.run(
            [sys.executable, "-c", program.format(device)],
            env={**os.environ, "SPLASH_KERNEL": kernel},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode != 0
        assert message in done.stderr


def test_a_forced_kernel_that_says_no_leaves_running_statistics_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    too_many = [0.01 * s for s in range(native.MOST_HINGES + 1)]
    unit = BatchNormSplash(3, hinges=too_many)
    before = unit.running_mean.clone()
    monkeypatch.setenv("SPLASH_KERNEL", "native")
    with pytest.raises(ValueError, match=f"1 to {native.MOST_HINGES} hinges"):
        unit(torch.randn(8, 3, 2, 2))
    assert torch.equal(unit.running_mean, before)
    monkeypatch.delenv("SPLASH_KERNEL")
    unit(torch.randn(8, 3, 2, 2))
    assert not torch.equal(unit.running_mean, before)


@pytest.mark.parametrize("kernel", ["native", "reference"])
def test_the_choice_is_heard_at_every_call(monkeypatch: pytest.MonkeyPatch, kernel: str) -> None:
    calls = []
    plain = reference.scaled_splash
    monkeypatch.setattr(reference, "scaled_splash", lambda *a: (calls.append(1), plain(*a))[1])
    monkeypatch.setenv("SPLASH_KERNEL", kernel)
    Splash()(torch.randn(3))
    assert bool(calls) == (kernel == "reference")


@pytest.mark.parametrize("kind", ["layer", "channel", "batch norm"])
def test_a_compiled_network_keeps_the_operators(kind: str) -> None:
    torch.manual_seed(0)
    unit = {
        "layer": lambda: Splash(init="random"),
        "channel": lambda: Splash(init="random", share="channel", features=3),
        "batch norm": lambda: BatchNormSplash(3, init="random"),
    }[kind]()
    graphs: list[str] = []

    def backend(module: torch.fx.GraphModule, _: object) -> Callable[..., Tensor]:
        graphs.append(module.code)
        return module.forward

    compiled = torch.compile(unit, fullgraph=True, backend=backend)
    x = torch.randn(4, 3, 5, 5)
    torch.testing.assert_close(compiled(x), unit(x), rtol=0, atol=0)
    assert "splash_units" in graphs[0]
    torch._dynamo.reset()


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("make", [Splash, lambda: BatchNormSplash(3)])
def test_an_exported_network_has_the_plain_equation(
    make: Callable[[], nn.Module], strict: bool
) -> None:
    exported = torch.export.export(make().eval(), (torch.randn(4, 3),), strict=strict)
    assert "splash_units" not in str(exported.graph)


def test_compiled_transforms_have_the_plain_equation() -> None:
    unit, x = Splash(init="random"), torch.randn(4, 3)
    compiled = torch.compile(torch.vmap(lambda t: unit(t)), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(x), unit(x))
    torch._dynamo.reset()


def test_compiled_batch_norm_with_more_hinges_than_the_kernel_serves() -> None:
    unit = BatchNormSplash(3, hinges=[0.01 * s for s in range(native.MOST_HINGES + 1)]).eval()
    compiled, x = torch.compile(unit, fullgraph=True, backend="eager"), torch.randn(4, 3)
    torch.testing.assert_close(compiled(x), unit(x))
    torch._dynamo.reset()


# By torch's own forward-mode rules.
TORCHSCRIPT_INSIDE = "ignore:`torch.jit.script.*is deprecated:DeprecationWarning:torch.jit._script"

MODULES = {"unit": Splash, "batch norm": lambda: BatchNormSplash(3)}


@pytest.mark.parametrize("kind", MODULES)
def test_compiled_a_forced_kernel_that_cannot_be_had_is_an_error(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit, x = MODULES[kind](), torch.randn(4, 3)
    monkeypatch.setattr(native, "_outcome", Unavailable("there is no compiler"))
    for name, message in (("nonsense", "unknown SPLASH_KERNEL"), ("native", "no compiler")):
        monkeypatch.setenv("SPLASH_KERNEL", name)
        torch._dynamo.reset()
        with pytest.raises((ValueError, RuntimeError), match=message):
            torch.compile(unit, backend="eager")(x)
    torch._dynamo.reset()


def test_a_graph_is_traced_for_the_kernel_that_is_forced_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not again for another one, nor after any other change of the environment."""
    traced: list[bool] = []  # whether the kernel's operator stands in the graph

    def backend(graph: torch.fx.GraphModule, _: object) -> Callable[..., object]:
        traced.append(any("batch_norm_splash" in str(node.target) for node in graph.graph.nodes))
        return graph.forward

    unit, x = BatchNormSplash(3), torch.randn(4, 3)
    torch._dynamo.reset()
    compiled = torch.compile(unit, backend=backend)
    compiled(x)
    monkeypatch.setenv("SPLASH_KERNEL", "reference")
    monkeypatch.setenv("SPLASH_UNHEARD_OF", "1")
    compiled(x)
    assert traced == [True]
    torch._dynamo.reset()
    compiled(x)
    assert traced == [True, False]
    torch._dynamo.reset()


def along(f: Callable[[Tensor], Tensor], x: Tensor) -> Tensor | None:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(f(forward_ad.make_dual(x, x))).tangent


TRANSFORMS: dict[str, Callable[[nn.Module, Tensor], object]] = {
    "vmap": lambda unit, x: torch.func.vmap(unit)(torch.stack([x, x])),
    "grad": lambda unit, x: torch.func.grad(lambda t: unit(t).sum())(x),
    "jvp": lambda unit, x: torch.func.jvp(unit, (x,), (x,)),
    "dual": along,
}


@pytest.mark.filterwarnings(TORCHSCRIPT_INSIDE)
@pytest.mark.parametrize("kind", MODULES)
@pytest.mark.parametrize("way", TRANSFORMS)
def test_forced_it_says_that_it_knows_no_transforms(
    way: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tangent that vanished would be worse than the error."""
    monkeypatch.setenv("SPLASH_KERNEL", "native")
    with pytest.raises(ValueError, match=r"SPLASH_KERNEL=native.*forward-mode"):
        TRANSFORMS[way](MODULES[kind]().eval(), torch.randn(4, 3))


@pytest.mark.filterwarnings(TORCHSCRIPT_INSIDE)
def test_a_graph_compiled_for_tangents_keeps_them() -> None:
    unit, x = Splash(init="random"), torch.randn(4, 3)
    ours, theirs = (along(f, x) for f in (torch.compile(unit, backend="eager"), unit))
    assert ours is not None
    torch.testing.assert_close(ours, theirs)
    torch._dynamo.reset()


def test_compiled_slopes_that_only_broadcast() -> None:
    x, hinges = torch.randn(2, 3, 4, 5), torch.tensor([0.0, 1.0, 2.0, 2.5])
    a_pos, a_neg = torch.randn(2, 4, 3, 1, 5)
    compiled = torch.compile(splash, fullgraph=True, backend="eager")
    exact = reference.splash(x, a_pos, a_neg, hinges)
    torch.testing.assert_close(compiled(x, a_pos, a_neg, hinges), exact)
    torch._dynamo.reset()


HINGES = torch.tensor([0.0, 1.0, 2.0, 2.5])


def ways_to_lie_in(x: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], int]]:
    """The own dimensions of all slopes that broadcast against `x`, with what stands beside them."""
    for first, last in combinations(range(len(x) + 1), 2):
        for own in set(product(*((1, n) for n in x[first:last]))):
            yield own, len(x) - last
    yield (), 0


def test_a_graph_has_the_operator_exactly_where_it_serves() -> None:
    answers = Counter[bool]()
    for x in product((0, 1, 3), repeat=4):
        for own, trailing in ways_to_lie_in(x):
            slopes = torch.ones(4, *own)
            try:
                torch.ops.splash_units.splash(torch.ones(x), slopes, slopes, HINGES, trailing)
                serves = True
            except ValueError:
                serves = False
            assert _is_one_run(x, own, trailing) == serves, (x, own, trailing)
            answers[serves] += 1
    assert min(answers[True], answers[False]) > 50


@pytest.mark.parametrize(
    ("x", "between", "stays"),
    [
        ((2, 3, 1, 5), None, True),
        ((2, 3, 4, 5), None, False),
        ((2, 3, 4, 5), "mark_dynamic", False),
        ((2, 3, 4, 5), "mark_unbacked", False),
        ((2, 3, 1, 5), "mark_unbacked", False),
    ],
)
def test_compiled_slopes_around_a_dimension(
    x: tuple[int, ...], between: str | None, stays: bool
) -> None:
    """Of a dimension that may have any size nothing is asked: the graph serves all of them."""
    graphs: list[str] = []

    def backend(module: torch.fx.GraphModule, _: object) -> Callable[..., Tensor]:
        graphs.append(module.code)
        return module.forward

    compiled = torch.compile(splash, fullgraph=True, backend=backend)
    a_pos, a_neg = torch.randn(2, 4, 3, 1, 5)
    for middle in (x[2], 7) if between else (x[2],):
        given = torch.randn(*x[:2], middle, x[3])
        if between:
            getattr(torch._dynamo.decorators, between)(given, 2)
        exact = reference.splash(given, a_pos, a_neg, HINGES)
        torch.testing.assert_close(compiled(given, a_pos, a_neg, HINGES), exact)
    assert ["splash_units" in graph for graph in graphs] == [stays]
    torch._dynamo.reset()


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "contiguous": lambda: torch.randn(2, 3, 4, 5),
    "channels last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "one channel last": lambda: torch.randn(2, 1, 4, 5).to(memory_format=torch.channels_last),
    "one row": lambda: torch.randn(2, 3, 1, 5).to(memory_format=torch.channels_last),
    "permuted": lambda: torch.randn(2, 4, 3, 5).transpose(1, 2),
    "transposed": lambda: torch.randn(5, 4, 3, 2).permute(3, 2, 1, 0),
    "every second": lambda: torch.randn(2, 3, 4, 10)[..., ::2],
    "expanded": lambda: torch.randn(2, 3, 1, 1).expand(2, 3, 4, 5),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_graph_knows_how_results_lie_in_memory(layout: str) -> None:
    operators, x = torch.ops.splash_units, LAYOUTS[layout]()
    calls: list[tuple[torch._ops.OpOverloadPacket, tuple[object, ...]]] = []
    for own, trailing in ways_to_lie_in(tuple(x.shape)):
        unit = (torch.ones(4, *own), torch.ones(4, *own), HINGES, trailing)
        if _is_one_run(x.shape, own, trailing):
            calls.append((operators.splash, (x, *unit)))
            calls.append((operators.splash_backward, (torch.ones_like(x), x, *unit)))
    for by in ((), x.shape[1:2]):
        unit = (torch.ones(4, *by), torch.ones(4, *by), HINGES, True)
        forward = (x, *(None,) * 4, *unit, 0.1, 1e-5)
        calls.append((operators.batch_norm_splash, forward))
        kept = operators.batch_norm_splash(*forward)[1]
        backward = (torch.ones_like(x), x, kept, 4, bool(by), True)
        calls.append((operators.batch_norm_splash_backward, backward))
    for operator, arguments in calls:
        with FakeTensorMode() as mode:
            fake = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in arguments]
            expected = operator(*fake)
        strides = [[t.stride() for t in tree_leaves(y)] for y in (expected, operator(*arguments))]
        assert strides[0] == strides[1], operator


UNITS: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = {
    "splash": splash,
    "batch_norm_splash": lambda x, a_pos, a_neg, hinges: batch_norm_splash(
        x, None, None, None, None, a_pos, a_neg, hinges, True, 0.1, 1e-5
    ),
}


def slopes() -> tuple[Tensor, ...]:
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(1)).unbind()


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("kind", UNITS)
def test_hinges_that_require_a_gradient_get_one(
    monkeypatch: pytest.MonkeyPatch, kind: str, compiled: bool
) -> None:
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(0))
    inputs = [t.requires_grad_() for t in (x, *slopes(), torch.tensor([0.0, 0.5, 1.0, 1.5]))]
    unit = UNITS[kind]
    used = torch.compile(unit, fullgraph=True, backend="eager") if compiled else unit
    found = torch.autograd.grad(used(*inputs).square().sum(), inputs)
    monkeypatch.setenv("SPLASH_KERNEL", "reference")
    wanted = torch.autograd.grad(unit(*inputs).square().sum(), inputs)
    assert all(gradient.abs().max() > 0 for gradient in wanted)
    torch.testing.assert_close(found, wanted)
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.* is deprecated:DeprecationWarning")
@pytest.mark.parametrize("kind", UNITS)
def test_the_operators_refuse_derivatives_they_do_not_have(kind: str) -> None:
    operator = getattr(torch.ops.splash_units, kind)
    none = (None,) * 4 if kind == "batch_norm_splash" else ()
    how = (True, 0.1, 1e-5) if kind == "batch_norm_splash" else ()
    x, hinges = torch.randn(5, 3), torch.arange(4.0)
    with pytest.raises(ValueError, match="no derivative by the hinges"):
        operator(x, *none, *slopes(), hinges.requires_grad_(), *how)
    with torch.no_grad():  # where nobody asks for one
        operator(x, *none, *slopes(), hinges, *how)
    with forward_ad.dual_level(), pytest.raises(ValueError, match="no forward-mode derivative"):
        operator(forward_ad.make_dual(x, x), *none, *slopes(), hinges.detach(), *how)


@pytest.mark.parametrize("share", ["layer", "channel"])
def test_a_compiled_module_takes_any_size(share: str) -> None:
    unit = Splash(share=share, features=6, init="random") if share == "channel" else Splash()
    compiled = torch.compile(unit, dynamic=True, fullgraph=True, backend="aot_eager")
    for shape in ((4, 6, 8, 8), (3, 6, 10, 12), (5, 6, 7, 9)):
        x = torch.randn(shape)
        ours, theirs = (torch.autograd.grad(f(x).sum(), unit.a_pos)[0] for f in (compiled, unit))
        torch.testing.assert_close(compiled(x), unit(x))
        torch.testing.assert_close(ours, theirs)
