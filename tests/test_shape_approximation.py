"""The theorem: a unit for every function, errors that fall at their rate, bounds that hold."""

import math
from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from splash_units import Splash
from splash_units.shape import fit, hinges_needed, segments
from splash_units.starts import Function

# Each with its Lipschitz constant and its largest second derivative on [−3, 3], kinks at 0 aside.
FUNCTIONS: dict[str, tuple[Function, float, float]] = {
    "tanh": (torch.tanh, 1.0, 4 / (3 * math.sqrt(3))),
    "elu": (F.elu, 1.0, 1.0),
    "sin": (torch.sin, 1.0, 1.0),
    "abs": (torch.abs, 1.0, 0.0),
    "square": (torch.square, 6.0, 2.0),
}
SMOOTH = [name for name in FUNCTIONS if name != "abs"]


def error_on_a_grid(f: Function, unit: Splash, low: float, high: float) -> float:
    x = torch.linspace(low, high, 20_001, dtype=torch.float64)
    return (f(x) - segments(unit)(x)).abs().max().item()


# --- the unit ---------------------------------------------------------------------------------


def test_the_unit_meets_the_function_at_evenly_spaced_hinges_and_at_both_ends() -> None:
    result = fit(torch.sin, -3, 3, 11)
    assert result.unit.num_hinges == 11
    knots = torch.linspace(-3, 3, 13, dtype=torch.float64)
    torch.testing.assert_close(result.shape.breakpoints, knots[1:-1], rtol=0, atol=0)
    torch.testing.assert_close(result.shape(knots), torch.sin(knots), rtol=0, atol=5e-7)
    x = torch.linspace(-3, 3, 999)
    torch.testing.assert_close(result.unit(x).double().detach(), result.shape(x), rtol=0, atol=2e-6)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("num_hinges", [1, 3, 7, 21])
def test_the_error_is_the_maximum(name: str, num_hinges: int) -> None:
    f, _, _ = FUNCTIONS[name]
    result = fit(f, -3, 3, num_hinges)
    on_grid = error_on_a_grid(f, result.unit, -3, 3)
    assert on_grid <= result.max_error + 1e-12
    assert result.max_error <= on_grid + 1e-6
    at_worst = torch.tensor([result.worst_at], dtype=torch.float64)
    there = (f(at_worst) - result.shape(at_worst)).abs().item()
    assert result.max_error == pytest.approx(there, abs=1e-15)


def test_the_error_in_closed_form() -> None:
    # On a segment of length h the chord of x² is h²/4 above it in the middle.
    assert fit(torch.square, -3, 3, 5).max_error == pytest.approx(0.25, abs=1e-6)
    # A kink: between the samples the error falls off in straight lines from it.
    peak = 0.123456
    found = fit(lambda x: (1e-3 - (x - peak).abs()).clamp(min=0.0), -3, 3, hinges=[0.0, 0.1, 0.15])
    assert found.worst_at == pytest.approx(peak, abs=1e-7)
    assert found.max_error == pytest.approx(1e-3, abs=1e-7)


@pytest.mark.parametrize("f", [math.sin, torch.sin, lambda x: math.sin(x) if x > 0 else x.sin()])
def test_scalar_and_tensor_functions_are_alike(f: Function) -> None:
    expected = fit(torch.sin, -2, 2, 9)
    result = fit(f, -2, 2, 9)
    assert torch.equal(result.unit.a_pos, expected.unit.a_pos)
    assert result.max_error == pytest.approx(expected.max_error, abs=1e-15)


def test_a_function_that_mixes_its_points_is_asked_one_at_a_time() -> None:
    def minus_the_mean(x: Tensor) -> Tensor:  # of one point, itself: f = 0
        return x - x.mean()

    assert fit(minus_the_mean, -1, 1, 3).max_error == 0.0


def test_another_unit_is_a_function() -> None:
    torch.manual_seed(0)
    other = Splash(init="random")
    again = fit(other, -3, 3, hinges=[0.0, 1.0, 2.0, 2.5])
    assert again.max_error < 1e-6


def test_options_are_those_of_the_unit() -> None:
    result = fit(torch.tanh, -3, 3, 5, share="channel", features=4, trainable=False)
    assert result.unit.a_pos.shape == (3, 4)
    assert not result.unit.a_pos.requires_grad
    assert result.max_error == fit(torch.tanh, -3, 3, 5).max_error
    assert fit(torch.tanh, -3, 3).unit.num_hinges == 7
    assert "init='tanh'" in repr(fit(torch.tanh, -3, 3).unit)


# --- intervals that are not symmetric ---------------------------------------------------------


def test_only_the_interval_is_asked_for() -> None:
    asked: list[float] = []

    def recorded(x: Tensor) -> Tensor:
        asked.extend(x.flatten().tolist())
        return torch.log1p(x)  # not finite at −1

    result = fit(recorded, -0.5, 2, 31)
    assert min(asked) == -0.5
    assert max(asked) == 2
    assert result.max_error == pytest.approx(
        error_on_a_grid(torch.log1p, result.unit, -0.5, 2), abs=1e-6
    )


def test_beyond_the_interval_the_unit_goes_straight_on() -> None:
    shape = fit(torch.square, -1.1, 3, 11).shape  # hinges at multiples of 0.5
    assert shape.slopes[:4].tolist() == pytest.approx([-2.1] * 4, abs=1e-6)  # from −1 to −1.1
    assert shape.slopes[4].item() == pytest.approx(-1.5, abs=1e-6)
    assert fit(torch.square, 0, 3, 11).shape.slopes[:6].tolist() == [0.0] * 6


@pytest.mark.parametrize(
    ("f", "low", "high", "second_derivative"),
    [
        (torch.exp, 1.0, 4.0, math.exp(4)),
        (torch.sqrt, 1.0, 4.0, 0.25),
        (lambda x: 5.0 + x.sin(), -4.0, -1.3, 1.0),
        (lambda x: x.cos() - 1, -0.7, 3.1, 1.0),
        (torch.log1p, 0.0, 3.0, 1.0),
        (torch.square, -2.0, 0.0, 2.0),
    ],
)
@pytest.mark.parametrize("num_hinges", [31, 63])
def test_segments_that_stick_out_keep_the_rate(
    f: Function, low: float, high: float, second_derivative: float, num_hinges: int
) -> None:
    step = 2 * max(abs(low), abs(high)) / (num_hinges + 1)
    assert fit(f, low, high, num_hinges).max_error <= step**2 / 8 * second_derivative + 1e-5


def test_a_line_that_starts_at_the_origin() -> None:
    # Zero is outside and the first hinge too: one segment must lead from the origin to f(hinge).
    result = fit(lambda x: torch.full_like(x, 5.0), 1.0, 3.0, 3)
    assert result.shape([1.0, 1.5, 3.0]).tolist() == pytest.approx([10 / 3, 5, 5], abs=1e-6)
    assert result.max_error == pytest.approx(5 / 3, abs=1e-6)


# --- rates and bounds -------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMOOTH)
def test_twice_the_segments_quarter_the_error(name: str) -> None:
    f, _, second_derivative = FUNCTIONS[name]
    errors = [fit(f, -3, 3, 2**k - 1).max_error for k in range(5, 9)]
    ratios = [coarse / fine for coarse, fine in pairwise(errors)]
    assert all(3.7 < ratio < 4.1 for ratio in ratios)
    assert abs(ratios[-1] - 4) < 0.06
    for k, error in zip(range(5, 9), errors, strict=True):
        bound = (6 / 2**k) ** 2 / 8 * second_derivative
        assert 0.9 * bound < error < bound + 1e-6


@pytest.mark.parametrize("num_hinges", [*range(1, 40, 2), 255])
def test_abs_is_exact_with_any_hinges(num_hinges: int) -> None:
    assert fit(torch.abs, -3, 3, num_hinges).max_error == 0.0


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("epsilon", [0.5, 0.1, 0.03])
def test_the_theorem_holds(name: str, epsilon: float) -> None:
    f, lipschitz, _ = FUNCTIONS[name]
    asked = hinges_needed(f, -3, 3, epsilon, lipschitz=lipschitz)
    delta = epsilon / lipschitz
    assert asked % 2 == 1
    assert asked > 6 / delta - 1 >= asked - 2 - 1e-9
    assert fit(f, -3, 3, asked).max_error <= epsilon


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("epsilon", [0.5, 0.1])
def test_the_theorem_holds_with_a_measured_step(name: str, epsilon: float) -> None:
    f, lipschitz, _ = FUNCTIONS[name]
    measured = hinges_needed(f, -3, 3, epsilon)
    assert measured <= 1.05 * hinges_needed(f, -3, 3, epsilon, lipschitz=lipschitz) + 2
    assert fit(f, -3, 3, measured).max_error <= epsilon


def test_the_bound_is_tight_where_the_function_is_as_bad_as_it_may_be() -> None:
    # A zigzag with slope 1 whose teeth have the length of a segment: the chord is off by half of δ.
    def zigzag(x: Tensor) -> Tensor:
        return 0.05 - (torch.remainder(x, 0.2) - 0.1).abs() + 0.05

    few = fit(zigzag, -3, 3, 29)
    assert few.max_error == pytest.approx(0.1, abs=1e-6)
    asked = hinges_needed(zigzag, -3, 3, 0.05, lipschitz=1.0)
    assert fit(zigzag, -3, 3, asked).max_error <= 0.05


def test_a_modulus_serves_functions_that_have_no_lipschitz_constant() -> None:
    def root(x: Tensor) -> Tensor:
        return x.abs().sqrt()

    asked = hinges_needed(root, -3, 3, 0.25, modulus=math.sqrt)  # δ = ε² = 1/16
    assert asked == 97  # 2·3·16 − 1 = 95, and it must be more, and odd
    assert fit(root, -3, 3, asked).max_error <= 0.25
    assert hinges_needed(root, -3, 3, 5.0, modulus=math.sqrt) == 1


def test_the_line_to_the_origin_counts() -> None:
    constant = lambda x: torch.full_like(x, 5.0)  # noqa: E731
    asked = hinges_needed(constant, 1.0, 3.0, 0.5, lipschitz=0.0)
    assert asked == 61  # the line has slope 5: δ = 0.1, 2·3/0.1 − 1 = 59
    assert fit(constant, 1.0, 3.0, asked).max_error <= 0.5
    assert hinges_needed(torch.zeros_like, -3, 3, 0.1) == 1


# --- bad input --------------------------------------------------------------------------------


def test_a_function_that_is_not_grounded() -> None:
    with pytest.raises(ValueError, match=r"f\(0\) = 1"):
        fit(torch.cos, -3, 3, 7)
    with pytest.raises(ValueError, match=r"f\(0\) = 1"):
        hinges_needed(torch.cos, -3, 3, 0.1)
    with pytest.raises(ValueError, match=r"f\(0\) = nan"):
        fit(lambda x: x / x, -3, 3, 7)
    assert fit(lambda x: F.softplus(x) - math.log(2), -3, 3, 7).max_error < 0.1


@pytest.mark.parametrize(
    ("low", "high"), [(3, -3), (1, 1), (-math.inf, 3), (-3, math.nan), (0, math.inf)]
)
def test_bad_intervals(low: float, high: float) -> None:
    with pytest.raises(ValueError, match="low < high"):
        fit(torch.sin, low, high, 7)
    with pytest.raises(ValueError, match="low < high"):
        hinges_needed(torch.sin, low, high, 0.1)


def test_bad_hinges() -> None:
    with pytest.raises(ValueError, match=r"odd and positive.*got 8"):
        fit(torch.sin, -3, 3, 8)
    with pytest.raises(TypeError, match=r"7\.0"):
        fit(torch.sin, -3, 3, 7.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="increase strictly"):
        fit(torch.sin, -3, 3, hinges=[0.0, 2.0, 1.0])
    with pytest.raises(ValueError, match="not both"):
        fit(torch.sin, -3, 3, 3, hinges=[0.0, 1.0])


def test_values_that_are_not_finite() -> None:
    with pytest.raises(ValueError, match=r"not finite at \[1\.5"):
        fit(lambda x: torch.where(x.abs() == 1.5, math.inf, x), -3, 3, 7)
    with pytest.raises(ValueError, match="not finite everywhere"):
        hinges_needed(lambda x: torch.where(x > 2, math.nan, x), -3, 3, 0.1)


def test_bad_bounds() -> None:
    for epsilon in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(ValueError, match="epsilon must be a positive number"):
            hinges_needed(torch.sin, -3, 3, epsilon)
    for lipschitz in (-1.0, math.inf):
        with pytest.raises(ValueError, match="lipschitz must be"):
            hinges_needed(torch.sin, -3, 3, 0.1, lipschitz=lipschitz)
    with pytest.raises(ValueError, match="not both"):
        hinges_needed(torch.sin, -3, 3, 0.1, lipschitz=1.0, modulus=lambda d: d)
    with pytest.raises(ValueError, match="for every step"):
        hinges_needed(torch.sin, -3, 3, 0.1, modulus=lambda d: 1.0)
    with pytest.raises(ValueError, match="too steep to measure"):
        hinges_needed(torch.sign, -3, 3, 0.1)  # a jump is not continuous
