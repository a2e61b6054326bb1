"""The GPU kernel against the plain equation, mostly in Triton's interpreter.

There bfloat16 is cut off where a GPU rounds; the bounds of `oracle` allow for either.
"""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from oracle import assert_follows_paper, assert_gradients_follow_paper, assert_same_bits
from splash_units.kernels import reference
from splash_units.starts import default_hinges
from triton_kernel import (
    DEVICE,
    OPERATORS,
    SHARINGS,
    assert_passes_in_a_process_of_its_own,
    normal,
    on_device,
    runs_kernel,
    runs_no_kernel,
    slopes,
)

HINGES = torch.tensor([0.0, 1.0, 2.0, 2.5])
A_POS = torch.tensor([1.0, -0.75, 0.5, -1.5])
A_NEG = torch.tensor([-0.25, 0.5, 1.25, -0.75])
SATURATING = torch.tensor([1.0, -0.5, -0.25, -0.25])
RELU = (torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.zeros(4))
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def run(
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    upstream: Tensor,
    trailing: int = 0,
    grad_scale: float = 1.0,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    """The kernel's h(x) and its gradients, back on the CPU."""
    x, a_pos, a_neg = (t.requires_grad_() for t in on_device(x, a_pos, a_neg))
    y = OPERATORS.splash(x, a_pos, a_neg, *on_device(hinges), trailing, grad_scale)
    dx, d_pos, d_neg = torch.autograd.grad(y, (x, a_pos, a_neg), *on_device(upstream))
    return y.detach().cpu(), (dx.cpu(), d_pos.cpu(), d_neg.cpu())


def run_reference(
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    upstream: Tensor,
    trailing: int = 0,
    grad_scale: float = 1.0,
) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
    x, a_pos, a_neg = (t.detach().requires_grad_() for t in (x, a_pos, a_neg))
    y = reference.scaled_splash(x, a_pos, a_neg, hinges, trailing, grad_scale)
    dx, d_pos, d_neg = torch.autograd.grad(y, (x, a_pos, a_neg), upstream)
    return y.detach(), (dx, d_pos, d_neg)


def assert_serves(
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor = HINGES,
    trailing: int = 0,
    upstream: Tensor | None = None,
) -> None:
    """Output and all gradients are the equation's, as far as rounding allows."""
    if upstream is None:
        upstream = normal(*x.shape, dtype=x.dtype, seed=3)
    y, grads = run(x, a_pos, a_neg, hinges, upstream, trailing)
    wide = [a.reshape(*a.shape, *(1 for _ in range(trailing))) for a in (a_pos, a_neg)]
    shaped = grads[0], *(d.reshape(w.shape) for d, w in zip(grads[1:], wide, strict=True))
    assert_follows_paper(y, x, *wide, hinges)
    assert_gradients_follow_paper(shaped, x, *wide, hinges, upstream)


@runs_no_kernel
def test_in_a_process_of_its_own() -> None:
    assert_passes_in_a_process_of_its_own(__file__)


# --- the equation ---------------------------------------------------------------------------------


@runs_kernel
@pytest.mark.parametrize("sharing", SHARINGS)
def test_output_and_gradients(sharing: str) -> None:
    own, trailing, shape = SHARINGS[sharing]
    assert_serves(normal(*shape), *slopes(4, *own), trailing=trailing)


@runs_kernel
@pytest.mark.parametrize("dtype", [dtype for dtype in DTYPES if dtype != torch.float32])
@pytest.mark.parametrize("sharing", ["layer", "channel", "token"])
def test_other_dtypes_than_float32(sharing: str, dtype: torch.dtype) -> None:
    own, trailing, shape = SHARINGS[sharing]
    assert_serves(normal(*shape, dtype=dtype), *slopes(4, *own), trailing=trailing)


@runs_kernel
@pytest.mark.parametrize("sharing", ["layer", "channel", "token"])
@pytest.mark.parametrize("num_hinges", [1, 11, 31])
def test_any_number_of_hinges(num_hinges: int, sharing: str) -> None:
    own, trailing, shape = SHARINGS[sharing]
    hinges = torch.tensor(default_hinges(num_hinges))
    assert_serves(normal(*shape), *slopes(len(hinges), *own), hinges, trailing)


@runs_kernel
@pytest.mark.parametrize("count", [2, 5, 9])
def test_hinges_off_any_grid(count: int) -> None:
    hinges = torch.arange(count, dtype=torch.float32).sqrt()
    assert_serves(normal(300), *slopes(count), hinges)


@runs_kernel
@pytest.mark.parametrize("shape", [(), (1,), (7,), (2, 3, 2, 3, 4)])
def test_any_rank(shape: tuple[int, ...]) -> None:
    assert_serves(normal(*shape), A_POS, A_NEG)


@runs_kernel
def test_slopes_gradients_are_exact_to_a_millionth() -> None:
    x, upstream = normal(20_000), normal(20_000, seed=3).abs()
    _, (_, *grads) = run(x, A_POS, A_NEG, HINGES, upstream)
    _, (_, *exact) = run_reference(*(t.double() for t in (x, A_POS, A_NEG, HINGES, upstream)))
    for ours, theirs in zip(grads, exact, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-6, atol=0)


@runs_kernel
@pytest.mark.parametrize("sharing", ["layer", "channel", "token"])
def test_gradient_scale_reaches_the_slopes_alone(sharing: str) -> None:
    own, trailing, shape = SHARINGS[sharing]
    x, upstream, (a_pos, a_neg) = normal(*shape), normal(*shape, seed=3), slopes(4, *own)
    y, (dx, *plain) = run(x, a_pos, a_neg, HINGES, upstream, trailing)
    y_scaled, (dx_scaled, *scaled) = run(x, a_pos, a_neg, HINGES, upstream, trailing, 0.25)
    assert_same_bits(y_scaled, y)
    assert_same_bits(dx_scaled, dx)
    for ours, full in zip(scaled, plain, strict=True):
        assert_same_bits(ours, 0.25 * full)


@runs_kernel
def test_the_same_bits_from_run_to_run() -> None:
    own, trailing, shape = SHARINGS["channel, tiles"]
    arguments = (normal(*shape), *slopes(4, *own), HINGES, normal(*shape, seed=3), trailing)
    (y, grads), (y_again, grads_again) = run(*arguments), run(*arguments)
    for first, second in zip((y, *grads), (y_again, *grads_again), strict=True):
        assert_same_bits(first, second)


# --- the ends of the axis, zeros and hinges -------------------------------------------------------

# The interpreter computes with numpy, which warns where a GPU says nothing.
ignores_arithmetic = pytest.mark.filterwarnings(
    "ignore:(overflow|invalid value) encountered:RuntimeWarning"
)
SPECIAL = [0.0, 1.0, 2.0, 2.5, 0.5, 3.0, 1e-3, 60000.0, math.inf]


@runs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("a_pos", "a_neg"), [(A_POS, A_NEG), (SATURATING, RELU[1]), (RELU[0], SATURATING)]
)
def test_special_numbers_as_the_equation_has_them(
    a_pos: Tensor, a_neg: Tensor, dtype: torch.dtype
) -> None:
    positive = torch.tensor(SPECIAL, dtype=dtype)
    x = torch.cat([positive, -positive])
    upstream = torch.full_like(x, 0.5)
    y, (dx, *_) = run(x, a_pos, a_neg, HINGES, upstream)
    expected, (expected_dx, *_) = run_reference(x, a_pos, a_neg, HINGES, upstream)
    torch.testing.assert_close(y, expected)
    assert torch.equal(y.signbit(), expected.signbit())
    torch.testing.assert_close(dx, expected_dx)


@runs_kernel
@pytest.mark.parametrize("x", [math.inf, -math.inf])
@pytest.mark.parametrize("a", [A_POS, SATURATING], ids=["any", "saturating"])
def test_slopes_gradients_at_infinity_as_the_equation_has_them(a: Tensor, x: float) -> None:
    arguments = (torch.tensor([x, 1.5]), a, a, HINGES, torch.tensor([0.5, -1.0]))
    _, (_, *ours) = run(*arguments)
    _, (_, *theirs) = run_reference(*arguments)
    assert_same_bits(ours[0], theirs[0])
    assert_same_bits(ours[1], theirs[1])


@runs_kernel
@pytest.mark.parametrize("dtype", DTYPES)
def test_nan_passes_through_alone(dtype: torch.dtype) -> None:
    x = normal(40, dtype=dtype)
    x[::7] = math.nan
    arguments = (x, A_POS, A_NEG, HINGES, torch.ones_like(x))
    y, (dx, d_pos, d_neg) = run(*arguments)
    assert torch.equal(y.isnan(), x.isnan())
    _, (expected_dx, *_) = run_reference(*arguments)
    torch.testing.assert_close(dx, expected_dx)
    assert d_pos.isnan().all()
    assert d_neg.isnan().all()


@runs_kernel
@ignores_arithmetic
@pytest.mark.parametrize("dtype", DTYPES)
def test_relu_slopes_are_relu_to_the_last_bit(dtype: torch.dtype) -> None:
    info = torch.finfo(dtype)
    positive = torch.tensor([*SPECIAL, math.nan, info.max, info.tiny], dtype=dtype)
    x = torch.cat([positive, -positive, normal(100, dtype=dtype)])
    upstream = normal(len(x), dtype=dtype, seed=5)
    y, (dx, *_) = run(x, *RELU, HINGES, upstream)
    theirs = x.clone().requires_grad_()
    expected = torch.relu(theirs)
    assert_same_bits(y, expected.detach())
    expected.backward(upstream)
    assert theirs.grad is not None
    assert_same_bits(dx, theirs.grad)


@runs_kernel
@ignores_arithmetic
def test_no_gradient_at_zero_whatever_arrives() -> None:
    upstream = torch.tensor([math.nan, math.inf])
    _, (dx, d_pos, d_neg) = run(torch.zeros(2), A_POS, A_NEG, HINGES, upstream)
    assert dx.tolist() == [0.0, 0.0]
    assert d_pos.tolist() == d_neg.tolist() == [0.0] * 4


# --- every kind of tensor -------------------------------------------------------------------------

STRIDES: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda t: t,
    "transposed": lambda t: t.transpose(1, 3),
    "sliced": lambda t: t[1:, :, ::2],
    "expanded": lambda t: t[:, :, :, :1].expand(t.shape),
    "channels last": lambda t: t.contiguous(memory_format=torch.channels_last),
}


@runs_kernel
@pytest.mark.parametrize("of_x", STRIDES)
@pytest.mark.parametrize(
    ("share", "of_gradient"),
    [
        ("layer", "channels last"),
        ("layer", "expanded"),
        ("channel", "contiguous"),
        ("channel", "channels last"),
    ],
)
def test_strides(of_x: str, of_gradient: str, share: str) -> None:
    """The upstream gradient may lie otherwise than x: read as if it did not, it trains nonsense."""
    x = STRIDES[of_x](normal(3, 2, 4, 2))
    upstream = STRIDES[of_gradient](normal(*x.shape, seed=3))
    own, trailing = ((), 0) if share == "layer" else ((x.shape[1],), 2)
    assert_serves(x, *slopes(4, *own), trailing=trailing, upstream=upstream)


@runs_kernel
@pytest.mark.parametrize("share", ["layer", "channel"])
@pytest.mark.parametrize(
    ("shape", "layout"),
    [((2, 3, 4, 5), torch.channels_last), ((2, 3, 2, 4, 5), torch.channels_last_3d)],
)
def test_channels_last_is_kept(
    shape: tuple[int, ...], layout: torch.memory_format, share: str
) -> None:
    x = normal(*shape).contiguous(memory_format=layout)
    own, trailing = ((), 0) if share == "layer" else ((3,), len(shape) - 2)
    y, (dx, *_) = run(x, *slopes(4, *own), HINGES, torch.ones(shape), trailing)
    assert y.is_contiguous(memory_format=layout)
    assert dx.is_contiguous(memory_format=layout)


@runs_kernel
@pytest.mark.parametrize("own", [(), (3,)])
def test_empty(own: tuple[int, ...]) -> None:
    x = torch.empty(0, 3)
    y, (dx, d_pos, d_neg) = run(x, *slopes(4, *own), HINGES, x)
    assert y.shape == dx.shape == x.shape
    for d in (d_pos, d_neg):
        assert torch.equal(d, torch.zeros(4, *own))


@runs_kernel
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_slopes_and_hinges_in_other_dtypes_than_x(dtype: torch.dtype) -> None:
    a_pos, a_neg, hinges = (t.to(dtype) for t in (A_POS, A_NEG, HINGES))
    assert_serves(normal(50), a_pos, a_neg, hinges)


@runs_kernel
def test_slopes_with_strides_of_their_own() -> None:
    a_pos, a_neg = (a.t() for a in slopes(6, 4))
    assert_serves(normal(3, 5, 6), a_pos, a_neg)


# --- autograd -------------------------------------------------------------------------------------


@runs_kernel
@pytest.mark.parametrize("asked", [(1, 0, 0), (0, 1, 0), (0, 1, 1)])
def test_only_the_gradients_asked_for(asked: tuple[int, ...]) -> None:
    inputs = [normal(50), A_POS.clone(), A_NEG.clone()]
    _, full = run(*inputs, HINGES, torch.ones(50))
    some = [t.requires_grad_(bool(ask)) for t, ask in zip(on_device(*inputs), asked, strict=True)]
    OPERATORS.splash(*some, *on_device(HINGES)).sum().backward()
    for ours, theirs, ask in zip(some, full, asked, strict=True):
        assert (ours.grad is not None) == bool(ask)
        if ours.grad is not None:
            assert_same_bits(ours.grad.cpu(), theirs)


@runs_kernel
def test_saves_x_the_slopes_and_the_hinges_and_knows_when_they_change() -> None:
    inputs = on_device(normal(10), A_POS, A_NEG, HINGES)
    inputs[1].requires_grad_()
    saved: list[int] = []

    def note(t: Tensor) -> Tensor:
        saved.append(t.data_ptr())
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        OPERATORS.splash(*inputs)
    assert saved == [t.data_ptr() for t in inputs]

    y = OPERATORS.splash(*inputs)
    inputs[0].add_(1.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@runs_kernel
@pytest.mark.parametrize("check", [torch.autograd.gradcheck, torch.autograd.gradgradcheck])
def test_first_and_second_derivatives(check: Callable[..., bool]) -> None:
    splash = OPERATORS.splash
    # A finite difference must not straddle a hinge.
    x = torch.tensor([[-3.2, 0.4, 1.5], [2.2, -0.7, -1.3]], dtype=torch.float64)
    a_pos, a_neg = slopes(4, 3, dtype=torch.float64)
    hinges = HINGES.double().to(DEVICE)
    inputs = [t.requires_grad_() for t in on_device(x, a_pos, a_neg)]
    assert check(lambda *t: splash(*t, hinges), inputs, fast_mode=True)


# --- torch operators ------------------------------------------------------------------------------


@runs_kernel
def test_registered_as_an_operator() -> None:
    own, trailing, shape = SHARINGS["channel"]
    inputs = [t.requires_grad_() for t in on_device(normal(*shape), *slopes(4, *own))]
    operator = torch.ops.splash_units_triton.splash.default
    torch.library.opcheck(operator, (*inputs, *on_device(HINGES), trailing, 0.5))


@runs_kernel
def test_strides_are_foretold() -> None:
    """What the fake rule says of a result must hold, or a compiled graph reads nonsense."""
    x = normal(3, 4, 5, 6).permute(0, 2, 3, 1)[:, :, ::2]
    operator = torch.ops.splash_units_triton.splash.default
    for own in ((), (4,)):
        inputs = on_device(x, *slopes(4, *own), HINGES)
        torch.library.opcheck(operator, (*inputs, 0, 1.0), test_utils="test_faketensor")


@runs_kernel
def test_stands_whole_in_a_compiled_graph() -> None:
    inputs = [t.requires_grad_() for t in on_device(normal(2, 6, 3), *slopes(4, 6))]
    hinges = on_device(HINGES)

    def twice(x: Tensor, a_pos: Tensor, a_neg: Tensor) -> Tensor:
        return 2 * OPERATORS.splash(x, a_pos, a_neg, *hinges, 1, 0.5)

    results = []
    for function in (twice, torch.compile(twice, backend="aot_eager", fullgraph=True)):
        y = function(*inputs)
        results.append((y, *torch.autograd.grad(y.square().sum(), inputs)))
    for eager, compiled in zip(*results, strict=True):
        assert_same_bits(compiled.cpu(), eager.cpu())


# --- what it does not serve -----------------------------------------------------------------------


@runs_kernel
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"x": torch.ones(3, 4, dtype=torch.int64)}, TypeError, "got torch.int64"),
        ({"x": torch.ones(3, 4, device="meta")}, ValueError, "CUDA device, got one on meta"),
        ({"a_neg": torch.zeros(4, device="meta")}, ValueError, "one device, got meta"),
        ({"a_pos": torch.zeros(3)}, ValueError, r"shapes \(3,\), \(4,\) and \(4,\)"),
        ({"hinges": torch.zeros(())}, ValueError, r"and \(\)"),
        ({"a_pos": torch.zeros(4, 5), "a_neg": torch.zeros(4, 5)}, ValueError, "whole dimensions"),
        (
            dict.fromkeys(("a_pos", "a_neg", "hinges"), torch.zeros(65)),
            ValueError,
            "1 to 64 hinges",
        ),
    ],
)
def test_says_what_it_does_not_serve(
    changed: dict[str, Tensor], error: type[Exception], message: str
) -> None:
    given = {"x": normal(3, 4), "a_pos": A_POS, "a_neg": A_NEG, "hinges": HINGES} | changed
    with pytest.raises(error, match=message):
        OPERATORS.splash(*(t if t.is_meta else t.to(DEVICE) for t in given.values()))


@runs_kernel
def test_slopes_of_dimensions_apart_are_not_served() -> None:
    x, (a_pos, a_neg) = normal(3, 4, 5), slopes(4, 3, 1, 5)
    with pytest.raises(ValueError, match="no run of whole dimensions"):
        OPERATORS.splash(*on_device(x, a_pos, a_neg, HINGES))
