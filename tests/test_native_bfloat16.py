"""bfloat16 on the CPU kernel: every number there is, to the last bit."""

import pytest
import torch
from torch import Tensor

from splash_units.kernels import native

OPERATORS = native.load()
if OPERATORS is None:
    pytest.skip(f"no CPU kernel here: {native.why_not()}", allow_module_level=True)

EVERY_NUMBER = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.bfloat16)
FINITE = EVERY_NUMBER[EVERY_NUMBER.isfinite()]
EXACT = FINITE[FINITE.abs() <= 64]  # of which float32 has every term of h below
BESIDE = 2.0**-9  # half of what bfloat16 has between 1 and the next number

# Few bits each: float32 computes h exactly, and many results lie halfway between two numbers.
SLOPES = {
    "rising": ([0.75, -0.375, 0.5, 0.25], [-0.125, 0.625, -0.25, 1.5]),
    "falling": ([-0.75, 0.375, -0.5, 0.25], [0.125, 0.625, -0.25, 1.5]),
    "flat left": ([1.25, -0.375, 0.5, 0.25], [0.0, 0.0, 0.0, 0.0]),
    "flat right": ([1.25, -0.5, 0.0, -0.75], [-0.125, 0.625, -0.25, 1.5]),
}
HINGES = {
    "default": [0.0, 1.0, 2.0, 2.5],
    "three": [0.0, 0.5, 3.0],
    "two": [0.0, 1.5],
    "between numbers": [0.0, 0.5 + BESIDE, 1 - BESIDE, 2 + 2 * BESIDE],
}


def unit(where: str, kind: str) -> tuple[Tensor, Tensor, Tensor]:
    hinges = torch.tensor(HINGES[where])
    a_pos, a_neg = (torch.tensor(a[: len(hinges)]) for a in SLOPES[kind])
    return a_pos, a_neg, hinges


def bits(t: Tensor) -> Tensor:
    return t.view(torch.int16)


def padded(t: Tensor, length: int) -> Tensor:
    """With numbers in front, so that each stands in another place of its vector."""
    return torch.cat([t.new_ones(length), t])


def of_hinges_below(x: Tensor, right: Tensor, left: Tensor, hinges: Tensor) -> Tensor:
    """The sum of what each hinge that x lies beyond has on that side."""
    below = (x.double().abs()[:, None] > hinges.double()).double()
    return torch.where(x > 0, below @ right.double(), below @ left.double())


def expected_y(x: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor) -> Tensor:
    slope = of_hinges_below(x, a_pos, a_neg, hinges)
    subtracted = of_hinges_below(x, a_pos * hinges, a_neg * hinges, hinges)
    y = (slope * x.double().abs() - subtracted + 0.0).float().bfloat16()
    return torch.where(x == 0, x, y)


def expected_dx(x: Tensor, grad: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor) -> Tensor:
    return (grad.float() * of_hinges_below(x, a_pos, -a_neg, hinges).float() + 0.0).bfloat16()


@pytest.mark.parametrize("kind", SLOPES)
@pytest.mark.parametrize("where", HINGES)
@pytest.mark.parametrize("shift", [0, 1, 13])
def test_every_number(where: str, kind: str, shift: int) -> None:
    a_pos, a_neg, hinges = unit(where, kind)
    x = padded(EXACT, shift)
    y = OPERATORS.splash(x, a_pos, a_neg, hinges, 0, 1.0)
    assert torch.equal(bits(y), bits(expected_y(x, a_pos, a_neg, hinges)))
    x = padded(FINITE, shift)
    grad = torch.randn(len(x), generator=torch.Generator().manual_seed(shift)).bfloat16()
    dx, _, _ = OPERATORS.splash_backward(grad, x, a_pos, a_neg, hinges, 0, 1.0)
    assert torch.equal(bits(dx), bits(expected_dx(x, grad, a_pos, a_neg, hinges)))


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e38])
def test_gradients_as_small_and_large_as_there_are(scale: float) -> None:
    a_pos, a_neg, hinges = unit("default", "rising")
    x = torch.linspace(-4, 4, 1023).bfloat16()
    grad = (scale * torch.linspace(-2, 2, 1023)).bfloat16()
    dx, _, _ = OPERATORS.splash_backward(grad, x, a_pos, a_neg, hinges, 0, 1.0)
    assert torch.equal(bits(dx), bits(expected_dx(x, grad, a_pos, a_neg, hinges)))


@pytest.mark.parametrize("towards", [0.0, 9.0])
def test_hinges_one_float_from_a_number(towards: float) -> None:
    hinges = torch.nextafter(torch.tensor([0.0, 1.0, 2.0, 2.5]), torch.tensor(towards))
    hinges[0] = 0.0
    a_pos, a_neg = (torch.tensor(a) for a in SLOPES["rising"])
    x = padded(FINITE, 3)
    grad = torch.ones_like(x)
    dx, _, _ = OPERATORS.splash_backward(grad, x, a_pos, a_neg, hinges, 0, 1.0)
    assert torch.equal(bits(dx), bits(expected_dx(x, grad, a_pos, a_neg, hinges)))


@pytest.mark.parametrize("where", ["default", "between numbers"])
def test_a_number_that_is_none_stays_in_its_place(where: str) -> None:
    a_pos, a_neg, hinges = unit(where, "rising")
    x = padded(EVERY_NUMBER, 5)
    y = OPERATORS.splash(x, a_pos, a_neg, hinges, 0, 1.0)
    dx, of_pos, _ = OPERATORS.splash_backward(torch.ones_like(x), x, a_pos, a_neg, hinges, 0, 1.0)
    assert torch.equal(y.isnan(), x.isnan())
    assert bool(dx.isfinite().all())
    assert bool(of_pos.isnan().all())
    finite = x.isfinite()
    expected = expected_dx(x[finite], torch.ones_like(x[finite]), a_pos, a_neg, hinges)
    assert torch.equal(bits(dx[finite]), bits(expected))
