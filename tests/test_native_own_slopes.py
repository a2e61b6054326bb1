"""The CPU kernel where neighbours have slopes of their own: exact values, signs, rare numbers."""

import math

import pytest
import torch
from torch import Tensor

from splash_units import BatchNormSplash
from splash_units.kernels import native, reference

OPERATORS = native.load()
if OPERATORS is None:
    pytest.skip(f"no CPU kernel here: {native.why_not()}", allow_module_level=True)

HINGES = {
    "one": [0.0],
    "two": [0.0, 1.5],
    "three": [0.0, 0.3, 3.0],
    "default": [0.0, 1.0, 2.0, 2.5],
    "five": [0.0, 0.3, 0.7, 1.9, 2.01],
    "six": [0.0, 0.5, 1.0, 1.5, 2.0, 2.5],
}
SHAPES = {
    "whole vectors": (37, 64),
    "lines of several rows": (66, 40),
    "a part of a line left": (39, 40),
    "few lines": (5, 64),
    "long lines": (16, 512),
    "lines too long": (16, 1024),
    "both threads": (200, 256),
}
EPS = {torch.float32: 2.0**-23, torch.bfloat16: 2.0**-7, torch.float16: 2.0**-10}


def slopes(hinges: Tensor, channels: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(len(hinges), channels, generator=generator) for _ in range(2))


def forward(x: Tensor, a_pos: Tensor, a_neg: Tensor, hinges: Tensor) -> Tensor:
    return OPERATORS.splash(x, a_pos, a_neg, hinges, 0, 1.0)


@pytest.mark.parametrize("falling", [False, True])
@pytest.mark.parametrize("dtype", EPS, ids=str)
@pytest.mark.parametrize("where", HINGES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_each_value(shape: tuple[int, int], where: str, dtype: torch.dtype, falling: bool) -> None:
    hinges = torch.tensor(HINGES[where])
    a_pos, a_neg = slopes(hinges, shape[1])
    if not falling:
        a_pos[0] = a_pos[0].abs()
    x = (2 * torch.randn(shape, generator=torch.Generator().manual_seed(1))).to(dtype)
    exact = reference.splash(x.double(), a_pos.double(), a_neg.double(), hinges.double())
    # What is rounded on the way: a slope times the input or its hinge, whichever is farther out.
    reach = torch.maximum(x.double().abs().unsqueeze(0), hinges.double().view(-1, 1, 1))
    size = (torch.maximum(a_pos.abs(), a_neg.abs()).double().unsqueeze(1) * reach).sum(0)
    allowed = 4 * EPS[torch.float32] * size + EPS[dtype] / 2 * exact.abs() + 2.0**-25
    ours = forward(x, a_pos, a_neg, hinges)
    assert torch.all((ours.double() - exact).abs() <= allowed)


@pytest.mark.parametrize("where", HINGES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_nothing_at_all_before_the_second_hinge_where_the_first_has_no_slope(
    shape: tuple[int, int], where: str
) -> None:
    hinges = torch.tensor(HINGES[where])
    a_pos, a_neg = slopes(hinges, shape[1])
    a_pos[0] = a_neg[0] = 0.0
    end = hinges[1] if len(hinges) > 1 else torch.tensor(4.0)
    x = end * (2 * torch.rand(shape, generator=torch.Generator().manual_seed(1)) - 1)
    x[0], x[1] = end, -end
    assert torch.count_nonzero(forward(x, a_pos, a_neg, hinges)) == 0


@pytest.mark.parametrize("where", HINGES)
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_slopes_of_one_sign_give_values_of_that_sign(where: str, sign: float) -> None:
    """Also close behind a hinge, where little is left of large sums."""
    hinges = torch.tensor(HINGES[where])
    a_pos, a_neg = (sign * a.abs() for a in slopes(hinges, 64))
    a_pos[0] = a_neg[0] = 0.0
    ends = [hinges]
    for _ in range(20):
        ends.append(torch.nextafter(ends[-1], torch.tensor(math.inf)))
    near = torch.cat(ends)
    x = torch.cat([near, -near]).unsqueeze(1).expand(-1, 64).contiguous()
    assert torch.all(sign * forward(x, a_pos, a_neg, hinges) >= 0)


@pytest.mark.parametrize("where", HINGES)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_it_starts_as_relu_to_the_last_bit(shape: tuple[int, int], where: str) -> None:
    hinges = torch.tensor(HINGES[where])
    a_pos, a_neg = (torch.zeros(len(hinges), shape[1]) for _ in range(2))
    a_pos[0] = 1.0
    x = 100 * torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x[0, :4] = torch.tensor([1e-45, -1e-45, 0.0, 3e38])
    assert torch.equal(forward(x, a_pos, a_neg, hinges), x.relu())


@pytest.mark.parametrize("first", [0.7, 0.0, -0.0, -0.7])
@pytest.mark.parametrize("zero", [0.0, -0.0])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_each_zero_keeps_its_sign_among_other_numbers(
    shape: tuple[int, int], zero: float, first: float
) -> None:
    hinges = torch.tensor(HINGES["default"])
    a_pos, a_neg = slopes(hinges, shape[1])
    a_pos[0] = a_pos[0].abs()
    a_pos[0, 7] = first
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    x[1, 7] = x[2, 9] = x[-1, -1] = zero
    y = forward(x, a_pos, a_neg, hinges)
    kept = torch.stack([y[1, 7], y[2, 9], y[-1, -1]])
    assert torch.count_nonzero(kept) == 0
    assert kept.signbit().tolist() == [math.copysign(1.0, zero) < 0] * 3


@pytest.mark.parametrize("row", [0, 3, 4, 36])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e30, -3e38])
@pytest.mark.parametrize("falling", [False, True])
def test_one_number_that_is_rare(value: float, row: int, falling: bool) -> None:
    hinges = torch.tensor(HINGES["default"])
    a_pos, a_neg = slopes(hinges, 64)
    if not falling:
        a_pos[0] = a_pos[0].abs()
    a_pos[:, 5] = torch.tensor([1.0, -1.0, 0.5, -0.5])  # flat in the end, and limited for infinity
    x = torch.randn(37, 64, generator=torch.Generator().manual_seed(1))
    x[row, 5] = x[row, 61] = value
    ours, theirs = forward(x, a_pos, a_neg, hinges), reference.splash(x, a_pos, a_neg, hinges)
    torch.testing.assert_close(ours, theirs, equal_nan=True)


@pytest.mark.parametrize("steep", [1e31, 3e38, math.inf, math.nan])
def test_slopes_that_leave_no_room_for_sums(steep: float) -> None:
    hinges = torch.tensor([0.0, 0.25, 0.5, 0.75])
    a_pos, a_neg = slopes(hinges, 64)
    a_pos[3, 8], a_neg[3, 50] = steep, -steep
    x = torch.randn(37, 64, generator=torch.Generator().manual_seed(1))
    exact = reference.splash(x.double(), a_pos.double(), a_neg.double(), hinges.double())
    others = torch.ones(64, dtype=torch.bool)
    others[[8, 50]] = False
    ours = forward(x, a_pos, a_neg, hinges)
    torch.testing.assert_close(ours[:, others], exact[:, others].float())
    if math.isfinite(steep):
        torch.testing.assert_close(ours, exact.float())


@pytest.mark.parametrize("where", HINGES)
def test_one_thread_and_three_agree_to_the_last_bit(where: str) -> None:
    hinges, before = torch.tensor(HINGES[where]), torch.get_num_threads()
    x = torch.randn(300, 256, generator=torch.Generator().manual_seed(1))
    try:
        values = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            values.append(forward(x, *slopes(hinges, 256), hinges))
    finally:
        torch.set_num_threads(before)
    assert torch.equal(values[0], values[1])
    assert torch.equal(values[0], values[2])


@pytest.mark.parametrize("rare", [None, math.inf, math.nan])
@pytest.mark.parametrize("channels", [40, 64])
def test_behind_batch_norm(channels: int, rare: float | None) -> None:
    torch.manual_seed(0)
    unit = BatchNormSplash(channels, init="random", share="channel").eval()
    unit.running_mean.normal_()
    unit.running_var.uniform_(0.5, 2.0)
    exact = BatchNormSplash(channels, share="channel").double().eval()
    exact.load_state_dict(unit.state_dict())
    x = torch.randn(43, channels)
    if rare is not None:
        x[41, 7] = rare
    with torch.no_grad():
        torch.testing.assert_close(
            unit(x).double(), exact(x.double()), atol=1e-5, rtol=1e-5, equal_nan=True
        )
