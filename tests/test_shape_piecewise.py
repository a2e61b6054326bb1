"""The piecewise-linear form of a unit: its lines, and what follows from them."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from splash_units import Splash
from splash_units.shape import Shape, segments

AXIS = torch.linspace(-6, 6, 1201, dtype=torch.float64)
PAPER = [-2.5, -2.0, -1.0, 0.0, 1.0, 2.0, 2.5]


def random_unit(seed: int = 0, **options: object) -> Splash:
    torch.manual_seed(seed)
    unit = Splash(**options)  # type: ignore[arg-type]
    with torch.no_grad():
        unit.a_pos.normal_()
        unit.a_neg.normal_()
    return unit


def with_slopes(a_pos: list[float], a_neg: list[float]) -> Splash:
    unit = Splash(2 * len(a_pos) - 1)
    with torch.no_grad():
        unit.a_pos.copy_(torch.tensor(a_pos))
        unit.a_neg.copy_(torch.tensor(a_neg))
    return unit


def values(unit: Splash, x: Tensor) -> Tensor:
    return unit.double()(x).detach()


# --- the lines --------------------------------------------------------------------------------


def test_slopes_and_intercepts_by_hand() -> None:
    shape = segments(with_slopes([1.0, 0.5, -2.0], [0.25, -1.0, 4.0]))
    assert shape.breakpoints.tolist() == [-2, -1, 0, 1, 2]
    assert shape.slopes.tolist() == [-3.25, 0.75, -0.25, 1.0, 1.5, -0.5]
    assert shape.intercepts.tolist() == [-7.0, 1.0, 0.0, 0.0, -0.5, 3.5]
    assert shape.slopes.dtype == shape.intercepts.dtype == shape.breakpoints.dtype == torch.float64


@given(
    st.sampled_from([1, 3, 5, 7, 9, 11, 15]),
    st.integers(0, 2**32 - 1),
    st.floats(-8, 8, allow_subnormal=False),
)
def test_a_shape_is_its_unit(num_hinges: int, seed: int, x: float) -> None:
    unit = random_unit(seed, num_hinges=num_hinges)
    points = torch.tensor([x, -x, 0.0, *segments(unit).breakpoints.tolist()], dtype=torch.float64)
    torch.testing.assert_close(segments(unit)(points), values(unit, points), rtol=0, atol=1e-12)


def test_slopes_are_what_autograd_says_inside_each_segment() -> None:
    unit = random_unit().double()
    shape = segments(unit)
    inside = torch.tensor([-3, -2.25, -1.5, -0.5, 0.5, 1.5, 2.25, 3], dtype=torch.float64)
    inside.requires_grad_()
    (slopes,) = torch.autograd.grad(unit(inside).sum(), inside)
    torch.testing.assert_close(shape.slopes, slopes, rtol=0, atol=1e-12)


def test_a_shape_is_a_copy_that_does_not_ask_for_gradients() -> None:
    unit = Splash()
    shape = segments(unit)
    with torch.no_grad():
        unit.a_pos.fill_(9.0)
    assert shape.slopes.tolist() == [0.0] * 4 + [1.0] * 4
    assert not shape.slopes.requires_grad


def test_limits_at_infinity_and_nan() -> None:
    infinities = torch.tensor([-math.inf, math.inf])
    assert segments(Splash())(infinities).tolist() == [0.0, math.inf]
    assert segments(with_slopes([1.0, -1.0], [0.5, -0.5]))(infinities).tolist() == [0.5, 1.0]
    assert segments(Splash())(torch.tensor([math.nan, -1.0])).isnan().tolist() == [True, False]
    assert segments(with_slopes([1.0, -1.0], [0.0, 0.0]))(math.nan).isnan()  # flat at both ends


def test_points_may_be_numbers_lists_and_tensors_of_any_rank() -> None:
    shape = segments(Splash(init="abs"))
    assert shape(-2).item() == 2.0
    assert shape([-1, 3]).tolist() == [1.0, 3.0]
    assert shape(torch.full((2, 3), -4.0, dtype=torch.bfloat16)).tolist() == [[4.0] * 3] * 2


@pytest.mark.parametrize(
    ("share", "features", "index", "shapes"),
    [("channel", 5, 3, (5,)), ("unit", (2, 4, 3), (1, 2, 0), (2, 4, 3))],
)
def test_units_with_many_shapes_give_one_row_each(
    share: str, features: object, index: object, shapes: tuple[int, ...]
) -> None:
    unit = random_unit(share=share, features=features)
    all_shapes = segments(unit)
    assert all_shapes.groups == shapes
    assert all_shapes.slopes.shape == (*shapes, 8)
    assert all_shapes(AXIS).shape == (*shapes, len(AXIS))
    assert all_shapes.lipschitz.shape == shapes

    one = segments(unit, index=index)  # type: ignore[arg-type]
    where = index if isinstance(index, tuple) else (index,)
    assert one.groups == ()
    single = with_slopes(
        unit.a_pos[:, *where].tolist(),  # type: ignore[arg-type]
        unit.a_neg[:, *where].tolist(),  # type: ignore[arg-type]
    )
    torch.testing.assert_close(one(AXIS), values(single, AXIS), rtol=0, atol=1e-12)
    assert torch.equal(one(AXIS), all_shapes(AXIS)[where])


def test_rows_stand_for_channels_as_the_unit_applies_them() -> None:
    unit = random_unit(share="channel", features=3, dim=-1)
    x = torch.randn(4, 7, 3, dtype=torch.float64)
    by_shape = torch.stack([segments(unit, c)(x[..., c]) for c in range(3)], dim=-1)
    torch.testing.assert_close(by_shape, values(unit, x), rtol=0, atol=1e-12)


# --- what follows from them -------------------------------------------------------------------


@given(st.integers(0, 2**32 - 1))
def test_lipschitz_is_the_least_constant(seed: int) -> None:
    shape = segments(random_unit(seed))
    y = shape(AXIS)
    steepest = (y.diff() / AXIS.diff()).abs().max()
    assert shape.lipschitz.item() == pytest.approx(steepest.item(), abs=1e-9)
    assert shape.lipschitz >= shape.max_slope.abs()
    assert shape.lipschitz >= shape.min_slope.abs()


def test_lipschitz_counts_the_unbounded_segments() -> None:
    assert segments(with_slopes([1.0, 0.0, 2.0], [0.0, 0.0, 0.0])).lipschitz == 3.0
    assert segments(with_slopes([1.0, 0.0, 0.0], [0.0, 0.0, -7.0])).lipschitz == 7.0


@pytest.mark.parametrize(
    ("start", "monotone", "odd", "even"),
    [
        ("relu", True, False, False),
        ("leaky_relu", True, False, False),
        ("identity", True, True, False),
        ("abs", False, False, True),
        ("tanh", True, True, False),
        ("elu", True, False, False),
        (torch.square, False, False, True),
        (torch.sin, False, True, False),
        (torch.negative, True, True, False),
    ],
)
def test_monotone_odd_even(start: object, monotone: bool, odd: bool, even: bool) -> None:
    shape = segments(Splash(init=start))  # type: ignore[arg-type]
    said = (shape.is_monotone(), shape.is_odd(), shape.is_even())
    assert tuple(bool(s) for s in said) == (monotone, odd, even)


@pytest.mark.parametrize("kind", ["is_monotone", "is_odd", "is_even"])
def test_tolerance_is_on_slopes(kind: str) -> None:
    start = {"is_monotone": "relu", "is_odd": "identity", "is_even": "abs"}[kind]
    unit = Splash(init=start)
    with torch.no_grad():
        unit.a_neg[2] += 0.01  # left of −2, h is 0.01·(|x| − 2) above what it was
    ask = getattr(segments(unit), kind)
    assert not ask()
    assert not ask(tol=0.0099)
    assert ask(tol=0.0101)


def test_flat_segments() -> None:
    assert segments(Splash()).flat_segments().tolist() == [True] * 4 + [False] * 4
    nearly = segments(with_slopes([1.0, -0.9999], [0.0, 0.5]))
    assert nearly.flat_segments().tolist() == [False, True, False, False]
    assert nearly.flat_segments(tol=1e-3).tolist() == [False, True, False, True]


def test_segments_have_names_and_a_table() -> None:
    shape = segments(Splash(5))
    assert shape.segment_names == (
        *("(-inf, -2)", "[-2, -1)", "[-1, 0)"),
        *("[0, 1)", "[1, 2)", "[2, inf)"),
    )
    lines = str(shape).splitlines()
    assert lines[0] == "6 segments, Lipschitz 1.0000"
    assert lines[4].split() == ["[0,", "1)", "+1.0000", "x", "+0.0000"]
    assert str(segments(Splash(share="channel", features=3))) == "3 shapes of 8 segments"


# --- bad input --------------------------------------------------------------------------------


def test_only_units_have_segments() -> None:
    with pytest.raises(TypeError, match="ReLU"):
        segments(nn.ReLU())  # type: ignore[arg-type]


@pytest.mark.parametrize("index", [0, (1, 2)])
def test_a_single_shape_has_no_index(index: object) -> None:
    with pytest.raises(IndexError, match="too many"):
        segments(Splash(), index=index)  # type: ignore[arg-type]


def test_a_record_is_frozen() -> None:
    shape = segments(Splash())
    with pytest.raises(AttributeError):
        shape.slopes = shape.slopes  # type: ignore[misc]
    assert isinstance(shape, Shape)
    assert shape.breakpoints.tolist() == PAPER
