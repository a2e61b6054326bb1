"""The oracle of the package against an oracle of its own: a plain loop over the paper's terms."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from oracle import assert_follows_paper, paper_gradients
from splash_units.kernels.reference import splash

HINGES = torch.tensor([0.0, 1.0, 2.0, 2.5])
A_POS = torch.tensor([1.0, -0.75, 0.5, -1.5])
A_NEG = torch.tensor([-0.25, 0.5, 1.25, -0.75])

numbers = st.floats(-8, 8, width=32)
slopes = st.lists(st.floats(-4, 4, width=32), min_size=4, max_size=4)


def points(dtype: torch.dtype = torch.float32) -> Tensor:
    """Both sides of every hinge, the hinges themselves, and far outside."""
    near = torch.cat([HINGES, -HINGES])
    return torch.cat([torch.linspace(-4, 4, 101), near, near - 0.125, near + 0.125, 50 * near]).to(
        dtype
    )


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_is_the_papers_equation(dtype: torch.dtype) -> None:
    x = points(dtype)
    assert_follows_paper(splash(x, A_POS, A_NEG, HINGES), x, A_POS, A_NEG, HINGES)


@pytest.mark.parametrize("side", [0, 1])
@pytest.mark.parametrize("row", range(4))
def test_a_mutated_slope_is_noticed(side: int, row: int) -> None:
    """The comparison above can fail: one slope off by a ten-thousandth is enough."""
    x = points()
    mutated = [A_POS.clone(), A_NEG.clone()]
    mutated[side][row] += 1e-4
    h = splash(x, mutated[0], mutated[1], HINGES)
    with pytest.raises(AssertionError, match="off by"):
        assert_follows_paper(h, x, A_POS, A_NEG, HINGES)


def test_a_moved_hinge_is_noticed() -> None:
    x = points()
    h = splash(x, A_POS, A_NEG, torch.tensor([0.0, 1.0, 2.001, 2.5]))
    with pytest.raises(AssertionError, match="off by"):
        assert_follows_paper(h, x, A_POS, A_NEG, HINGES)


def test_gradients_are_the_equations() -> None:
    """At a hinge the derivative of max(0, ·) is 0, so the points include the hinges."""
    x = points(torch.float64).requires_grad_()
    a_pos, a_neg = (a.double().requires_grad_() for a in (A_POS, A_NEG))
    upstream = torch.randn(x.shape, dtype=torch.float64, generator=torch.manual_seed(0))
    splash(x, a_pos, a_neg, HINGES).backward(upstream)
    dx, rows_pos, rows_neg = paper_gradients(x, a_pos, a_neg, HINGES, upstream)
    for ours, theirs in (
        (x.grad, dx),
        (a_pos.grad, rows_pos.sum(1)),
        (a_neg.grad, rows_neg.sum(1)),
    ):
        assert ours is not None
        torch.testing.assert_close(ours, torch.from_numpy(theirs.astype(float)))


@given(x=numbers, a_pos=slopes, a_neg=slopes)
def test_any_slopes_follow_the_equation(x: float, a_pos: list[float], a_neg: list[float]) -> None:
    at = torch.tensor([x])
    right, left = torch.tensor(a_pos), torch.tensor(a_neg)
    assert_follows_paper(splash(at, right, left, HINGES), at, right, left, HINGES)


@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_grounded_with_the_sign_of_zero(zero: float) -> None:
    h = splash(torch.tensor([zero]), A_POS, A_NEG, HINGES)
    assert h.item() == 0.0
    assert math.copysign(1.0, h.item()) == math.copysign(1.0, zero)


def test_nan_passes_through_and_stays_alone() -> None:
    h = splash(torch.tensor([math.nan, 1.0]), A_POS, A_NEG, HINGES)
    assert h.isnan().tolist() == [True, False]


@pytest.mark.parametrize(
    ("a_pos", "at_infinity"),
    [
        ([1.0, -0.75, 0.5, -1.5], -math.inf),
        ([1.0, 0.0, 0.0, 0.0], math.inf),
        ([0.0, 0.0, 0.0, 0.0], 0.0),
        ([1.0, -0.5, -0.25, -0.25], 0.5 + 0.5 + 0.625),  # saturates at Σ −aˢbˢ
        ([-1.0, 1.0, 0.0, 0.0], -1.0),
    ],
)
def test_infinities_give_the_limit(a_pos: list[float], at_infinity: float) -> None:
    right, left = torch.tensor(a_pos), A_NEG
    ends = torch.tensor([math.inf, -math.inf])
    assert splash(ends, right, left, HINGES)[0].item() == at_infinity
    assert splash(ends, left, right, HINGES)[1].item() == at_infinity


def test_gradients_at_infinity_are_finite_where_the_function_is() -> None:
    """dh/dx is the outer slope; a unit that saturates there keeps NaN out of its own slopes."""
    x = torch.tensor([math.inf, -math.inf], requires_grad=True)
    a_pos = torch.tensor([1.0, -0.5, -0.25, -0.25], requires_grad=True)
    a_neg = torch.tensor([-1.0, 0.5, 0.25, 0.25], requires_grad=True)
    splash(x, a_pos, a_neg, HINGES).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0]
    for a in (a_pos, a_neg):
        assert a.grad is not None
        assert a.grad.isfinite().all()


def test_gradient_of_x_at_infinity_is_the_outer_slope() -> None:
    x = torch.tensor([math.inf, -math.inf], requires_grad=True)
    splash(x, A_POS, A_NEG, HINGES).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [A_POS.sum().item(), -A_NEG.sum().item()]


def test_channels_saturate_exactly_under_autocast() -> None:
    """Autocast rounds matrix products to bfloat16: the limit must not be one."""
    a = torch.tensor([1.0, -0.5, -0.25, -0.25])[:, None].expand(4, 3)
    hinges = torch.tensor([0.0, 0.7, 1.3, 2.1])
    x = torch.full((2, 3), math.inf)
    expected = splash(x, a, a, hinges)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(splash(x, a, a, hinges), expected)
