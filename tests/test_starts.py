"""Hinges and starting shapes: what a unit is before it has learned anything."""

import math

import pytest
import torch
from torch import Tensor

from splash_units import Splash, splash
from splash_units.starts import (
    STARTS,
    Function,
    checked_hinges,
    default_hinges,
    interpolating_slopes,
    starting_slopes,
)

PAPER = (0.0, 1.0, 2.0, 2.5)


def shape_of(init: str | Function, hinges: tuple[float, ...], x: Tensor) -> Tensor:
    a_pos, a_neg = starting_slopes(init, hinges)
    return splash(x, a_pos, a_neg, torch.tensor(hinges, dtype=torch.float64))


def axis(end: float = 5.0) -> Tensor:
    return torch.linspace(-end, end, 201, dtype=torch.float64)


# --- hinges -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_hinges", "hinges"),
    [
        (3, (0.0, 1.0)),
        (5, (0.0, 1.0, 2.0)),
        (7, (0.0, 1.0, 2.0, 2.5)),
        (9, (0.0, 0.5, 1.0, 2.0, 2.5)),
        (11, (0.0, 0.5, 1.0, 1.5, 2.0, 2.5)),
    ],
)
def test_listed_hinges(num_hinges: int, hinges: tuple[float, ...]) -> None:
    assert default_hinges(num_hinges) == hinges


def test_listed_hinges_are_nested() -> None:
    for num_hinges in (5, 7, 9, 11):
        assert set(default_hinges(num_hinges - 2)) <= set(default_hinges(num_hinges))


@pytest.mark.parametrize("num_hinges", [1, 13, 15, 21, 101])
def test_other_numbers_are_evenly_spaced_up_to_the_papers_outermost(num_hinges: int) -> None:
    hinges = default_hinges(num_hinges)
    assert len(hinges) == (num_hinges + 1) // 2
    assert hinges[0] == 0.0
    if num_hinges > 1:
        assert hinges[-1] == 2.5
        steps = torch.tensor(hinges).diff()
        torch.testing.assert_close(steps, steps[:1].expand_as(steps), rtol=0, atol=1e-6)


@pytest.mark.parametrize("num_hinges", [0, -1, -7, 2, 8])
def test_even_or_non_positive_numbers_of_hinges(num_hinges: int) -> None:
    with pytest.raises(ValueError, match=f"odd and positive.*got {num_hinges}"):
        default_hinges(num_hinges)


@pytest.mark.parametrize("num_hinges", [7.0, "7", None, True])
def test_numbers_of_hinges_that_are_not_whole(num_hinges: object) -> None:
    with pytest.raises(TypeError, match=f"odd whole number, got {num_hinges!r}"):
        default_hinges(num_hinges)  # type: ignore[arg-type]


@pytest.mark.parametrize("hinges", [(0.0, 0.3, 4.0), [0, 1], torch.tensor([0.0, 0.5]), range(3)])
def test_hinges_of_ones_own(hinges: object) -> None:
    expected = torch.as_tensor(hinges, dtype=torch.float32).tolist()
    assert checked_hinges(hinges) == tuple(expected)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hinges", "message"),
    [
        ([], "must not be empty"),
        ([1.0, 2.0], r"first hinge must be 0 .*got \[1.0, 2.0\]"),
        ([-1.0, 0.0, 1.0], r"first hinge must be 0 .*others positive, got \[-1.0, 0.0, 1.0\]"),
        ([0.0, 2.0, 1.0], r"increase strictly.*got \[0.0, 2.0, 1.0\]"),
        ([0.0, -1.0], r"increase strictly.*got \[0.0, -1.0\]"),
        ([0.0, 1.0, 1.0], "increase strictly"),
        ([0.0, 1.0, 1.0 + 1e-12], "increase strictly, in float32 too"),
        ([0.0, math.inf], r"finite float32 numbers, got \[0.0, inf\]"),
        ([0.0, math.nan], r"finite float32 numbers, got \[0.0, nan\]"),
        ([0.0, 1e39], "finite float32 numbers"),
        ([[0.0, 1.0]], r"flat list of numbers, got \[\[0.0, 1.0\]\]"),
        (1.0, "flat list of numbers, got 1.0"),
    ],
)
def test_hinges_that_cannot_be(hinges: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        checked_hinges(hinges)  # type: ignore[arg-type]


@pytest.mark.parametrize("hinges", ["abc", [0.0, "one"], [0.0, None]])
def test_hinges_that_are_not_numbers(hinges: object) -> None:
    with pytest.raises(TypeError, match="list of numbers, got"):
        checked_hinges(hinges)  # type: ignore[arg-type]


# --- starting shapes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("init", "function"),
    [
        ("relu", torch.relu),
        ("leaky_relu", lambda x: torch.nn.functional.leaky_relu(x, 0.1)),
        ("identity", lambda x: x),
        ("abs", torch.abs),
    ],
)
@pytest.mark.parametrize("num_hinges", [1, 7, 11])
def test_one_hinge_starts_are_their_function_everywhere(
    init: str, function: Function, num_hinges: int
) -> None:
    x = axis(100.0)
    assert torch.equal(shape_of(init, default_hinges(num_hinges), x), function(x))


@pytest.mark.parametrize(
    ("init", "function"),
    [
        ("tanh", torch.tanh),
        ("elu", torch.nn.functional.elu),
        (torch.sin, torch.sin),
        (torch.nn.SiLU(), torch.nn.functional.silu),
        (lambda x: x**3, lambda x: x**3),
        (lambda x: math.sin(x), torch.sin),
    ],
)
@pytest.mark.parametrize("hinges", [(0.0,), (0.0, 0.3), PAPER, default_hinges(21)])
def test_other_starts_interpolate_their_function(
    init: str | Function,
    function: Function,
    hinges: tuple[float, ...],
) -> None:
    """At every hinge, on both sides, and once more one step further out."""
    step = hinges[-1] - hinges[-2] if len(hinges) > 1 else 1.0
    right = torch.tensor([*hinges, hinges[-1] + step], dtype=torch.float64)
    x = torch.cat([right, -right])
    torch.testing.assert_close(shape_of(init, hinges, x), function(x), rtol=1e-12, atol=1e-12)


def test_tanh_start_stays_close_to_tanh() -> None:
    """Where batch norm puts nearly all inputs, a chord of tanh over [0, 1] is the worst segment."""
    x = axis(2.5)
    error = (shape_of("tanh", PAPER, x) - torch.tanh(x)).abs().max().item()
    chord = (torch.linspace(0, 1, 1001) * math.tanh(1)).double()
    worst = (torch.tanh(torch.linspace(0, 1, 1001).double()) - chord).abs().max().item()
    assert error == pytest.approx(worst, abs=1e-3)


def test_another_unit_is_a_start() -> None:
    torch.manual_seed(0)
    learned = Splash(init="random")
    again = Splash(init=learned)
    torch.testing.assert_close(again.a_pos, learned.a_pos)
    torch.testing.assert_close(again.a_neg, learned.a_neg)


def test_random_start_draws_every_slope_from_its_own_normal() -> None:
    torch.manual_seed(0)
    a_pos, a_neg = starting_slopes("random", PAPER, features=(2000,))
    drawn = torch.stack([a_pos, a_neg])
    assert drawn.shape == (2, 4, 2000)
    assert drawn.unique().numel() == drawn.numel()
    # 16000 draws: the standard errors are 0.0008 and 0.0006; five of each.
    assert drawn.mean().item() == pytest.approx(0.0, abs=0.004)
    assert drawn.std().item() == pytest.approx(0.1, abs=0.003)


def test_random_start_follows_the_seed() -> None:
    torch.manual_seed(3)
    first = starting_slopes("random", PAPER)
    torch.manual_seed(3)
    assert torch.equal(torch.stack(first), torch.stack(starting_slopes("random", PAPER)))


@pytest.mark.parametrize("init", STARTS)
def test_every_feature_gets_the_start(init: str) -> None:
    a_pos, a_neg = starting_slopes(init, PAPER, features=(3, 2))
    assert a_pos.shape == a_neg.shape == (4, 3, 2)
    if init != "random":
        shared = torch.stack(starting_slopes(init, PAPER))
        assert torch.equal(torch.stack([a_pos[:, 2, 1], a_neg[:, 2, 1]]), shared)


@pytest.mark.parametrize("init", ["ReLU", "linear", "", 3, None, ["relu"]])
def test_unknown_starts_list_the_known(init: object) -> None:
    with pytest.raises(ValueError, match=r"unknown init .* choose one of relu, leaky_relu") as info:
        starting_slopes(init, PAPER)  # type: ignore[arg-type]
    assert repr(init) in str(info.value)
    assert all(name in str(info.value) for name in STARTS)


@pytest.mark.parametrize(
    ("function", "at_zero"), [(torch.sigmoid, "0.5"), (torch.cos, "1"), (torch.log, "-inf")]
)
def test_functions_that_are_not_grounded(function: Function, at_zero: str) -> None:
    with pytest.raises(ValueError, match=rf"h\(0\) = 0.*f\(0\) = {at_zero}; subtract f\(0\)"):
        interpolating_slopes(function, PAPER)


@pytest.mark.parametrize(
    ("function", "where"),
    [(lambda x: x / (1 - x), r"\[1.0\]"), (lambda x: x / (2 + x), r"\[-2.0\]")],
)
def test_functions_that_are_not_finite_at_a_hinge(function: Function, where: str) -> None:
    with pytest.raises(ValueError, match=f"not finite at {where}"):
        interpolating_slopes(function, PAPER)
