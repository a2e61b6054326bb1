"""`convert`: which activations are found, how the options count, and what is kept."""

import copy
import functools
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convertible import (
    Block,
    Calls,
    HelperMethod,
    Optional,
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
        F.relu_(z)
        return y - z


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


# -- what is kept --


def test_class_methods_children_and_state_are_kept() -> None:
    model = HelperMethod()
    network = convert(model)
    assert isinstance(network, HelperMethod)
    assert str(network).startswith("HelperMethod(")
    assert network.features(torch.ones(1, 6)).shape == (1, 6)
    missing, unexpected = network.load_state_dict(model.state_dict(), strict=False)
    assert not unexpected
    assert all(name.startswith("relu_1.") for name in missing)


def test_every_way_through_a_forward_stays() -> None:
    model = Optional()
    network = convert(model)
    assert len(units_of(network)) == 2
    x, mask = torch.randn(9, 6), torch.rand(9, 6)
    for mode in (True, False):
        model.train(mode)
        network.train(mode)
        for arguments in ({}, {"mask": mask}, {"twice": True}, {"mask": mask, "twice": True}):
            torch.manual_seed(1)
            expected = model(x, **arguments)
            torch.manual_seed(1)
            assert torch.equal(network(x, **arguments), expected)
    # The line of the first call is one unit, on all ways.
    with torch.no_grad():
        network.relu_1.a_pos.zero_()
    assert not network.eval()(x).any()
    assert not network.train()(x).any()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtype_mode_and_device_are_kept(dtype: torch.dtype) -> None:
    model = nn.Sequential(Block(), nn.ReLU(), Calls()).to(dtype).eval()
    model[0].train()
    network = convert(model)
    for unit in units_of(network).values():
        assert {t.dtype for t in (unit.a_pos, unit.a_neg, unit.hinges)} == {dtype}
    assert network[0].relu_1.training
    assert not network[1].training
    assert same_outputs(model, network, torch.randn(9, 6, dtype=dtype))
    on_meta = convert(model.to("meta"))
    assert {t.device.type for t in on_meta.state_dict().values()} == {"meta"}


def test_hooks_are_kept_and_can_still_be_removed() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), Block())
    seen: list[str] = []
    model[1].register_forward_pre_hook(lambda *_: seen.append("before"))
    handle = model[1].register_forward_hook(lambda *_: seen.append("after"))
    model[1].register_full_backward_hook(lambda *_: seen.append("backward"))
    model[2].register_forward_hook(lambda *_: seen.append("block"))
    network = convert(model, copy=False)
    network(torch.randn(3, 6)).sum().backward()
    assert seen == ["before", "after", "block", "backward"]
    handle.remove()
    network(torch.randn(3, 6))
    assert seen[4:] == ["before", "block"]


def test_tied_modules_stay_tied() -> None:
    block = Block()
    network = convert(nn.Sequential(block, nn.Linear(6, 6), block))
    assert network[0] is network[2]
    assert len(units_of(network)) == 2


def test_copy_leaves_the_model_alone_and_in_place_changes_it() -> None:
    model = nn.Sequential(Calls(), Block())
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    class_of = type(model[0])
    converted = convert(model)
    assert type(model[0]) is class_of
    assert model.state_dict().keys() == state.keys()
    assert converted[0].layers[0].weight is not model[0].layers[0].weight
    weight = model[0].layers[0].weight
    assert convert(model, copy=False) is model
    assert model[0].layers[0].weight is weight
    assert len(units_of(model)) == 11


def test_a_failure_leaves_the_model_alone() -> None:
    model = nn.Sequential(Calls(), nn.Linear(6, 6), nn.ReLU6())
    before = str(model)
    with pytest.raises(ValueError, match="corner at 6"):
        convert(model, copy=False, hinges=(0.0, 1.0))
    assert str(model) == before
    assert type(model[0]) is Calls


@pytest.mark.parametrize("model_class", [Calls, Block, Optional])
def test_converting_twice_changes_nothing(model_class: type[nn.Module]) -> None:
    once = bend(convert(model_class()))
    twice, report = convert(once, return_report=True)
    assert not report.changed
    assert not report.left
    assert str(twice) == str(once)
    assert type(twice) is type(once)
    x = torch.randn(9, 6)
    assert same_outputs(once.eval(), twice.eval(), x)
    assert isinstance(convert(once), model_class)  # and is no error


def test_a_second_conversion_of_other_activations_builds_on_the_first() -> None:
    class Mixed(Calls):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(super().forward(x) - 1)

    once = bend(convert(Mixed()))
    twice = convert(once, from_=nn.Tanh)
    assert len(units_of(twice)) == 10
    x = torch.randn(9, 6)
    torch.testing.assert_close(twice(x), once(x), rtol=0, atol=0.04)


@pytest.mark.parametrize("model_class", [Calls, Block, Optional])
def test_converted_networks_copy_and_pickle(model_class: type[nn.Module]) -> None:
    network = bend(convert(model_class())).eval()
    x = torch.randn(9, 6)
    for again in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert type(again) is type(network)
        assert same_outputs(network, again, x)
        assert not {id(p) for p in again.parameters()} & {id(p) for p in network.parameters()}


def test_training_moves_slopes_and_keeps_the_rest_trainable() -> None:
    network = convert(Calls())
    x, y = torch.randn(64, 6), torch.randn(64, 6)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = F.mse_loss(network(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    moved = [not torch.equal(u.a_pos, Splash().a_pos) for u in units_of(network).values()]
    assert any(moved)
