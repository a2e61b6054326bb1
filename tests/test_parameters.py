"""`parameter_groups`: what decays, what doesn't, and how fast slopes learn."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from convertible import Block
from splash_units import BatchNormSplash, Splash, rivals
from splash_units.convert import convert, parameter_groups


def names_in(model: nn.Module, group: str, **options: object) -> set[str]:
    names = {id(p): name for name, p in model.named_parameters()}
    groups = {g["name"]: g["params"] for g in parameter_groups(model, 0.1, **options)}
    return {names[id(p)] for p in groups.get(group, [])}


class OwnNorm(nn.Module):
    """A norm that torch doesn't know, of rank 2."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4, 5))


class Everything(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.norm = nn.BatchNorm2d(4)
        self.layer_norm = nn.LayerNorm((4, 5))  # of rank 2
        self.own_norm = OwnNorm()
        self.channels = Splash(share="channel", features=4)
        self.neurons = Splash(share="unit", features=(4, 5))
        self.fused = BatchNormSplash(4)
        self.prelu = nn.PReLU(4)
        self.swish = rivals.Swish(learned=True)
        self.apl = rivals.APL(share="channel", features=4)
        self.srelu = rivals.SReLU(4)
        self.lstm = nn.LSTM(4, 4)
        self.attention = nn.MultiheadAttention(4, 2)
        self.embedding = nn.Embedding(7, 4)
        self.scaled = weight_norm(nn.Linear(4, 4))
        self.gamma = nn.Parameter(torch.ones(4))
        self.position = nn.Parameter(torch.zeros(1, 9, 4))


def test_every_kind_of_parameter_goes_where_it_belongs() -> None:
    model = Everything()
    activations = ("channels", "neurons", "prelu", "swish", "apl", "srelu")
    slopes = {n for n, _ in model.named_parameters() if n.split(".")[0] in activations}
    slopes |= {"fused.a_pos", "fused.a_neg"}
    assert names_in(model, "slopes") == slopes
    assert names_in(model, "kernels") == {
        "conv.weight",
        "lstm.weight_ih_l0",
        "lstm.weight_hh_l0",
        "attention.in_proj_weight",
        "attention.out_proj.weight",
        "embedding.weight",
        "scaled.parametrizations.weight.original0",
        "scaled.parametrizations.weight.original1",
        "position",
    }
    every = {name for name, _ in model.named_parameters()}
    others = every - slopes - names_in(model, "kernels")
    assert names_in(model, "others") == others
    assert {"norm.weight", "layer_norm.weight", "conv.bias", "lstm.bias_hh_l0", "gamma"} <= others
    assert {"fused.weight", "fused.bias", "own_norm.scale"} <= others


def test_only_kernels_decay_in_an_optimizer() -> None:
    """Parameters without a gradient signal shrink if, and only if, they decay."""
    model = convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for optimizer_class in (torch.optim.SGD, torch.optim.AdamW):
        optimizer = optimizer_class(parameter_groups(model, weight_decay=0.5), lr=0.1)
        for parameter in model.parameters():
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    moved = {n for n, p in model.named_parameters() if not torch.equal(p, before[n])}
    assert moved == {"0.weight"}


def test_learning_rates() -> None:
    model = convert(nn.Sequential(nn.Linear(3, 3), nn.ReLU()))
    groups = {g["name"]: g for g in parameter_groups(model, 0.1, lr=0.2, slope_lr=5.0)}
    assert {name: g["lr"] for name, g in groups.items()} == {
        "kernels": 0.2,
        "slopes": 1.0,
        "others": 0.2,
    }
    assert all("lr" not in g for g in parameter_groups(model, 0.1))
    assert all(g["lr"] == 0.2 for g in parameter_groups(model, 0.1, lr=0.2))
    optimizer = torch.optim.SGD(list(groups.values()), lr=0.2)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.1)
    optimizer.step()
    schedule.step()
    rates = {g["name"]: g["lr"] for g in optimizer.param_groups}
    assert rates["slopes"] == pytest.approx(5 * rates["kernels"])


def test_tied_parameters_are_there_once_and_frozen_ones_not() -> None:
    block = Block()
    model = nn.Sequential(block, block, nn.Linear(6, 6))
    model[2].weight = block.first.weight
    model[2].bias.requires_grad_(False)
    grouped = [p for g in parameter_groups(model, 0.1) for p in g["params"]]
    assert len(grouped) == len(set(map(id, grouped)))
    expected = {id(p) for p in model.parameters() if p.requires_grad}
    assert set(map(id, grouped)) == expected


def test_a_models_own_word_and_own_activations_count() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bend = nn.Parameter(torch.ones(2, 2))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.bend

    class Said(Everything):
        def __init__(self) -> None:
            super().__init__()
            self.own = Own()

        def no_weight_decay(self) -> set[str]:
            return {"position"}

    assert "position" in names_in(Said(), "others")
    assert "own.bend" in names_in(Said(), "kernels")
    assert "own.bend" in names_in(Said(), "slopes", activations=(Own,))


def test_empty_groups_are_left_out() -> None:
    assert [g["name"] for g in parameter_groups(nn.Linear(2, 2, bias=False), 0.1)] == ["kernels"]
    assert parameter_groups(nn.ReLU(), 0.1) == []


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"weight_decay": -1.0}, ValueError, "weight_decay must be finite and at least 0, got -1"),
        ({"weight_decay": float("nan")}, ValueError, "weight_decay"),
        ({"weight_decay": "0.1"}, TypeError, "weight_decay must be a number, got '0.1'"),
        ({"slope_lr": 2.0}, ValueError, "give lr too"),
        ({"slope_lr": 0.0, "lr": 0.1}, ValueError, "slope_lr must be finite and positive"),
        ({"slope_lr": True, "lr": 0.1}, TypeError, "slope_lr must be a number"),
        ({"lr": -0.1}, ValueError, "lr must be finite"),
    ],
)
def test_bad_arguments(options: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        parameter_groups(nn.Linear(2, 2), **{"weight_decay": 0.1, **options})
