"""`fold`: each unit becomes the cheapest module that computes the same, to the last bit."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from convertible import Block, Calls, bend
from splash_units import BatchNormSplash, Splash, rivals
from splash_units.convert import convert, fold


def shaped(a_pos: list[float], a_neg: list[float], **options: object) -> Splash:
    """A unit with the paper's hinges and these slopes, given from the inside out."""
    unit = Splash(**options)
    with torch.no_grad():
        for a, slopes in ((unit.a_pos, a_pos), (unit.a_neg, a_neg)):
            a.zero_()
            for row, slope in zip(a, slopes, strict=False):
                row.fill_(slope)
    return unit


def varied(unit: Splash, slopes: Callable[[Tensor], Tensor]) -> Splash:
    with torch.no_grad():
        unit.a_neg[0] = slopes(unit.a_neg[0])
    return unit


def per_channel(slopes: Tensor) -> Tensor:
    return -torch.linspace(0.1, 1.0, slopes.numel()).reshape(slopes.shape)


CHANNELS = {"share": "channel", "features": 6}
CASES = {
    "identity": (shaped([1], [-1]), nn.Identity),
    "relu": (Splash(), nn.ReLU),
    "leaky": (shaped([1], [-0.3]), nn.LeakyReLU),
    "absolute": (shaped([1], [1]), nn.LeakyReLU),
    "nearly a relu": (shaped([1 - 2**-8], [0]), Splash),
    "zero": (shaped([], []), Splash),
    "three corners": (shaped([1, 0, -1], [0, 0.2]), Splash),
    "alike channels": (Splash(**CHANNELS), nn.ReLU),
    "channels": (varied(Splash(**CHANNELS), per_channel), rivals.PReLU),
    "flat channel": (varied(Splash(**CHANNELS), lambda a: -torch.arange(6.0)), Splash),
    "last channels": (varied(Splash(**CHANNELS, dim=-1), per_channel), rivals.PReLU),
    "bent channels": (varied(shaped([1, 0.5], [0], **CHANNELS), per_channel), Splash),
    "alike neurons": (Splash(share="unit", features=(6, 6)), nn.ReLU),
    "neurons": (varied(Splash(share="unit", features=(6, 6)), per_channel), Splash),
    "random": (Splash(init="random"), Splash),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_folded_unit_computes_the_same(case: str, dtype: torch.dtype) -> None:
    unit, kind = CASES[case]
    unit = copy.deepcopy(unit).to(dtype)
    folded = fold(unit)
    assert type(folded) is kind
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    special = torch.tensor([0.0, -0.0, 1.0, 2.5, -2.0, float("inf"), -float("inf"), float("nan")])
    x = torch.cat([special.repeat(9), 3 * torch.randn(36 * 50)])[: 36 * 50].reshape(50, 6, 6)
    x = x.to(dtype)
    torch.testing.assert_close(folded(x), unit(x), rtol=0, atol=0, equal_nan=True)


def test_gradients_with_respect_to_inputs_stay() -> None:
    for unit, _ in CASES.values():
        x = torch.randn(50, 6, 6, requires_grad=True)
        (expected,) = torch.autograd.grad(unit(x).square().sum(), x)
        (got,) = torch.autograd.grad(fold(unit)(x).square().sum(), x)
        torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


def test_hinges_without_a_corner_are_dropped() -> None:
    folded = fold(shaped([1, 0, -1], [0, 0, 0.5]))
    assert folded.hinges.tolist() == [0.0, 2.0]
    assert folded.state_dict().keys() == {"a_pos", "a_neg", "hinges"}
    assert not list(folded.parameters())
    assert str(folded) == "Splash(num_hinges=3, hinges=(0.0, 2.0), grad_scale=1.0, trainable=False)"


def test_folding_twice_changes_nothing() -> None:
    network = bend(convert(nn.Sequential(Block(), Calls())))
    once = fold(network)
    twice = fold(once)
    assert str(twice) == str(once)
    x = torch.randn(9, 6)
    assert torch.equal(twice(x), once(x))


def test_a_network_is_folded_back_to_where_it_came_from() -> None:
    model = nn.Sequential(Block(), nn.ReLU(), Calls()).eval()
    network = convert(model)
    folded = fold(network)
    assert not any(isinstance(m, Splash) for m in folded.modules())
    assert any(isinstance(m, Splash) for m in network.modules())
    x = torch.randn(9, 6)
    assert torch.equal(folded(x), model(x))
    assert len(list(folded.parameters())) == len(list(model.parameters()))


def test_a_trained_network_stays_what_it_is() -> None:
    network = bend(convert(nn.Sequential(Block(), Calls())))
    x = torch.randn(9, 6)
    expected = network(x)
    assert torch.equal(fold(network)(x), expected)
    assert fold(network, copy=False) is network
    assert torch.equal(network(x), expected)


def test_tied_units_hooks_and_modes_stay() -> None:
    for init in ("relu", "random"):
        unit = Splash(init=init).eval()
        seen: list[str] = []
        unit.register_forward_hook(lambda *_, seen=seen: seen.append("after"))
        folded = fold(nn.Sequential(unit, nn.Linear(6, 6), unit))
        assert folded[0] is folded[2]
        assert not folded[0].training
        folded(torch.randn(3, 6))
        assert seen == ["after", "after"]


def test_a_subclass_stays_with_its_slopes_as_buffers() -> None:
    class Doubled(Splash):
        def forward(self, x: Tensor) -> Tensor:
            return 2 * super().forward(x)

    folded = fold(nn.Sequential(Doubled()))
    assert type(folded[0]) is Doubled
    assert not list(folded.parameters())
    assert folded(torch.ones(1)) == 2

    fused = BatchNormSplash(6, init="random").eval()
    folded = fold(fused)
    assert {name for name, _ in folded.named_parameters()} == {"weight", "bias"}
    x = torch.randn(9, 6)
    assert torch.equal(folded(x), fused(x))
