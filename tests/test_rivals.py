"""Each rival against its formula in plain numbers: values, limits, gradients and start."""

import copy
import math

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

from splash_units.rivals import APL, Maxout, PReLU, SReLU, Swish, apl, srelu

INF, NAN = math.inf, math.nan
POINTS = [-7.0, -2.5, -2.0, -1.3, -1.0, -0.4, 0.0, 0.3, 1.0, 1.7, 2.0, 2.2, 9.0]
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def set_(parameter: Tensor | nn.Module, values: object) -> None:
    """Overwrite a parameter by numbers that broadcast to its shape."""
    assert isinstance(parameter, Tensor)
    with torch.no_grad():
        parameter.copy_(torch.as_tensor(values, dtype=parameter.dtype))


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


SHARED = {"layer": None, "channel": 3, "unit": (3, 2, 2)}  # the features each needs


def every_rival(grad_scale: float | str = "auto") -> dict[str, nn.Module]:
    """Each unit in each way it can be set up, for `images`, moved away from its start."""
    units = {
        "prelu": PReLU(3),
        "maxout": Maxout(3, features=3),
        "swish": Swish(0.7),
        "srelu": SReLU(3),
    }
    for share, features in SHARED.items():
        options = {"share": share, "features": features, "grad_scale": grad_scale}
        units[f"swish-{share}"] = Swish(0.7, learned=True, **options)
        units[f"apl-{share}"] = APL(**options)
        units[f"apl-learned-{share}"] = APL(3, learned=True, **options)
    generator = torch.Generator().manual_seed(1)
    for unit in units.values():
        for parameter in unit.parameters():
            set_(parameter, parameter + 0.3 * torch.randn(parameter.shape, generator=generator))
    return units


NAMES = list(every_rival())


def images(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    channels = 9 if name == "maxout" else 3
    generator = torch.Generator().manual_seed(2)
    return (2 * torch.randn(2, channels, 2, 2, generator=generator, dtype=torch.float64)).to(dtype)


# The formulas, in numbers.


def test_prelu_is_a_leaky_relu_with_a_slope_a_channel():
    unit = PReLU(2)
    assert unit.weight.tolist() == [0.25, 0.25]
    set_(unit.weight, [0.5, -2.0])
    assert unit(torch.tensor([[-3.0, -3.0], [4.0, 4.0]])).tolist() == [[-1.5, 6.0], [4.0, 4.0]]


def test_prelu_is_torchs_and_takes_channels_anywhere():
    x = torch.randn(2, 3, 5)
    ours, torchs = PReLU(3), nn.PReLU(3)
    for unit in (ours, torchs):
        set_(unit.weight, [0.1, -0.4, 2.0])
    assert torch.equal(ours(x), torchs(x))
    assert isinstance(ours, nn.PReLU)
    assert list(ours.state_dict()) == list(torchs.state_dict())
    last = PReLU(3, dim=-1)
    set_(last.weight, ours.weight)
    assert torch.equal(last(x.transpose(1, 2)), torchs(x).transpose(1, 2))


def test_maxout_takes_the_largest_of_k_pieces():
    # Two outputs of three pieces: 1, 4, -2 and 5, 0, 6.
    x = torch.tensor([[1.0, 5.0, 4.0, 0.0, -2.0, 6.0]])
    assert Maxout(3, features=2)(x).tolist() == [[4.0, 6.0]]
    assert Maxout(3)(x).tolist() == [[4.0, 6.0]]
    assert Maxout(3, dim=-1)(x[:, None].expand(1, 2, 6)).tolist() == [[[4.0, 6.0], [4.0, 6.0]]]
    assert Maxout(1)(x).tolist() == x.tolist()


def test_maxout_sends_the_gradient_to_the_largest_piece_and_splits_ties():
    x = torch.tensor([[1.0, 5.0, 4.0, 5.0]], requires_grad=True)
    Maxout(2)(x).sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [[0.0, 0.5, 1.0, 0.5]]


def test_maxout_keeps_channels_last():
    x = images("maxout").to(memory_format=torch.channels_last)
    y = Maxout(3)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(y, Maxout(3)(x.contiguous()))


@pytest.mark.parametrize("beta", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("learned", [False, True])
def test_swish_is_x_times_the_sigmoid(beta, learned):
    y = Swish(beta, learned=learned).double()(torch.tensor(POINTS, dtype=torch.float64))
    expected = [x / (1 + math.exp(-beta * x)) for x in POINTS]
    # beta passed through float32 where it is a parameter
    assert y.tolist() == pytest.approx(expected, rel=1e-6 if learned else 1e-14)


def test_swish_with_the_papers_beta_has_no_parameters_and_a_learned_one_has_one():
    assert Swish().beta == 0.2
    assert count(Swish()) == 0
    assert count(Swish(learned=True)) == 1
    assert count(Swish(learned=True, share="channel", features=6)) == 6


def apl_in_numbers(x: float, slopes: list[float], hinges: list[float]) -> float:
    ramps = (a * max(0.0, b - x) for a, b in zip(slopes, hinges, strict=True))
    return max(0.0, x) + sum(ramps)


@pytest.mark.parametrize("hinges", [(-2, -1, 0, 1, 2), (0.5, -3, 0.5, 4, -0.25)])
@pytest.mark.parametrize("learned", [False, True])
def test_apl_is_its_formula(hinges, learned):
    slopes = [0.3, -0.7, 0.25, 1.5, -0.4]
    unit = APL(hinges=hinges, learned=learned).double()
    set_(unit.slopes, slopes)
    y = unit(torch.tensor(POINTS, dtype=torch.float64))
    expected = [apl_in_numbers(x, slopes, list(hinges)) for x in POINTS]
    assert y.tolist() == pytest.approx(expected, rel=1e-13, abs=1e-13)


def test_apl_is_not_grounded():
    unit = APL()
    set_(unit.slopes, [0.1, 0.2, 0.4, 0.8, 1.6])  # at -2, -1, 0, 1, 2
    assert unit(torch.zeros(1)).item() == pytest.approx(0.8 + 2 * 1.6)


@pytest.mark.parametrize("share", ["layer", "channel", "unit"])
def test_apl_on_the_splash_kernel_is_the_plain_formula_with_its_gradients(share):
    """Fixed hinges take the fast way; the plain formula is the one learned hinges need."""
    unit = every_rival(grad_scale=1.0)[f"apl-{share}"].double()
    x = images("apl", torch.float64).requires_grad_()
    x_plain = x.detach().clone().requires_grad_()
    slopes = unit.slopes.detach().clone().requires_grad_()
    for_images = slopes[..., None, None] if share == "channel" else slopes
    hinges = torch.tensor(unit.hinges, dtype=torch.float64)
    hinges = hinges.reshape(5, *(1 for _ in for_images.shape[1:]))
    fast, plain = unit(x), apl(x_plain, for_images, hinges)
    upstream = torch.randn_like(x)
    fast.backward(upstream)
    plain.backward(upstream)
    close = {"rtol": 1e-12, "atol": 1e-12}
    torch.testing.assert_close(fast, plain, **close)
    torch.testing.assert_close(x.grad, x_plain.grad, **close)
    torch.testing.assert_close(unit.slopes.grad, slopes.grad, **close)


def srelu_in_numbers(x: float, t_left: float, a_left: float, t_right: float, a_right: float):
    if x >= t_right:
        return t_right + a_right * (x - t_right)
    return x if x > t_left else t_left + a_left * (x - t_left)


@pytest.mark.parametrize("values", [(-1.0, 0.3, 2.0, -0.5), (0.5, -1.0, 1.5, 3.0)])
def test_srelu_is_its_formula(values):
    unit = SReLU(1).double()
    for parameter, value in zip(
        (unit.t_left, unit.a_left, unit.t_right, unit.a_right), values, strict=True
    ):
        set_(parameter, value)
    y = unit(torch.tensor(POINTS, dtype=torch.float64)[:, None])
    expected = [srelu_in_numbers(x, *values) for x in POINTS]
    assert y.flatten().tolist() == pytest.approx(expected, rel=1e-14)


def test_srelu_stays_continuous_where_its_hinges_cross():
    crossed = (torch.tensor(v, dtype=torch.float64) for v in (1.0, 0.2, -1.0, 0.5))
    x = torch.linspace(-3, 3, 6001, dtype=torch.float64)
    steps = srelu(x, *crossed).diff().abs()
    assert steps.max() <= (0.2 + 0.5) * 0.001 + 1e-12


# Where they start.


@pytest.mark.parametrize("dtype", DTYPES)
def test_apl_starts_as_relu_to_the_last_bit(dtype):
    x = torch.tensor([*POINTS, INF, -INF, 1e-7, -1e-7, 6e4, -6e4], dtype=dtype, requires_grad=True)
    twin = x.detach().clone().requires_grad_()
    y = APL()(x)
    y.sum().backward()
    torch.relu(twin).sum().backward()
    assert torch.equal(y, torch.relu(twin))
    assert torch.equal(x.grad, twin.grad)


def test_apl_has_the_papers_hinges():
    assert APL().hinges == (-2, -1, 0, 1, 2)
    assert APL(1).hinges == (0,)
    assert APL(2).hinges == (-0.5, 0.5)


def test_learned_apl_starts_at_random_as_the_original_does():
    unit = APL(learned=True, share="channel", features=4000)
    bound = 0.5 / 5
    assert -bound <= unit.slopes.min() < -0.99 * bound
    assert 0.99 * bound < unit.slopes.max() <= bound
    assert unit.hinges.std().item() == pytest.approx(0.5, rel=0.03)
    assert unit.hinges.mean().item() == pytest.approx(0.0, abs=0.02)
    assert unit.hinges.requires_grad
    given = APL(2, learned=True, hinges=[0.5, -1], share="channel", features=3)
    assert given.hinges.tolist() == [[0.5] * 3, [-1.0] * 3]


def test_srelu_starts_as_a_leaky_relu():
    x = torch.tensor(POINTS)[:, None]
    torch.testing.assert_close(SReLU(1)(x), nn.functional.leaky_relu(x, 0.2))
    torch.testing.assert_close(SReLU(1, a_left=0.01)(x), nn.functional.leaky_relu(x, 0.01))


@pytest.mark.parametrize(
    ("unit", "parameters"),
    [
        (PReLU(6), 6),
        (Maxout(9), 0),
        (APL(), 5),
        (APL(3), 3),
        (APL(learned=True), 10),
        (APL(share="channel", features=6), 30),
        (APL(learned=True, share="unit", features=(6, 28, 28)), 2 * 5 * 4704),
        (SReLU(6), 24),
    ],
    ids=str,
)
def test_parameter_counts(unit, parameters):
    assert count(unit) == parameters


# Far out and off the number line.


@pytest.mark.parametrize(
    ("unit", "left", "right"),
    [
        (PReLU(1), -INF, INF),
        (Swish(), 0.0, INF),
        (Swish(learned=True), 0.0, INF),
        (APL(), 0.0, INF),
        (SReLU(1), -INF, INF),
        (SReLU(1, a_left=0.0), 0.0, INF),
    ],
    ids=str,
)
def test_infinities_give_the_limit_and_nan_passes(unit, left, right):
    y = unit(torch.tensor([[-INF], [INF], [NAN]])).flatten().tolist()
    assert y[:2] == [left, right]
    assert math.isnan(y[2])


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize(
    ("slopes", "limit"),
    [([1.0, -0.25], INF), ([-1.0, 0.25], -INF), ([0.5, -0.5], 0.5 * -1 - 0.5 * 2), ([0, 0], 0)],
)
def test_apl_far_left_is_the_limit_of_the_sum(slopes, limit, learned):
    """Term by term it would be inf - inf; where the line is flat its height is left."""
    unit = APL(2, hinges=(-1, 2), learned=learned)
    set_(unit.slopes, slopes)
    assert unit(torch.tensor([-INF])).item() == limit


def test_swish_turned_round_by_a_negative_beta():
    unit = Swish(learned=True)
    set_(unit.beta, -1.0)
    assert unit(torch.tensor([-INF, INF])).tolist() == [-INF, 0.0]


@pytest.mark.parametrize("name", ["apl-learned-layer", "swish-channel", "srelu"])
def test_an_infinite_input_spoils_no_gradient(name):
    unit, x = every_rival()[name], images(name)
    x[0, 0, 0, 0], x[0, 1, 0, 0] = INF, -INF
    x.requires_grad_()
    y = unit(x)
    y[y.isfinite()].sum().backward()
    assert all(p.grad.isfinite().all() for p in unit.parameters())
    assert x.grad.isfinite().all()


# Gradients.


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_finite_differences(name):
    """In float64, for the input and every parameter, hinges included; none sits on a kink."""
    unit = every_rival(grad_scale=1.0)[name].double()
    x = images(name, torch.float64).requires_grad_()
    assert gradcheck(lambda x, *_: unit(x), (x, *unit.parameters()))


@pytest.mark.parametrize(
    ("share", "scale"), [("layer", 3 / math.sqrt(12)), ("channel", 1 / 2), ("unit", 1)]
)
def test_shared_parameters_learn_as_those_of_splash(share, scale):
    """By default the gradient of a slope falls with the root of the elements that share it."""
    for kind in (APL, lambda **options: Swish(learned=True, **options)):
        gradients = []
        for grad_scale in (1.0, "auto", 3.0):
            unit = kind(share=share, features=SHARED[share], grad_scale=grad_scale)
            unit(images("apl")).square().sum().backward()
            gradients.append(next(unit.parameters()).grad)
        literal, automatic, tripled = gradients
        torch.testing.assert_close(automatic, literal * scale)
        torch.testing.assert_close(tripled, literal * 3)


# Types, shapes, copies.


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", NAMES)
def test_the_output_has_the_inputs_type_and_parameters_stay_float32(name, dtype):
    unit = every_rival()[name]
    x = images(name, dtype)
    y = unit(x)
    assert y.dtype == dtype
    assert {p.dtype for p in unit.parameters()} <= {torch.float32}
    exact = copy.deepcopy(unit).double()(x.double())
    few_roundings = 8 * torch.finfo(dtype if dtype != torch.float64 else torch.float32).eps
    torch.testing.assert_close(y.double(), exact, rtol=few_roundings, atol=few_roundings)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", [n for n in NAMES if n.startswith(("apl-lea", "swish-", "srelu"))])
def test_half_precision_is_rounded_once(name, dtype):
    unit, x = every_rival()[name], images(name, dtype)
    assert torch.equal(unit(x), unit(x.float()).to(dtype))


@pytest.mark.parametrize("name", NAMES)
def test_autocast_keeps_the_type_and_the_slopes_precision(name):
    unit, x = every_rival()[name], images(name, torch.bfloat16)
    outside = unit(x)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = unit(x)
    assert inside.dtype == torch.bfloat16
    assert torch.equal(inside, outside)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith("unit")])
def test_a_vector_of_features_and_empty_and_strided_inputs(name):
    unit, x = every_rival()[name], images(name)
    torch.testing.assert_close(unit(x[:, :, 0, 0]), unit(x)[:, :, 0, 0])
    assert unit(x[:0]).shape[0] == 0
    turned = x.transpose(2, 3)
    torch.testing.assert_close(unit(turned), unit(x).transpose(2, 3))


@pytest.mark.parametrize("name", NAMES)
def test_copies_and_saved_states_give_the_same_unit(name):
    unit, x = every_rival()[name], images(name)
    twin = copy.deepcopy(unit)
    assert torch.equal(twin(x), unit(x))
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.zero_()
    twin.load_state_dict(unit.state_dict())
    assert torch.equal(twin(x), unit(x))
    assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in unit.parameters()}


# Bad input.


@pytest.mark.parametrize("name", NAMES)
def test_only_floats_are_taken(name):
    for dtype in (torch.int64, torch.complex64):
        with pytest.raises(TypeError, match=str(dtype)):
            every_rival()[name](images(name).to(dtype))


@pytest.mark.parametrize("name", [n for n in NAMES if n != "swish" and "layer" not in n])
def test_a_wrong_number_of_features_is_named(name):
    with pytest.raises(ValueError, match=r"\(2, 5, 2, 2\)"):
        every_rival()[name](torch.zeros(2, 5, 2, 2))


@pytest.mark.parametrize(
    ("make", "error", "said"),
    [
        (lambda: PReLU(0), ValueError, "features"),
        (lambda: PReLU(3, init=NAN), ValueError, "init"),
        (lambda: Maxout(0), ValueError, "k must be at least 1"),
        (lambda: Maxout(2.0), TypeError, "k must be a whole number"),
        (lambda: Maxout(3)(torch.zeros(1, 4)), ValueError, "multiple of 3"),
        (lambda: Swish(0.0), ValueError, "beta must be positive"),
        (lambda: Swish("1"), TypeError, "beta"),
        (lambda: Swish(learned=1), TypeError, "learned"),
        (lambda: APL(0), ValueError, "num_hinges"),
        (lambda: APL(2, hinges=[0]), ValueError, "num_hinges = 2"),
        (lambda: APL(1, hinges=[INF]), ValueError, "hinges must be finite"),
        (lambda: APL(share="row"), ValueError, "'row'"),
        (lambda: APL(share="channel"), ValueError, "features"),
        (lambda: APL(grad_scale=-1), ValueError, "grad_scale"),
        (lambda: SReLU(3, t_right=-1), ValueError, "t_right"),
    ],
)
def test_bad_settings_are_named(make, error, said):
    with pytest.raises(error, match=said):
        make()
