"""`convert`: which activations are found, how the options count, and what is kept."""

import functools

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convertible import (
    Block,
    Calls,
    HelperMethod,
    OwnActivation,
    bend,
    same_outputs,
    units_of,
)
from splash_units import Splash, catalogue, rivals
from splash_units.convert import convert


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def test_modules_get_a_unit_each_and_outputs_stay_bit_equal() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 6), nn.ReLU()).eval()
    network, report = convert(model, return_report=True)
    assert list(units_of(network)) == ["1", "3"]
    assert [c.path for c in report.changed] == ["1", "3"]
    assert [(c.exactness, c.largest_error) for c in report.changed] == [("exact", 0.0)] * 2
    x = torch.randn(50, 6)
    assert same_outputs(model, network, x)
    assert type(network) is nn.Sequential
    assert not units_of(model)


def test_every_spelling_of_a_call_gets_a_unit_of_its_own() -> None:
    model = Calls().eval()
    network, report = convert(model, return_report=True)
    assert len(units_of(network)) == len(report.changed) == 9
    assert not report.left
    assert all("convertible.py:" in c.where for c in report.changed)
    x = torch.randn(20, 6)
    assert same_outputs(model, network, x)
    network(x).sum().backward()
    assert all(unit.a_pos.grad is not None for unit in units_of(network).values())


def test_special_values_stay() -> None:
    x = torch.tensor([-0.0, 0.0, 1e-45, -1e-45, float("inf"), -float("inf")])
    unit = convert(nn.ReLU())
    assert isinstance(unit, Splash)
    assert torch.equal(unit(x).view(torch.int32), F.relu(x).view(torch.int32))
    assert unit(torch.tensor([float("nan")])).isnan()


class InPlaceReaders(nn.Module):
    """Reads tensors after an activation has overwritten them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        self.act(y)
        z = self.layer(y)
        before = 2 * z
        F.relu_(z)
        return y - z + before


def test_an_overwritten_input_is_read_as_the_output() -> None:
    model = InPlaceReaders().eval()
    network, report = convert(model, return_report=True, example_inputs=torch.randn(9, 6))
    assert report.output_difference == 0.0
    assert same_outputs(model, network, torch.randn(9, 6))


def test_a_caller_that_reads_an_overwritten_input_is_told() -> None:
    class Caller(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.branch = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6))

        def forward(self, x: Tensor) -> Tensor:
            x = x * 1.0
            return self.branch(x) + x

    _, report = convert(Caller(), return_report=True, example_inputs=torch.randn(9, 6))
    assert "overwrote the input" in report.changed[0].notes[0]
    assert report.output_difference is not None
    assert report.output_difference > 0.1


def test_a_call_in_another_method_is_named() -> None:
    _, report = convert(HelperMethod(), return_report=True)
    assert "features()" in report.changed[0].notes[0]


def test_a_module_that_is_only_an_activation_is_replaced_whole() -> None:
    model = nn.Sequential(nn.Linear(6, 6), OwnActivation())
    network = convert(model)
    assert list(units_of(network)) == ["1"]
    x = torch.randn(9, 6)
    torch.testing.assert_close(network(x), model(x))


def test_functions_that_are_attributes_get_a_unit_for_each_call() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.act = F.relu

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.layer(self.act(x)))

    model = Twice()
    network = convert(model)
    assert list(units_of(network)) == ["relu_1", "relu_2"]
    assert same_outputs(model, network, torch.randn(9, 6))


def test_functions_that_are_attributes_are_replaced_where_nothing_can_be_traced() -> None:
    class Held(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.act = functools.partial(F.leaky_relu, negative_slope=0.2)

        def forward(self, x: Tensor) -> Tensor:
            return self.act(self.layer(x)) if x.sum() > 0 else self.layer(x)

    model = Held()
    network, report = convert(model, return_report=True)
    assert list(units_of(network)) == ["act"]
    assert not report.left
    x = torch.rand(9, 6)
    torch.testing.assert_close(network(x), model(x))


@pytest.mark.parametrize("activation", ["relu", "gelu", nn.ReLU()])
def test_torchs_transformer_leaves_its_fused_activation(activation: object) -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=True)
    model = nn.TransformerEncoder(layer, 2).eval()
    network = bend(convert(model, from_=(nn.ReLU, nn.GELU)))
    assert len(units_of(network)) == 2
    x, padding = torch.randn(3, 4, 8), torch.zeros(3, 4, dtype=torch.bool)
    padding[0, 2:] = True
    with torch.no_grad():
        inference = network(x, src_key_padding_mask=padding)
    trained = network(x, src_key_padding_mask=padding)
    torch.testing.assert_close(inference[~padding], trained[~padding])


def test_a_graph_module_stays_one() -> None:
    model = torch.fx.symbolic_trace(Calls().eval())
    network = convert(model)
    assert isinstance(network, torch.fx.GraphModule)
    assert len(units_of(network)) == 9
    assert "relu" not in str(network.graph).replace("relu_", "")
    network.recompile()
    assert same_outputs(model, network, torch.randn(5, 6))


# -- options --


def test_unit_options_reach_the_units() -> None:
    network = convert(nn.Sequential(nn.ReLU()), num_hinges=9, grad_scale=1.0, trainable=False)
    (unit,) = units_of(network).values()
    assert (unit.num_hinges, unit.grad_scale) == (9, 1.0)
    assert not unit.a_pos.requires_grad


def test_channels_are_found_with_an_example() -> None:
    model = nn.Sequential(nn.Conv2d(2, 5, 3), nn.ReLU(), nn.Flatten(), nn.Linear(45, 7), nn.ReLU())
    x = torch.randn(4, 2, 5, 5)
    network, report = convert(model, share="channel", example_inputs=(x,), return_report=True)
    assert [unit.features for unit in units_of(network).values()] == [(5,), (7,)]
    assert report.output_difference == 0.0
    network = convert(model, share="unit", example_inputs={"input": x})
    assert [unit.features for unit in units_of(network).values()] == [(5, 3, 3), (7,)]
    with pytest.raises(ValueError, match=r"^1: .*example_inputs"):
        convert(model, share="channel")


def test_channels_of_calls_are_found_too() -> None:
    x = torch.randn(4, 6)
    network = convert(Calls(), share="channel", example_inputs=x)
    assert {unit.features for unit in units_of(network).values()} == {(6,)}


def test_other_units() -> None:
    x = torch.randn(4, 6)
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU()).eval()
    kinds: dict[object, type] = {
        nn.Tanh: nn.Tanh,
        functools.partial(Splash, 9): Splash,
        (lambda: Splash(3)): Splash,
        rivals.PReLU: rivals.PReLU,
        catalogue.unit("splash", share="unit"): Splash,
        catalogue.unit("apl"): rivals.APL,
    }
    for to, kind in kinds.items():
        network, report = convert(model, to, example_inputs=x, return_report=True)
        assert type(network[1]) is kind
        exactness = "exact" if kind is Splash else "own start"
        assert report.changed[0].exactness == exactness
        assert (report.output_difference == 0.0) == (kind in (Splash, rivals.APL))


def test_a_start_that_was_asked_for_is_kept() -> None:
    unit, report = convert(nn.ReLU(), init="abs", return_report=True)
    assert torch.equal(unit(torch.tensor([-3.0])), torch.tensor([3.0]))
    assert report.changed[0].exactness == "own start"
    assert report.changed[0].largest_error == pytest.approx(8.0)


def test_a_reused_module_is_separated_or_tied_and_the_report_says_so() -> None:
    model = Block().eval()
    x = torch.randn(9, 6)
    separate, report = convert(model, return_report=True)
    assert list(units_of(separate)) == ["relu", "relu_1"]
    assert all("used at 2 places; each has its own" in c.notes[0] for c in report.changed)
    tied, report = convert(model, reused="tied", return_report=True)
    assert list(units_of(tied)) == ["relu"]
    assert "used at 2 places; they share" in report.changed[0].notes[0]
    for network in (separate, tied):
        assert same_outputs(model, network, x)
    # Each call has its own unit: the second unit shapes the output, the first what comes before.
    with torch.no_grad():
        separate.relu_1.a_pos[0] *= 2
    assert torch.equal(separate(x), 2 * model(x))


def test_one_instance_under_several_names() -> None:
    act = nn.ReLU()
    model = nn.Sequential(nn.Linear(6, 6), act, nn.Linear(6, 6), act)
    assert list(units_of(convert(model))) == ["1", "3"]
    tied, report = convert(model, reused="tied", return_report=True)
    assert tied[1] is tied[3]
    assert "share this unit" in report.changed[0].notes[0]

    class Named(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(6, 6)
            self.a = self.b = self.c = nn.ReLU()

        def forward(self, x: Tensor) -> Tensor:
            return self.b(self.layer(self.a(self.layer(x))))

    named = convert(Named())
    assert len(units_of(named)) == 2  # `c` is called by nobody, and gets no slopes of its own
    named(torch.randn(3, 6)).sum().backward()
    assert all(unit.a_pos.grad is not None for unit in units_of(named).values())
