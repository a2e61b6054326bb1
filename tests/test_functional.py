"""splash() whichever kernel serves it: the equation, its gradients, and every kind of tensor."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from oracle import assert_follows_paper, assert_gradients_follow_paper, assert_same_bits
from splash_units import splash

HINGES = torch.tensor([0.0, 1.0, 2.0, 2.5])
A_POS = torch.tensor([1.0, -0.75, 0.5, -1.5])
A_NEG = torch.tensor([-0.25, 0.5, 1.25, -0.75])
RELU = (torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4))
SATURATING = torch.tensor([1.0, -0.5, -0.25, -0.25])  # slopes sum to 0: h(∞) = 1.625

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}


def normal(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    """Inputs that reach every segment of the default hinges."""
    return 2 * torch.randn(shape, dtype=dtype, generator=torch.manual_seed(seed))


def slopes(*features: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    """One random shape a feature."""
    return normal(4, *features, dtype=dtype, seed=1), normal(4, *features, dtype=dtype, seed=2)


# --- the equation -----------------------------------------------------------------------------

SHARINGS = {
    "layer": ((), (3, 4, 5, 3)),
    "channel": ((4, 1, 1), (3, 4, 5, 3)),
    "last": ((6,), (3, 5, 6)),
    "unit": ((4, 5), (3, 4, 5)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_follows_the_paper(sharing: str, dtype: torch.dtype) -> None:
    features, shape = SHARINGS[sharing]
    a_pos, a_neg = slopes(*features)
    x = normal(*shape).to(dtype)
    assert_follows_paper(splash(x, a_pos, a_neg, HINGES), x, a_pos, a_neg, HINGES)


@pytest.mark.parametrize("num_hinges", [1, 2, 3, 5, 6, 9, 20])
def test_any_number_of_hinges(num_hinges: int) -> None:
    """Off any grid, too: hinges at square roots."""
    hinges = torch.arange(num_hinges, dtype=torch.float32).sqrt()
    a_pos, a_neg = normal(num_hinges, seed=1), normal(num_hinges, seed=2)
    x = normal(1000)
    assert_follows_paper(splash(x, a_pos, a_neg, hinges), x, a_pos, a_neg, hinges)


@pytest.mark.parametrize("side", ["a_pos", "a_neg"])
@pytest.mark.parametrize("row", range(4))
def test_a_mutated_slope_is_noticed(side: str, row: int) -> None:
    given_slopes = {"a_pos": A_POS.clone(), "a_neg": A_NEG.clone()}
    given_slopes[side][row] += 1e-4
    x = normal(1000)
    with pytest.raises(AssertionError, match="off by"):
        assert_follows_paper(splash(x, **given_slopes, hinges=HINGES), x, A_POS, A_NEG, HINGES)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_gradients_are_exact(sharing: str, dtype: torch.dtype) -> None:
    features, shape = SHARINGS[sharing]
    a_pos, a_neg = (a.requires_grad_() for a in slopes(*features))
    x = normal(*shape).to(dtype).requires_grad_()
    upstream = normal(*shape, seed=3).to(dtype)
    grads = torch.autograd.grad(splash(x, a_pos, a_neg, HINGES), (x, a_pos, a_neg), upstream)
    assert_gradients_follow_paper(grads, x, a_pos, a_neg, HINGES, upstream)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_a_gradient_at_mutated_slopes_is_noticed(sharing: str) -> None:
    features, shape = SHARINGS[sharing]
    a_pos, a_neg = slopes(*features)
    x = normal(*shape).requires_grad_()
    upstream = normal(*shape, seed=3)
    mutated = [a.clone().requires_grad_() for a in (a_pos, a_neg)]
    with torch.no_grad():
        mutated[1][0] += 1e-3
    grads = torch.autograd.grad(splash(x, *mutated, HINGES), (x, *mutated), upstream)
    with pytest.raises(AssertionError, match="gradient off by"):
        assert_gradients_follow_paper(grads, x, a_pos, a_neg, HINGES, upstream)


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_gradients_against_finite_differences(check: Callable[..., bool], sharing: str) -> None:
    features, shape = SHARINGS[sharing]
    a_pos, a_neg = (a.requires_grad_() for a in slopes(*features, dtype=torch.float64))
    x = normal(1, *shape[1:], dtype=torch.float64)
    # A finite difference must not straddle a hinge.
    nearest = (x.abs().unsqueeze(-1) - HINGES).abs().amin(-1)
    x = torch.where(nearest < 1e-3, x + 4e-3, x).requires_grad_()
    assert check(lambda *t: splash(*t, HINGES), (x, a_pos, a_neg))


@pytest.mark.parametrize("asked", [(1, 0, 0), (0, 1, 0), (0, 0, 1), (1, 0, 1), (0, 1, 1)])
def test_only_the_gradients_asked_for(asked: tuple[int, ...]) -> None:
    inputs = [normal(50), A_POS.clone(), A_NEG.clone()]
    everything = [t.clone().requires_grad_() for t in inputs]
    splash(*everything, HINGES).sum().backward()
    some = [t.requires_grad_(bool(ask)) for t, ask in zip(inputs, asked, strict=True)]
    splash(*some, HINGES).sum().backward()
    for ours, full, ask in zip(some, everything, asked, strict=True):
        assert (ours.grad is not None) == bool(ask)
        if ours.grad is not None:
            assert full.grad is not None
            torch.testing.assert_close(ours.grad, full.grad)


def test_a_change_of_x_before_backward_gives_no_wrong_gradient() -> None:
    """A kernel that saved x must refuse; one that did not must still have the right answer."""
    x, a_pos = normal(10), A_POS.clone().requires_grad_()
    (expected,) = torch.autograd.grad(splash(x.clone(), a_pos, A_NEG, HINGES).sum(), a_pos)
    y = splash(x, a_pos, A_NEG, HINGES)
    x.add_(1.0)
    refusal = ""
    try:
        y.sum().backward()
    except RuntimeError as error:
        refusal = str(error)
    if refusal:
        assert "modified by an inplace operation" in refusal
    else:
        assert a_pos.grad is not None
        torch.testing.assert_close(a_pos.grad, expected)


# --- properties -------------------------------------------------------------------------------

slope_rows = st.lists(st.floats(-4, 4, width=32), min_size=4, max_size=4).map(
    lambda row: torch.tensor(row, dtype=torch.float64)
)
hinge_lists = st.lists(st.floats(0.0625, 8, width=16), min_size=3, max_size=3, unique=True).map(
    lambda bs: torch.tensor([0.0, *sorted(bs)], dtype=torch.float64)
)
fractions = st.floats(0, 1, width=32)


@given(slope_rows, slope_rows, hinge_lists)
def test_grounded(a_pos: Tensor, a_neg: Tensor, hinges: Tensor) -> None:
    for zero in (0.0, -0.0):
        h = splash(torch.tensor([zero], dtype=torch.float64), a_pos, a_neg, hinges)
        assert h.item() == 0.0


@given(slope_rows, slope_rows, hinge_lists, st.floats(1e-6, 1e-2))
def test_continuous_at_every_hinge(
    a_pos: Tensor, a_neg: Tensor, hinges: Tensor, step: float
) -> None:
    """Across a hinge h changes by no more than its steepest slope allows."""
    steepest = max(a.cumsum(0).abs().max().item() for a in (a_pos, a_neg))
    kinks = torch.cat([hinges, -hinges])
    across = splash(kinks + step, a_pos, a_neg, hinges) - splash(kinks - step, a_pos, a_neg, hinges)
    assert across.abs().max().item() <= 2 * step * steepest + 1e-12


@given(slope_rows, slope_rows, hinge_lists, fractions, fractions, fractions)
def test_linear_between_hinges_with_the_summed_slopes(
    a_pos: Tensor, a_neg: Tensor, hinges: Tensor, u: float, v: float, t: float
) -> None:
    """Between two points of a segment, on either side of zero, h is a straight line of slope Σa."""
    left_ends = hinges
    right_ends = torch.cat([hinges[1:], hinges[-1:] + 5.0])
    p, q = (left_ends + f * (right_ends - left_ends) for f in (u, v))
    middle = p + t * (q - p)
    for sign, a in ((1.0, a_pos), (-1.0, a_neg)):
        at_p, at_q, at_middle = (splash(sign * x, a_pos, a_neg, hinges) for x in (p, q, middle))
        torch.testing.assert_close(at_middle, at_p + t * (at_q - at_p), rtol=0, atol=1e-11)
        torch.testing.assert_close(at_q - at_p, a.cumsum(0) * (q - p), rtol=0, atol=1e-11)


@given(slope_rows, slope_rows, hinge_lists, st.floats(0.0625, 20, width=32))
def test_derivative_is_the_sum_of_the_slopes_passed(
    a_pos: Tensor, a_neg: Tensor, hinges: Tensor, x: float
) -> None:
    at = torch.tensor([x, -x], dtype=torch.float64, requires_grad=True)
    splash(at, a_pos, a_neg, hinges).sum().backward()
    passed = hinges < x
    expected = torch.stack([a_pos[passed].sum(), -a_neg[passed].sum()])
    assert at.grad is not None
    torch.testing.assert_close(at.grad, expected, rtol=0, atol=1e-12)


@given(slope_rows, slope_rows, hinge_lists)
def test_swapping_the_sides_mirrors_the_shape(a_pos: Tensor, a_neg: Tensor, hinges: Tensor) -> None:
    x = torch.linspace(-10, 10, 41, dtype=torch.float64)
    mirrored = splash(-x, a_neg, a_pos, hinges)
    torch.testing.assert_close(splash(x, a_pos, a_neg, hinges), mirrored, rtol=0, atol=1e-12)


# --- bit for bit torch.relu, and the ends of the axis -----------------------------------------


def every_kind_of_number(dtype: torch.dtype) -> Tensor:
    """All 65536 patterns of a 16-bit dtype; random patterns and the special ones of a wider."""
    if dtype.itemsize == 2:
        return torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype)
    width = 8 * dtype.itemsize
    generator = torch.manual_seed(0)
    integers = torch.randint(
        -(2 ** (width - 1)), 2 ** (width - 1) - 1, (50_000,), dtype=BITS[dtype], generator=generator
    )
    info = torch.finfo(dtype)
    special = [0.0, math.inf, math.nan, info.max, info.tiny, info.smallest_normal * info.eps]
    near = torch.cat([HINGES, torch.tensor([0.5, 1.5, 3.0])]).to(dtype)
    near = torch.cat([near, near.nextafter(near + 1), near.nextafter(near - 1)])
    ordinary = torch.randn(10_000, dtype=dtype, generator=generator)
    positive = torch.cat([torch.tensor(special, dtype=dtype), near])
    return torch.cat([integers.view(dtype), positive, -positive, ordinary])


@pytest.mark.parametrize("dtype", DTYPES)
def test_relu_slopes_are_relu_to_the_last_bit(dtype: torch.dtype) -> None:
    ours = every_kind_of_number(dtype).requires_grad_()
    theirs = ours.detach().clone().requires_grad_()
    upstream = normal(len(ours), seed=5).to(dtype)
    y, expected = splash(ours, *RELU, HINGES), torch.relu(theirs)
    assert_same_bits(y, expected)
    y.backward(upstream)
    expected.backward(upstream)
    assert ours.grad is not None
    assert theirs.grad is not None
    assert_same_bits(ours.grad, theirs.grad)


@pytest.mark.parametrize("dtype", DTYPES)
def test_relu_bits_in_vectors_of_every_length(dtype: torch.dtype) -> None:
    """Vectorised loops and what is left over must agree, on the sign of zero first of all."""
    for n in range(70):
        x = torch.cat([torch.full((n,), -0.0), torch.tensor([-math.inf, math.inf])]).to(dtype)
        assert_same_bits(splash(x, *RELU, HINGES), torch.relu(x))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("features", [(), (3,)])
def test_infinities_give_the_limit(features: tuple[int, ...], dtype: torch.dtype) -> None:
    def row(a: Tensor) -> Tensor:
        return a.reshape(4, *(1 for _ in features)).expand(4, *features)

    x = torch.tensor([math.inf, -math.inf], dtype=dtype)[:, None].expand(2, 3)
    for a_pos, limit in ((SATURATING, 1.625), (A_POS, -math.inf), (-A_POS, math.inf)):
        for a_neg, left_limit in ((SATURATING, 1.625), (torch.zeros(4), 0.0), (A_NEG, math.inf)):
            at = x.clone().requires_grad_()
            y = splash(at, row(a_pos), row(a_neg), HINGES)
            assert y[0].tolist() == [limit] * 3
            assert y[1].tolist() == [left_limit] * 3
            y.sum().backward()
            assert at.grad is not None
            assert at.grad[0].tolist() == [a_pos.sum().item()] * 3
            assert at.grad[1].tolist() == [-a_neg.sum().item()] * 3


def test_infinity_makes_no_nan_in_the_slopes_gradients() -> None:
    a_pos, a_neg = (a.clone().requires_grad_() for a in (SATURATING, A_NEG))
    splash(torch.tensor([math.inf, -math.inf, 1.5]), a_pos, a_neg, HINGES).sum().backward()
    for a in (a_pos, a_neg):
        assert a.grad is not None
        assert not a.grad.isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_passes_through_alone(dtype: torch.dtype) -> None:
    x = normal(40).to(dtype)
    x[::7] = math.nan
    y = splash(x, A_POS, A_NEG, HINGES)
    assert torch.equal(y.isnan(), x.isnan())


# --- every kind of tensor ---------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(), (7,), (2, 7), (2, 3, 7), (2, 3, 4, 5), (2, 3, 2, 3, 4)])
def test_any_rank(shape: tuple[int, ...]) -> None:
    x = normal(*shape).requires_grad_()
    y = splash(x, A_POS, A_NEG, HINGES)
    assert_follows_paper(y, x, A_POS, A_NEG, HINGES)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.shape == shape


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0), (2, 3, 0, 4)])
@pytest.mark.parametrize("dtype", DTYPES)
def test_empty(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x = torch.empty(shape, dtype=dtype, requires_grad=True)
    a_pos, a_neg = (a.clone().requires_grad_() for a in (A_POS, A_NEG))
    y = splash(x, a_pos, a_neg, HINGES)
    assert y.shape == shape
    assert y.dtype == dtype
    y.sum().backward()
    for a in (a_pos, a_neg):
        assert a.grad is not None
        assert a.grad.tolist() == [0.0] * 4


STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(1, 3),
    "every other": lambda t: t[:, :, ::2],
    "offset": lambda t: t[1:, :, 1:],
    "flipped": lambda t: t.flip(3),
    "expanded": lambda t: t[:, :, :, :1].expand(-1, -1, -1, 5),
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
    "sliced channels last": lambda t: t.contiguous(memory_format=torch.channels_last)[:, :, :2],
}


@pytest.mark.parametrize("of_gradient", ["contiguous", "channels last", "expanded"])
@pytest.mark.parametrize("of_x", STRIDES)
@pytest.mark.parametrize("share", ["layer", "channel"])
def test_strides(of_x: str, of_gradient: str, share: str) -> None:
    """The upstream gradient may lie otherwise than x: read as if it did not, it trains nonsense."""
    x = STRIDES[of_x](normal(3, 4, 6, 4)).requires_grad_()
    upstream = STRIDES[of_gradient](normal(*x.shape, seed=3))
    if upstream.shape != x.shape:
        upstream = upstream[..., :1].expand(x.shape)
    features = (x.shape[1], 1, 1) if share == "channel" else ()
    a_pos, a_neg = (a.requires_grad_() for a in slopes(*features))

    y = splash(x, a_pos, a_neg, HINGES)
    assert_follows_paper(y, x, a_pos, a_neg, HINGES)
    grads = torch.autograd.grad(y, (x, a_pos, a_neg), upstream)
    assert_gradients_follow_paper(grads, x, a_pos, a_neg, HINGES, upstream)


@pytest.mark.parametrize(
    ("shape", "layout"),
    [((2, 3, 4, 5), torch.channels_last), ((2, 3, 2, 4, 5), torch.channels_last_3d)],
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_channels_last_is_kept(
    shape: tuple[int, ...], layout: torch.memory_format, dtype: torch.dtype
) -> None:
    x = normal(*shape).to(dtype).contiguous(memory_format=layout)
    assert splash(x, A_POS, A_NEG, HINGES).is_contiguous(memory_format=layout)


def test_slopes_and_hinges_in_other_dtypes_than_x() -> None:
    x = normal(100)
    for dtype in (torch.float64, torch.bfloat16):
        a_pos, a_neg, hinges = (t.to(dtype).requires_grad_() for t in (A_POS, A_NEG, HINGES))
        y = splash(x, a_pos, a_neg, hinges.detach())
        assert_follows_paper(y, x, a_pos, a_neg, HINGES)
        y.sum().backward()
        assert a_pos.grad is not None
        assert a_pos.grad.dtype == dtype


def test_arguments_are_left_alone() -> None:
    arguments = (normal(20), A_POS.clone(), A_NEG.clone(), HINGES.clone())
    before = [t.clone() for t in arguments]
    splash(*arguments)
    assert all(torch.equal(t, b) for t, b in zip(arguments, before, strict=True))


# --- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "dtype", [torch.int64, torch.uint8, torch.bool, torch.complex64, torch.float8_e4m3fn]
)
def test_only_real_floating_point_inputs(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"float32.*got {dtype}"):
        splash(torch.ones(3, dtype=dtype), A_POS, A_NEG, HINGES)


@pytest.mark.parametrize("name", ["a_pos", "a_neg", "hinges"])
def test_only_floating_point_slopes_and_hinges(name: str) -> None:
    arguments = {"a_pos": A_POS, "a_neg": A_NEG, "hinges": HINGES}
    arguments[name] = arguments[name].to(torch.int64)
    with pytest.raises(TypeError, match=f"{name}.*got torch.int64"):
        splash(normal(3), **arguments)


@pytest.mark.parametrize("name", ["a_pos", "a_neg", "hinges"])
def test_everything_on_one_device(name: str) -> None:
    arguments = {"a_pos": A_POS, "a_neg": A_NEG, "hinges": HINGES}
    arguments[name] = arguments[name].to("meta")
    with pytest.raises(ValueError, match=f"{name} is on meta, x is on cpu"):
        splash(normal(3), **arguments)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hinges": torch.tensor(0.0)}, r"non-empty vector, got shape \(\)"),
        ({"hinges": torch.zeros(0)}, r"non-empty vector, got shape \(0,\)"),
        ({"hinges": torch.zeros(2, 2)}, r"non-empty vector, got shape \(2, 2\)"),
        ({"a_pos": torch.zeros(3)}, r"a_pos must have one row for each of the 4 hinges.*\(3,\)"),
        ({"a_neg": torch.tensor(1.0)}, r"a_neg must have one row for each of the 4 hinges.*\(\)"),
        ({"a_pos": torch.zeros(4, 5)}, r"same shape, got \(4, 5\) and \(4,\)"),
        (
            {"a_pos": torch.zeros(4, 5), "a_neg": torch.zeros(4, 5)},
            r"\(4, 5\) don't broadcast against x of shape \(2, 3\)",
        ),
        (
            {"a_pos": torch.zeros(4, 1, 2, 3), "a_neg": torch.zeros(4, 1, 2, 3)},
            r"don't broadcast against x of shape \(2, 3\)",
        ),
    ],
)
def test_shapes_that_do_not_fit(changed: dict[str, Tensor], message: str) -> None:
    arguments = {"a_pos": A_POS, "a_neg": A_NEG, "hinges": HINGES} | changed
    with pytest.raises(ValueError, match=message):
        splash(normal(2, 3), **arguments)
