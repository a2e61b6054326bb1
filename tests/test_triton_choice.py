"""When the GPU kernel is chosen, and what SPLASH_KERNEL=triton says if it can't serve."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

from splash_units import BatchNormSplash, Splash, functional, splash
from splash_units.kernels import reference
from splash_units.kernels import triton as kernel
from splash_units.kernels.triton import launching
from triton_kernel import (
    DEVICE,
    assert_passes_in_a_process_of_its_own,
    normal,
    on_device,
    runs_kernel,
    runs_no_kernel,
    slopes,
)

UNITS: dict[str, Callable[[], nn.Module]] = {
    "layer": lambda: Splash(init="random"),
    "channel": lambda: Splash(init="random", share="channel", features=3),
    "batch norm": lambda: BatchNormSplash(3, init="random"),
}


@pytest.fixture
def force(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    return lambda name: monkeypatch.setenv("SPLASH_KERNEL", name)


def seeded_unit(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return UNITS[kind]().to(DEVICE)


def outcome(unit: nn.Module, x: Tensor) -> list[Tensor]:
    """What a unit makes of x, and the gradients of x and of all its parameters."""
    (x,) = (t.requires_grad_() for t in on_device(x))
    y = unit(x)
    return [y, *torch.autograd.grad(y.square().sum(), [x, *unit.parameters()])]


@runs_no_kernel
def test_in_a_process_of_its_own() -> None:
    assert_passes_in_a_process_of_its_own(__file__)


@runs_kernel
@pytest.mark.parametrize("kind", UNITS)
def test_forced_it_serves_every_module(
    monkeypatch: pytest.MonkeyPatch, force: Callable[[str], None], kind: str
) -> None:
    x = normal(4, 3, 5, 2)
    force("reference")
    expected = outcome(seeded_unit(kind), x)
    force("triton")
    monkeypatch.delattr(reference, "scaled_splash")  # it has no part in this
    for ours, theirs in zip(outcome(seeded_unit(kind), x), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@runs_kernel
@pytest.mark.parametrize("kind", UNITS)
def test_forced_it_stands_in_a_compiled_graph(force: Callable[[str], None], kind: str) -> None:
    graphs: list[str] = []

    def keep(module: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
        graphs.append(module.code)
        return module.forward

    force("triton")
    x = normal(4, 3, 5, 2)
    expected = outcome(seeded_unit(kind), x)
    compiled = torch.compile(seeded_unit(kind), backend=keep, fullgraph=True)
    for ours, theirs in zip(outcome(compiled, x), expected, strict=True):
        torch.testing.assert_close(ours, theirs)
    (graph,) = graphs
    assert "splash_units_triton" in graph


@runs_kernel
def test_forced_it_says_what_it_does_not_serve(force: Callable[[str], None]) -> None:
    force("triton")
    x, (a_pos, a_neg), hinges = normal(2, 3, 4, 5), slopes(4, 3, 1, 5), torch.arange(4.0)
    with pytest.raises(ValueError, match="no run of whole dimensions"):
        splash(*on_device(x, a_pos, a_neg, hinges))
    with pytest.raises(ValueError, match="CUDA device, got one on meta"):
        splash(*(t.to("meta") for t in (x, a_pos, a_neg, hinges)))
    with pytest.raises(ValueError, match="same shape"):  # the caller's mistake, not the kernel's
        splash(*on_device(x, a_pos, a_neg[:, 0], hinges))
    with pytest.raises(ValueError, match="no derivative by the hinges"):
        splash(*on_device(x, *slopes(4)), *(h.requires_grad_() for h in on_device(hinges)))


@pytest.mark.parametrize("kind", UNITS)
def test_forced_without_triton(
    monkeypatch: pytest.MonkeyPatch, force: Callable[[str], None], kind: str
) -> None:
    force("triton")
    monkeypatch.setattr(kernel, "_outcome", "there is no triton")
    with pytest.raises(RuntimeError, match=r"SPLASH_KERNEL=triton, but .*: there is no triton"):
        UNITS[kind]()(normal(4, 3, 5, 2))


@pytest.mark.parametrize("kind", UNITS)
def test_forced_on_the_cpu_without_the_interpreter(
    monkeypatch: pytest.MonkeyPatch, force: Callable[[str], None], kind: str
) -> None:
    force("triton")
    monkeypatch.setattr(launching, "INTERPRETED", False)
    with pytest.raises(ValueError, match=r"on a CUDA device, got one on cpu.*TRITON_INTERPRET=1"):
        UNITS[kind]()(normal(4, 3, 5, 2))


# --- tensors on a GPU, whether or not there is one ------------------------------------------------


choice_for = functional._operators_for


def test_chosen_for_tensors_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPLASH_KERNEL", raising=False)
    monkeypatch.setattr(functional, "_ORDINARY", (Tensor, FakeTensor))
    with FakeTensorMode():
        assert choice_for(torch.empty(3, device="cuda")) is kernel.load()
        assert choice_for(torch.empty(3, device="meta")) is None
    assert choice_for(torch.empty(3)) is not kernel.load()


@pytest.mark.parametrize("way", ["forced", "vmap", "forward mode"])
def test_the_plain_equation_where_an_opaque_kernel_would_be_in_the_way(
    monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.delenv("SPLASH_KERNEL", raising=False)
    monkeypatch.setattr(functional, "_ORDINARY", (Tensor, FakeTensor))
    choices = []

    def choose(row: Tensor) -> Tensor:
        choices.append(choice_for(on_gpu))
        return row

    with FakeTensorMode():
        on_gpu = torch.empty(3, device="cuda")
    if way == "forced":
        monkeypatch.setenv("SPLASH_KERNEL", "reference")
        choose(on_gpu)
    elif way == "vmap":
        torch.func.vmap(choose)(torch.ones(2, 3))
    else:
        with torch.autograd.forward_ad.dual_level():
            choose(on_gpu)
    assert choices == [None]


# --- training -------------------------------------------------------------------------------------


def small_network() -> nn.Sequential:
    torch.manual_seed(0)
    layers = nn.Linear(6, 8), BatchNormSplash(8), nn.Linear(8, 5), Splash(), nn.Linear(5, 3)
    return nn.Sequential(*layers).to(DEVICE)


def losses_of(network: nn.Sequential, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for step in range(steps):
        (x,) = on_device(normal(16, 6, seed=step))
        loss = F.cross_entropy(network(x), (x.sum(1) > 0).long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@runs_kernel
def test_twenty_steps_and_a_state_from_one_kernel_to_another(force: Callable[[str], None]) -> None:
    networks, losses = {}, {}
    for name in ("triton", "reference"):
        force(name)
        networks[name] = small_network()
        losses[name] = losses_of(networks[name], steps=20)
    assert losses["triton"] == pytest.approx(losses["reference"], rel=1e-4)
    assert losses["triton"][-1] < losses["triton"][0]
    for name, other in (("triton", "reference"), ("reference", "triton")):
        force(name)
        resumed = small_network()
        resumed.load_state_dict(networks[other].state_dict())
        losses[name] = losses_of(resumed, steps=3)
    assert losses["triton"] == pytest.approx(losses["reference"], rel=1e-3)
