"""Splash as a module: what it holds, who shares it, and what it refuses."""

import math
from typing import Any

import pytest
import torch
from torch import nn

from oracle import assert_follows_paper, assert_same_bits
from splash_units import Splash, splash
from splash_units.starts import STARTS

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def count(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


# --- what it holds ----------------------------------------------------------------------------


@pytest.mark.parametrize("num_hinges", [1, 3, 5, 7, 9, 11, 21])
def test_s_plus_one_slopes_a_layer(num_hinges: int) -> None:
    unit = Splash(num_hinges)
    assert count(unit) == num_hinges + 1
    assert unit.num_hinges == num_hinges


@pytest.mark.parametrize(("share", "slopes"), [("layer", 24), ("unit", 2816)])
def test_counts_of_the_papers_mlp(share: Any, slopes: int) -> None:
    assert sum(count(Splash(share=share, features=n)) for n in (256, 64, 32)) == slopes


def test_counts_of_channels_and_of_samples_with_a_shape() -> None:
    assert count(Splash(share="channel", features=16)) == 8 * 16
    assert count(Splash(3, share="unit", features=(6, 28, 28))) == 4 * 6 * 28 * 28


def test_slopes_are_float32_parameters_and_hinges_a_buffer() -> None:
    unit = Splash(share="channel", features=3)
    assert {name: p.shape for name, p in unit.named_parameters()} == {
        "a_pos": (4, 3),
        "a_neg": (4, 3),
    }
    assert {name for name, _ in unit.named_buffers()} == {"hinges"}
    assert set(unit.state_dict()) == {"a_pos", "a_neg", "hinges"}
    assert {t.dtype for t in unit.state_dict().values()} == {torch.float32}
    assert unit.hinges.tolist() == [0.0, 1.0, 2.0, 2.5]


def test_hinges_of_ones_own_decide_the_number() -> None:
    unit = Splash(hinges=[0.0, 0.5, 3.0])
    assert unit.num_hinges == 5
    assert unit.hinges.tolist() == [0.0, 0.5, 3.0]


def test_hinges_travel_with_the_state() -> None:
    source, target = Splash(hinges=(0.0, 0.25, 4.0), init="random"), Splash(5)
    target.load_state_dict(source.state_dict())
    x = torch.randn(50)
    assert torch.equal(target(x), source(x))


def test_inplace_is_accepted_and_ignored() -> None:
    x = torch.randn(10)
    before = x.clone()
    Splash(inplace=True)(x)
    assert torch.equal(x, before)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "Splash(num_hinges=7)"),
        ({"hinges": (0.0, 1.0, 2.0, 2.5)}, "Splash(num_hinges=7)"),
        ({"num_hinges": 13}, "Splash(num_hinges=13)"),
        ({"hinges": (0.0, 0.3)}, "Splash(num_hinges=3, hinges=(0.0, 0.3))"),
        ({"init": "tanh"}, "Splash(num_hinges=7, init='tanh')"),
        ({"init": torch.sin}, "Splash(num_hinges=7, init='sin')"),
        (
            {"share": "channel", "features": 8, "dim": -1},
            "Splash(num_hinges=7, share='channel', features=(8,), dim=-1)",
        ),
        (
            {"constraint": "negative", "grad_scale": 1.0, "trainable": False},
            "Splash(num_hinges=7, constraint='negative', grad_scale=1.0, trainable=False)",
        ),
    ],
)
def test_repr_says_what_is_not_default(options: dict[str, Any], text: str) -> None:
    assert repr(Splash(**options)) == text


# --- the function -----------------------------------------------------------------------------

SHARINGS: dict[str, tuple[dict[str, Any], tuple[int, ...]]] = {
    "layer": ({}, (5, 4, 3, 3)),
    "channel": ({"share": "channel", "features": 4}, (5, 4, 3, 3)),
    "channel of a vector": ({"share": "channel", "features": 4}, (5, 4)),
    "token": ({"share": "channel", "features": 6, "dim": -1}, (5, 3, 6)),
    "token by number": ({"share": "channel", "features": 6, "dim": 2}, (5, 3, 6)),
    "channels first": ({"share": "channel", "features": 4, "dim": 0}, (4, 9)),
    "unit": ({"share": "unit", "features": (4, 3, 3)}, (5, 4, 3, 3)),
    "unit of a vector": ({"share": "unit", "features": 4}, (5, 4)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_starts_as_relu_to_the_last_bit(sharing: str, dtype: torch.dtype) -> None:
    options, shape = SHARINGS[sharing]
    x = torch.randn(shape).to(dtype)
    ends = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan], dtype=dtype)
    x.view(-1)[:5] = ends
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    upstream = torch.randn(shape).to(dtype)
    y, expected = Splash(**options)(ours), torch.relu(theirs)
    assert_same_bits(y, expected)
    y.backward(upstream)
    expected.backward(upstream)
    assert ours.grad is not None
    assert theirs.grad is not None
    assert_same_bits(ours.grad, theirs.grad)


@pytest.mark.parametrize("sharing", SHARINGS)
def test_every_slope_serves_those_who_share_it(sharing: str) -> None:
    options, shape = SHARINGS[sharing]
    unit = Splash(init="random", **options)
    x = 2 * torch.randn(shape)
    features = unit.a_pos.shape[1:]
    if unit.share == "channel":
        dim = unit.dim % len(shape)
        features = tuple(n if d == dim else 1 for d, n in enumerate(shape))
    a_pos, a_neg = (a.reshape(4, *features) for a in (unit.a_pos, unit.a_neg))
    assert_follows_paper(unit(x), x, a_pos, a_neg, unit.hinges)


@pytest.mark.parametrize("init", STARTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_grounded_whatever_the_start(init: str, dtype: torch.dtype) -> None:
    assert Splash(init=init)(torch.zeros(3, dtype=dtype)).tolist() == [0.0] * 3


def test_a_unit_that_saturates_has_its_limits_at_infinity() -> None:
    """Hard tanh: slopes 1 and −1 on both sides, exactly, so the outer slope is 0."""
    unit = Splash(hinges=(0.0, 1.0), init=nn.Hardtanh())
    x = torch.tensor([math.inf, -math.inf, 0.5], requires_grad=True)
    y = unit(x)
    assert y.tolist() == [1.0, -1.0, 0.5]
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.tolist() == [0.0, 0.0, 1.0]
    for a in unit.parameters():
        assert a.grad is not None
        assert not a.grad.isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_output_has_the_inputs_dtype_and_slopes_stay_float32(
    sharing: str, dtype: torch.dtype
) -> None:
    options, shape = SHARINGS[sharing]
    unit = Splash(**options)
    x = torch.randn(shape).to(dtype).requires_grad_()
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            y = unit(x)
        assert y.dtype == dtype
        y.float().sum().backward()
        assert x.grad is not None
        assert x.grad.dtype == dtype
        for a in unit.parameters():
            assert a.dtype == torch.float32
            assert a.grad is not None
            assert a.grad.dtype == torch.float32


def test_a_network_under_autocast() -> None:
    """A linear layer hands over bfloat16; the unit computes in float32 and hands on bfloat16."""
    network = nn.Sequential(nn.Linear(8, 16), Splash(init="elu"))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = network[0](torch.randn(4, 8))
        y = network[1](hidden)
    assert hidden.dtype == y.dtype == torch.bfloat16
    unit = network[1]
    assert_follows_paper(y, hidden, unit.a_pos, unit.a_neg, unit.hinges)


@pytest.mark.parametrize("shape", [(0, 4), (0, 4, 3, 3), (2, 4, 0, 3)])
def test_empty_batches_keep_their_shape(shape: tuple[int, ...]) -> None:
    for unit in (Splash(), Splash(share="channel", features=4)):
        y = unit(torch.empty(shape))
        assert y.shape == shape
        y.sum().backward()


@pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 3, 4), (2, 3, 4, 5), (2, 3, 2, 2, 2)])
def test_a_shared_unit_takes_any_rank(shape: tuple[int, ...]) -> None:
    unit, x = Splash(init="random"), 2 * torch.randn(shape)
    assert_follows_paper(unit(x), x, unit.a_pos, unit.a_neg, unit.hinges)


@pytest.mark.parametrize("options", [{}, {"share": "channel", "features": 4}])
def test_channels_last_is_kept(options: dict[str, Any]) -> None:
    x = torch.randn(2, 4, 5, 5).contiguous(memory_format=torch.channels_last)
    y = Splash(init="random", **options)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)


# --- bad input --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_hinges": 4}, ValueError, "odd and positive.*got 4"),
        ({"num_hinges": 0}, ValueError, "odd and positive.*got 0"),
        ({"num_hinges": -3}, ValueError, "odd and positive.*got -3"),
        ({"num_hinges": 3.5}, TypeError, "odd whole number, got 3.5"),
        ({"hinges": (0.0, 2.0, 1.0)}, ValueError, r"increase strictly.*2.0, 1.0"),
        ({"hinges": (-1.0, 0.0)}, ValueError, "first hinge must be 0.*-1.0"),
        ({"hinges": (0.5, 1.0)}, ValueError, "first hinge must be 0.*0.5"),
        ({"hinges": (0.0, math.inf)}, ValueError, "finite.*inf"),
        ({"init": "gelu"}, ValueError, "unknown init 'gelu': choose one of relu"),
        ({"init": torch.cos}, ValueError, r"f\(0\) = 1"),
        ({"share": "row"}, ValueError, "unknown share 'row': choose one of 'layer', 'channel'"),
        ({"constraint": "up"}, ValueError, "unknown constraint 'up'.*'negative', 'positive'"),
        ({"share": "channel"}, ValueError, "needs features: the number of channels"),
        ({"share": "unit"}, ValueError, "needs features: the shape of one sample"),
        ({"share": "channel", "features": (3, 4)}, ValueError, r"one number.*\(3, 4\)"),
        ({"share": "channel", "features": 0}, ValueError, "positive whole numbers, got 0"),
        ({"share": "unit", "features": ()}, ValueError, r"positive whole numbers, got \(\)"),
        ({"share": "unit", "features": 2.5}, ValueError, "positive whole numbers, got 2.5"),
        ({"dim": "1"}, TypeError, "whole number.*got '1'"),
        ({"grad_scale": 0.0}, ValueError, "'auto' or a positive number, got 0.0"),
        ({"grad_scale": math.nan}, ValueError, "'auto' or a positive number, got nan"),
        ({"grad_scale": "half"}, ValueError, "'auto' or a positive number, got 'half'"),
        ({"grad_scale": None}, ValueError, "'auto' or a positive number, got None"),
    ],
)
def test_options_that_cannot_be(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        Splash(**options)


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"share": "channel", "features": 4}, (2, 3, 5), r"4 channels along dimension 1.*2, 3, 5"),
        ({"share": "channel", "features": 4}, (4,), r"4 channels along dimension 1.*\(4,\)"),
        ({"share": "channel", "features": 4, "dim": -1}, (2, 4, 5), "along dimension -1"),
        ({"share": "unit", "features": (4, 5)}, (2, 5, 4), r"samples of shape \(4, 5\).*2, 5, 4"),
        ({"share": "unit", "features": 4}, (), r"samples of shape \(4,\), .*\(\)"),
    ],
)
def test_inputs_that_do_not_match_the_features(
    options: dict[str, Any], shape: tuple[int, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        Splash(**options)(torch.randn(shape))


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool, torch.complex64])
def test_inputs_that_are_not_real_floating_point(dtype: torch.dtype) -> None:
    with pytest.raises(TypeError, match=f"got {dtype}"):
        Splash()(torch.ones(3, dtype=dtype))


def test_parameters_on_another_device() -> None:
    with pytest.raises(ValueError, match=r"a_pos is on meta, x is on cpu.*\.to\(x\.device\)"):
        Splash().to("meta")(torch.randn(3))


def test_slopes_that_were_replaced_say_how_many_channels_there_are() -> None:
    """As structured pruning does it."""
    unit = Splash(init="random", share="channel", features=8)
    for name in ("a_pos", "a_neg"):
        setattr(unit, name, torch.nn.Parameter(getattr(unit, name).detach()[:, :6].clone()))
    x = torch.randn(2, 6, 3)
    torch.testing.assert_close(
        unit(x), splash(x, unit.a_pos[..., None], unit.a_neg[..., None], unit.hinges)
    )
    with pytest.raises(ValueError, match="made for 6 channels"):
        unit(torch.randn(2, 5, 3))
