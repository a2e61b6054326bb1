"""How a unit learns and what it may become: gradient scale, constraints, fixed shapes."""

import copy
import math
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from oracle import assert_same_bits
from splash_units import Splash, freeze_shapes


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


# --- how it learns ----------------------------------------------------------------------------


def slope_gradients(unit: Splash, x: Tensor) -> Tensor:
    unit.zero_grad()
    (unit(x) * x.cos()).sum().backward()
    assert unit.a_pos.grad is not None
    assert unit.a_neg.grad is not None
    return torch.stack([unit.a_pos.grad, unit.a_neg.grad])


@pytest.mark.parametrize(
    ("options", "shape", "ratio"),
    [
        ({}, (3, 16), 3 / 4),
        ({}, (3, 4, 2, 8), 3 / 8),
        ({}, (3, 9, 16), 1 / 4),
        ({}, (3, 4, 5), 3 / 20**0.5),
        ({}, (3, 4, 2), 1),
        ({"share": "channel", "features": 4}, (3, 4, 2, 8), 1 / 4),
        ({"share": "channel", "features": 6, "dim": -1}, (3, 16, 6), 1 / 4),
        ({"share": "channel", "features": 4, "dim": 0}, (4, 9), 1 / 3),
        ({"share": "unit", "features": (4, 5)}, (3, 4, 5), 1),
        ({}, (7,), 1),
        ({}, (), 1),
    ],
)
def test_automatic_scale_falls_with_the_root_of_those_who_share(
    options: dict[str, Any], shape: tuple[int, ...], ratio: float
) -> None:
    """Only the slopes' gradients differ from the literal unit, by that one factor."""
    literal = Splash(init="random", grad_scale=1.0, **options)
    automatic = Splash(**options)
    automatic.load_state_dict(literal.state_dict())
    x = 2 * torch.randn(shape)
    assert_same_bits(automatic(x), literal(x))
    ours, theirs = slope_gradients(automatic, x), slope_gradients(literal, x)
    if math.frexp(ratio)[0] == 0.5:  # a power of two scales without rounding
        assert torch.equal(ours, theirs * ratio)
    else:
        torch.testing.assert_close(ours, theirs * ratio, rtol=1e-6, atol=0)


def test_a_scale_of_ones_own_and_the_gradient_of_x() -> None:
    literal, scaled = Splash(grad_scale=1.0), Splash(grad_scale=0.125)
    x = torch.randn(4, 10)
    assert torch.equal(slope_gradients(scaled, x), 0.125 * slope_gradients(literal, x))
    of_x = []
    for unit in (literal, scaled):
        at = x.clone().requires_grad_()
        unit(at).sum().backward()
        of_x.append(at.grad)
    assert torch.equal(of_x[0], of_x[1])


def test_automatic_scale_does_not_depend_on_the_batch_size() -> None:
    """The gradient of a batch is the sum over its samples, as of any other parameter."""
    unit, x = Splash(init="random"), 2 * torch.randn(6, 3, 4, dtype=torch.float64)
    whole = slope_gradients(unit, x)
    parts = sum(slope_gradients(unit, sample) for sample in x.split(1))
    torch.testing.assert_close(whole, parts)


@pytest.mark.parametrize(
    ("options", "shape"),
    [
        ({}, (2, 3, 2)),
        ({"share": "channel", "features": 3}, (2, 3, 2)),
        ({"share": "channel", "features": 3, "dim": -1}, (2, 2, 3)),
        ({"share": "unit", "features": (3, 2)}, (2, 3, 2)),
    ],
)
def test_gradients_against_finite_differences(
    options: dict[str, Any], shape: tuple[int, ...]
) -> None:
    unit = Splash(init="random", grad_scale=1.0, **options).double()
    x = torch.randn(shape, dtype=torch.float64)
    nearest = (x.abs().unsqueeze(-1) - unit.hinges).abs().amin(-1)
    x = torch.where(nearest < 1e-3, x + 4e-3, x).requires_grad_()

    def h(x: Tensor, a_pos: Tensor, a_neg: Tensor) -> Tensor:
        return torch.func.functional_call(unit, {"a_pos": a_pos, "a_neg": a_neg}, (x,))

    inputs = (x, unit.a_pos.detach().requires_grad_(), unit.a_neg.detach().requires_grad_())
    assert torch.autograd.gradcheck(h, inputs)
    assert torch.autograd.gradgradcheck(h, inputs)


# --- what it may become -----------------------------------------------------------------------

OPTIMIZERS: dict[str, Callable[[Iterator[nn.Parameter]], torch.optim.Optimizer]] = {
    "SGD": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, foreach=False),
    "SGD foreach": lambda p: torch.optim.SGD(p, lr=0.1, foreach=True),
    "Adam foreach": lambda p: torch.optim.Adam(p, lr=0.1, foreach=True),
    "Adam fused": lambda p: torch.optim.Adam(p, lr=0.1, fused=True),
    "AdamW": lambda p: torch.optim.AdamW(p, lr=0.1),
}
MADE: dict[str, Callable[[Splash], Splash]] = {
    "as made": lambda unit: unit,
    "deepcopied": copy.deepcopy,
    "pickled": lambda unit: pickle.loads(pickle.dumps(unit)),
    "copied twice": lambda unit: copy.deepcopy(copy.deepcopy(unit)),
}


def push_left_slopes(unit: Splash, sign: float, optimizer: torch.optim.Optimizer) -> None:
    """One step that moves every left slope towards `sign`·∞, as far as it is allowed to go."""
    optimizer.zero_grad()
    left = torch.full((2, 4), -3.0)
    (-sign * unit(left)).sum().backward()
    optimizer.step()


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("constraint", "forbidden"), [("negative", 1.0), ("positive", -1.0)])
def test_constraint_holds_after_every_step(
    constraint: Any, forbidden: float, optimizer: str, made: str
) -> None:
    """Only the first left slope is held back; the others, and a free unit's, move on."""
    for share in ({}, {"share": "channel", "features": 4}):
        unit = MADE[made](Splash(constraint=constraint, **share))  # type: ignore[arg-type]
        free = Splash(**share)  # type: ignore[arg-type]
        for module in (unit, free):
            steps = OPTIMIZERS[optimizer](module.parameters())
            for _ in range(3):
                push_left_slopes(module, forbidden, steps)
                if module is unit:
                    assert (forbidden * unit.a_neg[0] <= 0).all()
                    assert (unit(torch.full((1, 4), -0.5)) * forbidden <= 0).all()
        assert (forbidden * unit.a_neg[1:] > 0).all()
        assert (forbidden * free.a_neg > 0).all()


@pytest.mark.parametrize("assign", [False, True])
def test_a_loaded_state_is_projected_and_stays_so(assign: bool) -> None:
    network = nn.Sequential(nn.Linear(4, 4), Splash(constraint="negative"))
    network.load_state_dict(
        nn.Sequential(nn.Linear(4, 4), Splash(init="abs")).state_dict(), assign=assign
    )
    unit = network[1]
    assert unit.a_neg[0].item() == 0.0
    push_left_slopes(unit, 1.0, torch.optim.SGD(network.parameters(), lr=0.1))
    assert unit.a_neg[0].item() == 0.0


@pytest.mark.parametrize(
    ("constraint", "init", "a_neg"),
    [
        ("negative", "relu", 0.0),
        ("positive", "relu", 0.0),
        ("negative", "leaky_relu", -0.1),
        ("positive", "leaky_relu", 0.0),
        ("negative", "abs", 0.0),
        ("positive", "abs", 1.0),
    ],
)
def test_a_start_is_projected(constraint: Any, init: str, a_neg: float) -> None:
    assert Splash(init=init, constraint=constraint).a_neg[0].item() == pytest.approx(a_neg)


def test_a_step_leaves_another_networks_backward_alone() -> None:
    """As between the two steps of a GAN, or with one optimizer a parameter."""
    stepped, pending = (Splash(constraint="positive", grad_scale=1.0) for _ in range(2))
    x = torch.randn(4, 3)
    loss = pending(x.clone().requires_grad_()).sum()
    stepped(x).sum().backward()
    torch.optim.SGD(stepped.parameters(), lr=0.1).step()
    loss.backward()


def test_a_fixed_unit_asks_for_no_gradient() -> None:
    fixed, free = (Splash(init="tanh", trainable=t) for t in (False, True))
    assert not any(p.requires_grad for p in fixed.parameters())
    x = torch.randn(20, requires_grad=True)
    y = fixed(x)
    assert_same_bits(y, free(x))
    y.sum().backward()
    assert x.grad is not None
    assert fixed.a_pos.grad is None


def test_shapes_of_a_network_can_be_fixed_as_learned() -> None:
    """Nothing moves them any more: no gradient, and no momentum or decay of an earlier step."""
    network = nn.Sequential(nn.Linear(3, 4), Splash(), nn.Sequential(nn.Linear(4, 2), Splash()))
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9, weight_decay=0.1)

    def step() -> dict[str, Tensor]:
        network(torch.randn(8, 3)).square().sum().backward()
        optimizer.step()
        return {name: p.detach().clone() for name, p in network.named_parameters()}

    step()
    learned = {name: p.detach().clone() for name, p in network.named_parameters()}
    assert freeze_shapes(network) is network
    after = step()
    moved = {name for name, p in after.items() if not torch.equal(p, learned[name])}
    assert moved == {"0.weight", "0.bias", "2.0.weight", "2.0.bias"}
    assert "trainable=False" in repr(network)
