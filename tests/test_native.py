"""The CPU kernel against the plain equation: outputs and every gradient, on awkward input."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from splash_units import BatchNormSplash, Splash, splash
from splash_units.kernels import native, reference

OPERATORS = native.load()
if OPERATORS is None:
    pytest.skip(f"no CPU kernel here: {native.why_not()}", allow_module_level=True)

EPS = {
    torch.float64: 2.0**-52,
    torch.float32: 2.0**-23,
    torch.bfloat16: 2.0**-7,
    torch.float16: 2.0**-10,
}
DTYPES = tuple(EPS)
HINGES = {
    "one": [0.0],
    "two": [0.0, 1.0],
    "default": [0.0, 1.0, 2.0, 2.5],
    "whole": [0.0, 1.0, 3.0],
    "whole but for the last": [0.0, 2.0, 2.3],
    "whole but for the first": [0.0, 0.7, 1.0],
    "whole but for one that comes too early": [0.0, 0.7, 1.0, 2.0],
    "whole but for one that comes too late": [0.0, 1.0, 3.0, 3.5],
    "five on a grid": [0.0, 0.5, 1.0, 2.0, 2.5],
    "six on a grid": [0.0, 0.5, 1.0, 1.5, 2.0, 2.5],
    "off any grid": [0.0, 0.3, 0.7, 1.9, 2.01],
    "six off any grid": [0.0, 0.3, 0.7, 1.9, 2.01, 3.3],
    "many": [2.5 * s / 15 for s in range(16)],
    "tenths": [0.1 * s for s in range(12)],
    "among fifteen steps": [0.0, 0.25, 0.5, 1.0, 1.75, 2.0, 3.0, 3.75],
    "quarters": [0.0, 0.25, 1.0, 3.25],
    "beyond fifteen steps": [0.0, 0.25, 0.5, 1.0, 1.75, 2.0, 3.0, 4.0],
    "many off any grid": [0.17 * s + 0.01 * s * s for s in range(13)],
    "more than registers hold": [0.07 * s for s in range(33)],
}


def slopes(count: int, *own: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(count, *own, generator=generator).requires_grad_() for _ in range(2))


def compare(
    x: Tensor,
    a_pos: Tensor,
    a_neg: Tensor,
    hinges: Tensor,
    trailing: int = 0,
    grad: Tensor | None = None,
) -> None:
    """Output and gradients of the kernel, against those of the equation in float64."""
    x = x.detach().requires_grad_()
    y = OPERATORS.splash(x, a_pos, a_neg, hinges, trailing, 1.0)
    assert y.dtype == x.dtype
    assert y.shape == x.shape
    grad = (
        torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x.dtype)
        if grad is None
        else grad
    )
    ours = torch.autograd.grad(y, (x, a_pos, a_neg), grad)

    exact = x.detach().double().requires_grad_()
    theirs_y = reference.scaled_splash(exact, a_pos, a_neg, hinges.double(), trailing, 1.0)
    theirs = torch.autograd.grad(theirs_y, (exact, a_pos, a_neg), grad.double())

    eps, largest = (
        EPS[x.dtype],
        float(exact.detach()[exact.isfinite()].abs().max()) if x.numel() else 0.0,
    )
    steepest = sum(float(a.detach().abs().sum(0).max()) for a in (a_pos, a_neg))
    # Every term of h is at most |a|·|x|; a few roundings of the sum, and one of the result.
    assert_close(y, theirs_y, 4 * eps * steepest * max(largest, 1.0))
    assert_close(
        ours[0],
        theirs[0],
        4 * eps * steepest * float(grad.double().abs().max() if grad.numel() else 0),
    )
    for mine, other in zip(ours[1:], theirs[1:], strict=True):
        assert mine.dtype == a_pos.dtype
        # Relative to the sum of what is added, whatever its signs.
        assert_close(mine, other, 1e-6 * float((grad.double() * exact.detach()).abs().sum()))


def assert_close(ours: Tensor, theirs: Tensor, tolerance: float) -> None:
    ours, theirs = ours.detach().double(), theirs.detach().double()
    assert torch.equal(ours.isnan(), theirs.isnan())
    infinite = theirs.isinf()
    assert torch.equal(ours[infinite], theirs[infinite])
    rest = theirs.isfinite()
    worst = float((ours[rest] - theirs[rest]).abs().max()) if rest.any() else 0.0
    assert worst <= tolerance, f"off by {worst:.3g}, allowed are {tolerance:.3g}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("where", HINGES)
def test_every_dtype_and_way_to_find_a_segment(dtype: torch.dtype, where: str) -> None:
    hinges = torch.tensor(HINGES[where])
    x = 2 * torch.randn(3, 517, generator=torch.Generator().manual_seed(0))
    compare(x.to(dtype), *slopes(len(hinges)), hinges)


@pytest.mark.parametrize("where", [where for where in HINGES if where != "one"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_at_the_hinges_and_where_numbers_end(dtype: torch.dtype, where: str) -> None:
    hinges = torch.tensor(HINGES[where])
    special = [0.0, -0.0, 1e-40, -1e-40, math.nan, math.inf, -math.inf, 1e30, -1e30, 1e-30]
    x = torch.cat([hinges, -hinges, torch.tensor(special), torch.linspace(-4, 4, 2001)])
    grad = torch.ones(len(x), dtype=dtype)
    count = len(hinges)
    x = x.to(dtype).requires_grad_()
    a_pos, a_neg = slopes(count)
    finite = x.detach().isfinite() & (x.detach().abs() < 1e9)
    compare(x[finite], a_pos, a_neg, hinges, grad=grad[finite])
    # NaN and infinities: value and slope (a slope's own gradient is infinite or NaN there).
    y, exact = (
        OPERATORS.splash(x, a_pos, a_neg, hinges, 0, 1.0),
        reference.splash(x, a_pos, a_neg, hinges),
    )
    steepest = float((a_pos.abs() + a_neg.abs()).sum().detach())
    tolerance = 8 * EPS[dtype] * 1e30 * steepest
    assert_close(y, exact, tolerance)
    assert torch.equal(torch.signbit(y[x == 0]), torch.signbit(x[x == 0]))
    ours, theirs = (torch.autograd.grad(h, x, grad)[0] for h in (y, exact))
    assert_close(ours, theirs, 8 * EPS[dtype] * steepest)
    slope_grads = torch.autograd.grad(
        OPERATORS.splash(x, a_pos, a_neg, hinges, 0, 1.0), (a_pos, a_neg), grad
    )
    assert all(bool(g.isnan().all()) for g in slope_grads), (
        "a NaN in x must not vanish from the slopes"
    )


@pytest.mark.parametrize("where", ["default", "six on a grid", "off any grid", "many"])
@pytest.mark.parametrize("end", [0.0, 0.5])
def test_infinity_gives_the_limit(where: str, end: float) -> None:
    hinges = torch.tensor(HINGES[where])
    a = torch.zeros(len(hinges))
    a[0], a[-1] = 1.0, end - 1.0  # beyond the last hinge the slope is `end`
    x = torch.tensor([math.inf, -math.inf] * 9)
    flat = float(hinges[-1]) if end == 0 else math.inf
    assert OPERATORS.splash(x, a, -a, hinges, 0, 1.0).tolist() == [flat, -flat] * 9


@pytest.mark.parametrize("where", ["default", "whole", "six on a grid", "off any grid", "many"])
def test_infinity_gives_the_limit_of_slopes_that_cancel_in_float(where: str) -> None:
    hinges = torch.tensor(HINGES[where])
    a, b, c = torch.tensor([0.1, 0.2, -0.3])
    assert a + b + c == 0 != a.double() + b.double() + c.double()
    slopes = torch.cat((torch.stack((a, b, c)), torch.zeros(len(hinges) - 3)))
    flat = -(slopes * hinges).sum()
    found = OPERATORS.splash(
        torch.tensor([math.inf, -math.inf] * 9), slopes, slopes, hinges, 0, 1.0
    )
    torch.testing.assert_close(found, flat.expand(18))


@pytest.mark.parametrize(
    ("count", "farthest"),
    [(2, 3e37), (3, 6e37), (6, 1e38), (4, 1e-38), (6, 1e-38), (16, 1e-38), (2, 3e-44), (5, 3e-44)],
)
def test_hinges_whose_steps_are_no_ordinary_floats(count: int, farthest: float) -> None:
    hinges = torch.arange(count) * (torch.tensor(farthest) / (count - 1))
    a_pos, a_neg = torch.full((2, count), -2.0 / (count - 1))  # in the end they fall
    a_pos[0], a_neg[0] = 1.0, 0.5
    x = torch.cat((torch.linspace(-1.2, 1.2, 35) * farthest, torch.tensor([math.inf, -math.inf])))
    exact = reference.splash(x.double(), a_pos.double(), a_neg.double(), hinges.double())
    found = splash(x, a_pos, a_neg, hinges).double()
    atol = 1e-6 * farthest + 1e-44  # the least float
    torch.testing.assert_close(found, exact, rtol=0, atol=atol)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("flat_left", [(), (0,), (0, 2), (0, 1, 2)], ids=str)
@pytest.mark.parametrize("flat_right", [(), (1,), (0, 1, 2)], ids=str)
def test_channels_that_are_flat_at_an_end_or_not(
    dtype: torch.dtype, flat_left: tuple[int, ...], flat_right: tuple[int, ...]
) -> None:
    hinges = torch.tensor(HINGES["default"])
    a_pos, a_neg = (torch.full((4, 3), 0.25) for _ in range(2))
    a_pos[-1, flat_right] = a_neg[-1, flat_left] = -0.75
    ends = torch.tensor([math.inf, -math.inf, math.nan, 5.0, -5.0], dtype=dtype)
    x = ends.repeat(7).expand(2, 3, 35).contiguous()
    y = OPERATORS.splash(x, a_pos, a_neg, hinges, 1, 1.0)
    for channel in range(3):
        right = 1.125 if channel in flat_right else math.inf
        left = 1.125 if channel in flat_left else math.inf
        assert y[0, channel, :2].tolist() == [right, left]
    assert bool(y[:, :, 2::5].isnan().all())
    rest = [3, 4]
    expected = reference.splash(x, a_pos[:, :, None], a_neg[:, :, None], hinges)
    assert torch.equal(y[..., rest], expected[..., rest])


@pytest.mark.parametrize("where", [where for where in HINGES if where != "one"])
def test_the_last_number_before_a_hinge_and_the_first_behind(where: str) -> None:
    hinges = torch.tensor(HINGES[where])
    a = torch.ones(len(hinges))
    for side in (1.0, -1.0):
        ends = (torch.nextafter(hinges, torch.tensor(end)) for end in (math.inf, 0.0))
        behind, before = (side * b[1:].repeat(5) for b in ends)
        for x, below in ((behind, 2), (side * hinges[1:].repeat(5), 1), (before, 1)):
            dx = OPERATORS.splash_backward(torch.ones(len(x)), x, a, a, hinges, 0, 1.0)[0]
            expected = side * (torch.arange(len(hinges) - 1) + below).repeat(5)
            assert torch.equal(dx, expected.float())


@pytest.mark.parametrize("where", HINGES)
@pytest.mark.parametrize("channels", [0, 3, 16])
@pytest.mark.parametrize("zero", [0.0, -0.0])
def test_each_zero_keeps_its_sign_behind_falling_slopes(
    where: str, channels: int, zero: float
) -> None:
    hinges = torch.tensor(HINGES[where])
    a = torch.full((len(hinges), channels) if channels else (len(hinges),), -1.0)
    x = torch.full((9, channels or 5), zero)
    y = OPERATORS.splash(x, a, a, hinges, 0, 1.0)
    assert torch.equal(y, x)
    assert torch.equal(y.signbit(), x.signbit())


def test_a_gradient_of_another_shape_is_refused() -> None:
    hinges = torch.tensor(HINGES["default"])
    a, x = torch.ones(4), torch.randn(3, 16)
    with pytest.raises(ValueError, match=r"gradient of shape \[2, 16\] for x of shape \[3, 16\]"):
        OPERATORS.splash_backward(torch.randn(2, 16), x, a, a, hinges, 0, 1.0)


@pytest.mark.parametrize("where", ["default", "six on a grid", "many"])
@pytest.mark.parametrize("first", [0.7, 0.0, -0.7])
def test_every_magnitude_and_both_zeros(first: float, where: str) -> None:
    hinges = torch.tensor(HINGES[where])
    a_pos, a_neg = (a.detach() for a in slopes(len(hinges)))
    a_pos[0] = first
    powers = torch.exp2(torch.arange(-149.0, 120.0))  # partial sums stay finite
    x = torch.cat([powers, -powers, 1.5 * powers, -1.5 * powers, torch.tensor([0.0, -0.0])])
    y = OPERATORS.splash(x, a_pos, a_neg, hinges, 0, 1.0)
    exact = reference.splash(x.double(), a_pos.double(), a_neg.double(), hinges.double())
    size = reference.splash(x.double(), a_pos.double().abs(), a_neg.double().abs(), hinges.double())
    assert torch.all((y - exact).abs() <= 4 * EPS[torch.float32] * size + 2.0**-148)
    assert y[-2:].signbit().tolist() == [False, True]


@pytest.mark.parametrize("where", ["six on a grid", "many"])
def test_slopes_so_steep_that_intercepts_would_overflow(where: str) -> None:
    hinges = torch.tensor(HINGES[where])
    a = torch.zeros(len(hinges))
    a[-1] = 3e38
    x = torch.linspace(-3.0, 3.0, 77)
    y = OPERATORS.splash(x, a, -a, hinges, 0, 1.0)
    torch.testing.assert_close(y, reference.splash(x, a, -a, hinges))


@pytest.mark.parametrize("where", ["among fifteen steps", "tenths", "many"])
@pytest.mark.parametrize("size", [1, 15, 33, 1024, 1040, 40_000])
@pytest.mark.parametrize("spread", [0.01, 1.0, 30.0])
def test_numbers_of_which_none_some_or_nearly_all_lie_far_out(
    spread: float, size: int, where: str
) -> None:
    hinges = torch.tensor(HINGES[where])
    x = spread * torch.randn(size, generator=torch.Generator().manual_seed(2))
    compare(x, *slopes(len(hinges)), hinges)


@pytest.mark.parametrize("where", ["default", "six on a grid", "many"])
def test_hinges_that_no_input_reaches_learn_nothing(where: str) -> None:
    hinges, (a_pos, a_neg) = torch.tensor(HINGES[where]), slopes(len(HINGES[where]))
    x = torch.rand(5000, generator=torch.Generator().manual_seed(3)) * 3 - 1.5
    y = OPERATORS.splash(x, a_pos, a_neg, hinges, 0, 1.0)
    unreached = hinges >= 1.5
    for gradient in torch.autograd.grad(y, (a_pos, a_neg), x.cos()):
        assert (gradient[unreached] == 0).all()
        assert (gradient[~unreached] != 0).all()


@pytest.mark.parametrize("where", ["default", "six on a grid", "six off any grid", "many"])
def test_sums_that_only_a_double_holds(where: str) -> None:
    """Terms are floats, and so is the scaled gradient; what they add up to on the way is not."""
    hinges, (a_pos, a_neg) = torch.tensor(HINGES[where]), slopes(len(HINGES[where]))
    x = torch.full((2048,), 4e36)
    grad, mixed = torch.ones(2048), torch.ones(2048)
    mixed[1024:] = -1
    unit = (a_pos.detach(), a_neg.detach(), hinges)
    _, summed, _ = OPERATORS.splash_backward(grad, x, *unit, 0, 1e-4)
    torch.testing.assert_close(summed, torch.full_like(summed, 2048 * 4e36 * 1e-4))
    _, cancelled, _ = OPERATORS.splash_backward(mixed, x, *unit, 0, 1.0)
    assert (cancelled == 0).all()
    # So few that a strip's sums are floats, but not those of numbers that many strips set aside.
    sparse = torch.full((32768,), 0.1)
    sparse[::16] = 4e36
    _, summed, _ = OPERATORS.splash_backward(torch.ones(32768), sparse, *unit, 0, 1e-4)
    torch.testing.assert_close(summed, torch.full_like(summed, 2048 * 4e36 * 1e-4))


def test_one_value_everywhere_is_summed_up_exactly() -> None:
    hinges, a = torch.tensor(HINGES["many"]), torch.ones(16)
    for value in (0.1, 1.3, -2.4, 7.7):
        x, grad = torch.full((1_000_000,), value), torch.full((1_000_000,), 0.3)
        sums = OPERATORS.splash_backward(grad, x, a, a, hinges, 0, 1.0)[1 if value > 0 else 2]
        exact = 1e6 * grad[0].double() * (abs(x[0].double()) - hinges.double()).clamp(min=0)
        torch.testing.assert_close(sums.double(), exact, rtol=2e-6, atol=0)


def test_relu_to_the_last_bit_with_its_gradient() -> None:
    x = torch.randn(4099)
    x[::97], x[5::101], x[7::103] = 0.0, -0.0, math.inf
    x[11::107], x[13::109] = -math.inf, math.nan
    grad = torch.randn(4099)
    results = []
    for f in (Splash(), torch.relu):
        z = x.clone().requires_grad_()
        y = f(z)
        results.append(
            (y.detach().view(torch.int32), torch.autograd.grad(y, z, grad)[0].view(torch.int32))
        )
    same_y = (results[0][0] == results[1][0]) | x.isnan()
    assert same_y.all()
    assert torch.equal(results[0][1], results[1][1])


LAYOUTS: dict[str, Callable[[], Tensor]] = {
    "scalar": lambda: torch.tensor(1.3),
    "vector": lambda: torch.randn(13),
    "nothing": lambda: torch.randn(0, 4),
    "matrix": lambda: torch.randn(9, 31),
    "transposed": lambda: torch.randn(31, 9).t(),
    "every second": lambda: torch.randn(16, 40)[:, ::2],
    "unaligned": lambda: torch.randn(1001)[1:].view(8, 125),
    "expanded": lambda: torch.randn(1, 7).expand(5, 7),
    "images": lambda: torch.randn(3, 5, 6, 7),
    "channels last": lambda: torch.randn(3, 5, 6, 7).to(memory_format=torch.channels_last),
    "permuted": lambda: torch.randn(3, 5, 6, 7).permute(1, 3, 0, 2),
    "volumes": lambda: torch.randn(2, 3, 4, 5, 6),
    "volumes, channels last": lambda: torch.randn(2, 3, 4, 5, 6).to(
        memory_format=torch.channels_last_3d
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_any_layout(layout: str) -> None:
    torch.manual_seed(0)
    x = LAYOUTS[layout]()
    hinges = torch.tensor(HINGES["default"])
    compare(x, *slopes(4), hinges)
    y = OPERATORS.splash(x, *slopes(4), hinges, 0, 1.0)
    if layout not in ("every second", "expanded"):  # the others are dense, in whatever order
        assert y.stride() == x.stride()


@pytest.mark.parametrize(
    "layout", ["images", "channels last", "permuted", "matrix", "transposed", "volumes"]
)
@pytest.mark.parametrize("where", ["default", "six on a grid", "off any grid", "many"])
def test_slopes_of_each_channel(layout: str, where: str) -> None:
    torch.manual_seed(0)
    x, hinges = LAYOUTS[layout](), torch.tensor(HINGES[where])
    compare(x, *slopes(len(hinges), x.shape[1]), hinges, trailing=x.dim() - 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("where", ["default", "five on a grid", "many"])
def test_slopes_of_each_channel_in_every_dtype(dtype: torch.dtype, where: str) -> None:
    torch.manual_seed(0)
    hinges = torch.tensor(HINGES[where])
    compare(torch.randn(7, 50).to(dtype), *slopes(len(hinges), 50), hinges)


def test_what_is_rare_among_slopes_of_each_channel() -> None:
    """In lines that go in twos, and in one that is left."""
    torch.manual_seed(0)
    hinges = torch.tensor(HINGES["default"])
    a_pos, a_neg = (a.detach() for a in slopes(4, 40))
    x = torch.randn(13, 40)
    x[1, 3], x[4, 39], x[7, 20], x[12, 0] = -0.0, math.inf, math.nan, -math.inf
    y = OPERATORS.splash(x, a_pos, a_neg, hinges, 0, 1.0)
    torch.testing.assert_close(y, reference.splash(x, a_pos, a_neg, hinges), equal_nan=True)
    assert y[1, 3].signbit()


@pytest.mark.parametrize("channels", [1, 2, 3, 6, 7, 8, 10, 16, 33, 100, 257])
def test_channel_counts_that_fill_no_vector(channels: int) -> None:
    torch.manual_seed(0)
    hinges = torch.tensor(HINGES["default"])
    compare(torch.randn(11, channels), *slopes(4, channels), hinges)
    tokens = torch.randn(3, 7, channels)
    compare(tokens, *slopes(4, channels), hinges)


def test_slopes_of_each_unit() -> None:
    torch.manual_seed(0)
    hinges = torch.tensor(HINGES["default"])
    x = torch.randn(5, 3, 4, 6)
    compare(x, *slopes(4, 3, 4, 6), hinges)
    compare(x.to(memory_format=torch.channels_last), *slopes(4, 3, 4, 6), hinges)
    compare(torch.randn(5, 3, 1, 6), *slopes(4, 3, 1, 6), hinges)


def test_public_function_takes_any_broadcast() -> None:
    """Slopes of dimensions with another between them: the equation serves."""
    x, hinges = torch.randn(2, 3, 4, 5), torch.tensor(HINGES["default"])
    a_pos, a_neg = (a.detach() for a in slopes(4, 3, 1, 5))
    torch.testing.assert_close(
        splash(x, a_pos, a_neg, hinges), reference.splash(x, a_pos, a_neg, hinges)
    )


@pytest.mark.parametrize(
    "kind", ["contiguous", "channels last", "expanded", "sliced", "transposed"]
)
def test_gradients_arrive_in_any_layout(kind: str) -> None:
    torch.manual_seed(0)
    x, hinges = torch.randn(4, 6, 5, 5), torch.tensor(HINGES["default"])
    grad = {
        "contiguous": torch.randn(4, 6, 5, 5),
        "channels last": torch.randn(4, 6, 5, 5).to(memory_format=torch.channels_last),
        "expanded": torch.randn(4, 6, 1, 1).expand(4, 6, 5, 5),
        "sliced": torch.randn(4, 6, 5, 10)[..., ::2],
        "transposed": torch.randn(4, 6, 5, 5).transpose(2, 3),
    }[kind]
    for layout in (torch.contiguous_format, torch.channels_last):
        compare(x.to(memory_format=layout), *slopes(4), hinges, grad=grad)
        compare(x.to(memory_format=layout), *slopes(4, 6), hinges, trailing=2, grad=grad)


def test_only_what_is_asked_for_gets_a_gradient() -> None:
    hinges, (a_pos, a_neg) = torch.tensor(HINGES["default"]), slopes(4)
    x = torch.randn(3, 4)
    splash(x, a_pos, a_neg, hinges).sum().backward()
    assert a_pos.grad is not None
    z = x.clone().requires_grad_()
    splash(z, a_pos.detach(), a_neg.detach(), hinges).sum().backward()
    assert z.grad is not None
    assert not splash(x, a_pos.detach(), a_neg.detach(), hinges).requires_grad


def test_a_change_of_x_after_the_forward_is_noticed() -> None:
    unit, x = Splash(), torch.randn(5, requires_grad=True)
    z = x * 1
    y = unit(z)
    z.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


def saved_storages(run: Callable[[], Tensor]) -> set[int]:
    saved: set[int] = set()

    def note(t: Tensor) -> Tensor:
        saved.add(t.untyped_storage().data_ptr())
        return t

    with torch.autograd.graph.saved_tensors_hooks(note, lambda t: t):
        kept = run()
    del kept
    return saved


def test_nothing_is_saved_beside_x_and_the_unit() -> None:
    x = torch.randn(64, 8, 9, 9, requires_grad=True)
    unit = Splash()
    allowed = {t.untyped_storage().data_ptr() for t in (x, unit.a_pos, unit.a_neg, unit.hinges)}
    assert saved_storages(lambda: unit(x)) <= allowed
    fused = BatchNormSplash(8)
    extra = saved_storages(lambda: fused(x)) - {
        t.untyped_storage().data_ptr() for t in (x, *fused.parameters(), fused.hinges)
    }
    assert len(extra) == 1, "mean and 1/std of each channel, as batch norm itself saves"


def ten_million(seed: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(10_000_000, generator=generator) for _ in range(2))


def exact_sums(x: Tensor, grad: Tensor, hinges: Tensor) -> tuple[Tensor, Tensor]:
    """Of the terms of each hinge, and of their squares: those on the right, then those on the left.

    Terms of both signs may cancel to next to nothing, by chance; by and large they leave the root
    of their squares' sum.
    """
    wide, g = x.double(), grad.double()
    terms = [g * (z - b).clamp(min=0) for z in (wide, -wide) for b in hinges.tolist()]
    return torch.stack([t.sum() for t in terms]), torch.stack([t.square().sum() for t in terms])


@pytest.mark.parametrize("seed", [1, 3, 8])  # whose sums, in float, had errors of 2e-6 to 2e-4
@pytest.mark.parametrize("where", ["default", "six on a grid", "six off any grid", "many"])
def test_slope_gradients_of_ten_million_elements(where: str, seed: int) -> None:
    """Exact to 1e-6, though terms cancel."""
    (x, grad), hinges = ten_million(seed), torch.tensor(HINGES[where])
    a_pos, a_neg = slopes(len(hinges))
    arguments = (grad, x, a_pos.detach(), a_neg.detach(), hinges, 0, 1.0)
    _, *first = OPERATORS.splash_backward(*arguments)
    expected, _ = exact_sums(x, grad, hinges)
    torch.testing.assert_close(torch.cat(first).double(), expected, rtol=1e-6, atol=0)
    again = OPERATORS.splash_backward(*arguments)[1:]
    assert all(torch.equal(p, q) for p, q in zip(first, again, strict=True))


@pytest.mark.parametrize("signs", ["one", "both"])
@pytest.mark.parametrize("where", ["default", "many"])
def test_slope_gradients_of_four_million_elements(where: str, signs: str) -> None:
    """The most that are summed up in float first."""
    (x, grad), hinges = (t[: 2**22] for t in ten_million(0)), torch.tensor(HINGES[where])
    if signs == "one":
        grad.abs_()
    a_pos, a_neg = slopes(len(hinges))
    _, *found = OPERATORS.splash_backward(grad, x, a_pos.detach(), a_neg.detach(), hinges, 0, 1.0)
    expected, squares = exact_sums(x, grad, hinges)
    scale = expected if signs == "one" else squares.sqrt()
    assert bool(((torch.cat(found).double() - expected).abs() <= 1e-6 * scale).all())


@pytest.mark.parametrize("num_hinges", [7, 31])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_what_is_not_finite_among_millions(value: float, num_hinges: int) -> None:
    """It does what it does among thousands."""
    unit, x = Splash(num_hinges, init="random"), torch.ones(4_200_001)
    x[4_199_000] = value
    (dx, *learned), (some_dx, *some_learned) = (
        torch.autograd.grad(unit(t).sum(), (t, unit.a_pos, unit.a_neg))
        for t in (x.requires_grad_(), x[4_190_000:].detach().requires_grad_())
    )
    torch.testing.assert_close(dx[4_190_000:], some_dx, equal_nan=True)
    for of_all, of_some in zip(learned, some_learned, strict=True):
        torch.testing.assert_close(of_all.isfinite(), of_some.isfinite())


@pytest.mark.parametrize("value", [1.0, math.inf, math.nan])
@pytest.mark.parametrize("share", ["layer", "channel"])
def test_a_gradient_among_millions(share: str, value: float) -> None:
    """In rows that end with less than a vector; one that is not finite stays on its side."""
    torch.manual_seed(0)
    x, grad = torch.randn(1, 3, 1_400_003), torch.randn(1, 3, 1_400_003)
    x[0, 1, 700], grad[0, 1, 700] = -1.5, value
    unit = Splash(share=share, features=3 if share == "channel" else None, grad_scale=1.0)
    leaves = (x.requires_grad_(), unit.a_pos, unit.a_neg)
    exact = [t.detach().double().requires_grad_() for t in leaves]
    own = exact[1:] if share == "layer" else [a.unsqueeze(-1) for a in exact[1:]]
    h = reference.splash(exact[0], *own, unit.hinges.double())
    dx, pos, neg = torch.autograd.grad(unit(x), leaves, grad)
    wanted_dx, *wanted = torch.autograd.grad(h, exact, grad.nan_to_num(0, 0).double())
    others = torch.arange(3 * 1_400_003).reshape(x.shape) != 1_400_003 + 700
    torch.testing.assert_close(dx[others].double(), wanted_dx[others], rtol=1e-6, atol=0)
    reached = (..., 1) if share == "channel" else ...
    if not math.isfinite(value):
        assert not neg[reached].isfinite().any()
        neg[reached] = wanted[1][reached] = 0
    found = torch.stack([pos, neg]).double()
    torch.testing.assert_close(found, torch.stack(wanted), rtol=1e-6, atol=0)


@pytest.mark.parametrize("where", ["default", "many"])
@pytest.mark.parametrize("own", [(), (8,)])
def test_the_same_bits_for_any_number_of_threads(own: tuple[int, ...], where: str) -> None:
    x, grad = torch.randn(64, 8, 31, 31), torch.randn(64, 8, 31, 31)
    hinges, threads = torch.tensor(HINGES[where]), torch.get_num_threads()
    a_pos, a_neg = (a.detach() for a in slopes(len(hinges), *own))
    results = []
    try:
        for count in (1, 2, 3, 16):
            torch.set_num_threads(count)
            unit, trailing = (a_pos, a_neg, hinges), 2 if own else 0
            y = OPERATORS.splash(x, *unit, trailing, 1.0)
            results.append((y, *OPERATORS.splash_backward(grad, x, *unit, trailing, 1.0)))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(p, q) for p, q in zip(results[0], other, strict=True))


@pytest.mark.parametrize("own", [(), (3,), (3, 4)])
def test_operators_keep_their_promises_to_torch(own: tuple[int, ...]) -> None:
    hinges, (a_pos, a_neg) = torch.tensor(HINGES["default"]), slopes(4, *own)
    x = torch.randn(2, 3, 4, requires_grad=True)
    arguments = (x, a_pos, a_neg, hinges, 1 if own == (3,) else 0, 0.5)
    torch.library.opcheck(torch.ops.splash_units.splash.default, arguments)
    backward = (torch.randn(2, 3, 4), *(t.detach() for t in arguments[:4]), *arguments[4:])
    torch.library.opcheck(torch.ops.splash_units.splash_backward.default, backward)
