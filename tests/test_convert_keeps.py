"""`convert`: what a network keeps: its class, ways, hooks, modes, and its place in memory."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convertible import Block, Calls, Counts, HelperMethod, Optional, bend, same_outputs, units_of
from splash_units import Splash
from splash_units.convert import convert


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


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


def test_an_example_leaves_the_modes_as_they_are() -> None:
    model = nn.Sequential(Block().eval(), Calls()).train()
    model[0].eval()
    network = convert(model, share="channel", example_inputs=torch.randn(9, 6))
    for each in (model, network):
        assert [each.training, each[0].training, each[1].training] == [True, False, True]


def test_buffers_and_assertions_go_on_working() -> None:
    model = Counts()
    network = convert(model)
    assert len(units_of(network)) == 1
    assert model.calls == 0
    for _ in range(3):
        network(torch.ones(1, 6))
    assert network.calls == 3
    assert torch.equal(network.eval()(torch.ones(1, 6)), torch.full((1, 6), 4.0))
    with pytest.raises(AssertionError, match=r"the assertion at .*convertible.py:\d+"):
        network(torch.ones(1, 5))


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


class OwnUnit(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * F.relu(x)


def test_converting_twice_to_units_of_ones_own_changes_nothing() -> None:
    once = convert(nn.Sequential(nn.Linear(6, 6), nn.ReLU()), OwnUnit)
    twice, report = convert(once, OwnUnit, return_report=True)
    assert not report.changed
    assert str(twice) == str(once)


class Mixed(Calls):
    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(super().forward(x) - 1)


def test_a_second_conversion_of_other_activations_builds_on_the_first() -> None:
    once = bend(convert(Mixed()))
    twice = convert(once, from_=nn.Tanh)
    assert len(units_of(twice)) == 10
    x = torch.randn(9, 6)
    torch.testing.assert_close(twice(x), once(x), rtol=0, atol=0.04)
    assert same_outputs(pickle.loads(pickle.dumps(twice)), twice, x)


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
