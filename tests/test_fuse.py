"""`fuse`: batch norm and the unit behind it as one module that computes the same."""

import copy
from collections.abc import Callable
from types import MethodType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from splash_units import BatchNormSplash, Splash, convert, fold, fuse
from splash_units.unit import freeze_shapes


class Residual(nn.Module):
    """torchvision's block: one norm before a unit, one before an addition."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.conv2, self.bn2 = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(y)) + x)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), Residual())
        self.norm, self.head = nn.BatchNorm1d(4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.norm(self.stem(x).mean((2, 3)))))


def images(count: int = 8) -> Tensor:
    return torch.randn(count, 1, 9, 9, generator=torch.Generator().manual_seed(0))


def bent(network: nn.Module) -> nn.Module:
    """With slopes and norms of their own, so that outputs tell who is used where."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, Splash | nn.BatchNorm1d | nn.BatchNorm2d):
                for parameter in module.parameters():
                    parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return network


def count(network: nn.Module, kind: type) -> int:
    return sum(type(module) is kind for module in network.modules())


@pytest.mark.parametrize("training", [True, False])
def test_a_converted_network_computes_the_same(training: bool) -> None:
    torch.manual_seed(0)
    network = bent(convert(Network())).train(training)
    before = copy.deepcopy(network)
    fused = fuse(network, copy=False)
    assert fused is network
    # The residual block's second norm has an addition behind it.
    assert count(fused, BatchNormSplash) == 3
    assert (count(fused, Splash), count(fused, nn.BatchNorm2d)) == (1, 1)
    torch.testing.assert_close(fused(images()), before(images()), rtol=1e-4, atol=1e-5)
    for name, statistics in before.named_buffers():
        if "running" in name or "tracked" in name:
            torch.testing.assert_close(fused.get_buffer(name), statistics, rtol=1e-5, atol=1e-6)


def test_gradients_are_the_same() -> None:
    torch.manual_seed(0)
    network = bent(nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), Splash(), nn.Linear(6, 2)))
    x = torch.randn(32, 5)
    parameters = list(network.parameters())
    expected = torch.autograd.grad(network(x).square().sum(), parameters)
    fuse(network, copy=False)
    got = torch.autograd.grad(network(x).square().sum(), parameters)
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)


def test_parameters_stay_the_same_objects_under_the_norms_names() -> None:
    network = convert(nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU()))
    before = {id(t): name for name, t in (*network.named_parameters(), *network.named_buffers())}
    fused = fuse(network, copy=False)
    after = {id(t): name for name, t in (*fused.named_parameters(), *fused.named_buffers())}
    assert before.keys() == after.keys()
    moved = {before[key]: name for key, name in after.items() if name != before[key]}
    assert moved == {f"2.{name}": f"1.{name}" for name in ("a_pos", "a_neg", "hinges")}
    assert type(fused[2]) is nn.Identity


def test_a_copy_is_fused_unless_told_otherwise() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), Splash())
    fused = fuse(network)
    assert type(network[0]) is nn.BatchNorm1d
    assert type(fused[0]) is BatchNormSplash
    assert fused[0].a_pos is not network[1].a_pos


OPTIONS: dict[str, tuple[dict[str, object], dict[str, object]]] = {
    "norm": ({"eps": 0.1, "momentum": 0.4}, {}),
    "without weights": ({"affine": False}, {}),
    "without statistics": ({"track_running_stats": False}, {}),
    "by channel": ({}, {"share": "channel", "features": 6}),
    "hinges": ({}, {"hinges": (0.0, 0.3, 1.7)}),
    "scale": ({}, {"grad_scale": 0.5}),
    "constraint": ({}, {"constraint": "negative"}),
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options_of_both_are_kept(name: str) -> None:
    of_norm, of_unit = OPTIONS[name]
    torch.manual_seed(0)
    network = nn.Sequential(nn.BatchNorm2d(6, **of_norm), Splash(init="random", **of_unit))
    x, y = torch.randn(4, 6, 5, 5), torch.randn(4, 6, 5, 5)
    fused = fuse(network)
    assert (count(fused, BatchNormSplash), count(fused, Splash)) == (1, 0)
    for each in (network, fused):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.01)
        for _ in range(3):
            optimizer.zero_grad()
            (each(x) - y).square().sum().backward()
            optimizer.step()
    torch.testing.assert_close(fused(x), network(x), rtol=1e-4, atol=1e-5)
    for slopes in ("a_pos", "a_neg"):
        torch.testing.assert_close(
            getattr(fused[0], slopes), getattr(network[1], slopes), rtol=1e-4, atol=1e-6
        )
    assert fused[0].extra_repr().partition(", ")[2].endswith(network[1].extra_repr())


def test_fixed_and_folded_slopes_stay_so() -> None:
    made = nn.Sequential(nn.BatchNorm1d(3), Splash(init="random"))
    frozen = fuse(freeze_shapes(copy.deepcopy(made)))
    assert not frozen[0].a_pos.requires_grad
    assert frozen[0].weight.requires_grad
    folded = fuse(fold(made.eval()))
    assert "0.a_pos" in dict(folded.named_buffers())
    assert [name for name, _ in folded.named_parameters()] == ["0.weight", "0.bias"]
    x = torch.randn(7, 3)
    torch.testing.assert_close(folded(x), made(x), rtol=1e-5, atol=1e-6)


def test_devices_types_and_modes_stay() -> None:
    network = nn.Sequential(nn.BatchNorm2d(3), Splash()).bfloat16()
    network[0].eval()  # as fine-tuning with frozen statistics has it
    fused = fuse(network)
    assert not fused[0].training
    assert fused[0].a_pos.dtype == fused[0].weight.dtype == torch.bfloat16
    x = torch.randn(2, 3, 4, 4).bfloat16()
    torch.testing.assert_close(fused(x), network(x), rtol=2e-2, atol=1e-2)


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.unit, self.other = nn.BatchNorm1d(3), Splash(), Splash()

    def forward(self, x: Tensor) -> Tensor:
        return self.unit(self.norm(x))


class NormReadTwice(Twice):
    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(x)
        return self.unit(z) + z


class NormWithTwoUnits(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.unit(self.norm(x)) + self.other(self.norm(x))


class UnitUsedTwice(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.unit(self.norm(x)) + self.unit(x)


class InTrainingOnly(Twice):
    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(x)
        return self.unit(z) if self.training else z


class NormByName(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.unit(self.norm(input=x))


class UnitIsRead(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.unit(self.norm(x)) * self.unit.a_pos.sum()


class UnitIsHandedOn(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.inner = CallsWhatItGets()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.unit(self.norm(x)), self.unit)


class CallsWhatItGets(nn.Module):
    def forward(self, x: Tensor, unit: nn.Module) -> Tensor:
        return unit(x)


class InAList(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.norms = [self.norm]

    def forward(self, x: Tensor) -> Tensor:
        for norm in self.norms:
            x = self.unit(norm(x))
        return x


class Nothing(nn.Sequential):
    """Without children, and so false where asked for truth."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


def forward_of_its_own(where: int | None) -> nn.Module:
    network = nn.Sequential(nn.BatchNorm1d(3), Splash())
    module = network if where is None else network[where]
    module.forward = MethodType(lambda self, x: x + 1, module)
    return network


def follows_no_more() -> nn.Module:
    network = nn.Sequential(nn.BatchNorm1d(3), Splash())
    network[0].track_running_stats = False
    return network


class Untraceable(Twice):
    def forward(self, x: Tensor) -> Tensor:
        return self.unit(self.norm(x)) if x.sum() > 0 else x


class ReachesIn(nn.Module):
    """Can't be traced, and may call what is in its children by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.BatchNorm1d(3), Splash())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner[0](x) if x.sum() > 0 else self.inner(x)


class NormOfItsOwn(nn.BatchNorm1d):
    pass


class IdentityBetween(Twice):
    """timm's blocks have one where they may drop something."""

    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.unit(self.drop(self.drop(self.norm(x))))


FUSED: dict[str, Callable[[], nn.Module]] = {
    "an identity between": IdentityBetween,
    "identities in a chain": lambda: nn.Sequential(
        nn.Identity(), nn.BatchNorm1d(3), nn.Identity(), Splash(), nn.Identity()
    ),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_does_not_stand_in_the_way(name: str) -> None:
    torch.manual_seed(0)
    network = bent(FUSED[name]())
    fused = fuse(network)
    assert count(fused, BatchNormSplash) == 1
    x = torch.randn(7, 3) - 1
    torch.testing.assert_close(fused(x), network(x), rtol=1e-4, atol=1e-5)


def identity_with_hook() -> nn.Module:
    network = IdentityBetween()
    network.drop.register_forward_hook(lambda *_: None)
    return network


def hooked() -> nn.Module:
    network = nn.Sequential(nn.BatchNorm1d(3), Splash())
    network[0].register_forward_hook(lambda *_: None)
    return network


def tied() -> nn.Module:
    norm = nn.BatchNorm1d(3)
    return nn.Sequential(norm, Splash(), norm, Splash())


STAY: dict[str, Callable[[], nn.Module]] = {
    "norm read twice": NormReadTwice,
    "norm with two units": NormWithTwoUnits,
    "unit used twice": UnitUsedTwice,
    "in training only": InTrainingOnly,
    "untraceable": Untraceable,
    "inside of an untraceable": ReachesIn,
    "norm by name": NormByName,
    "unit is read": UnitIsRead,
    "unit is handed on": UnitIsHandedOn,
    "norm in a list": InAList,
    "falsy between": lambda: nn.Sequential(nn.BatchNorm1d(3), Nothing(), Splash()),
    "norm with a forward of its own": lambda: forward_of_its_own(0),
    "unit with a forward of its own": lambda: forward_of_its_own(1),
    "chain with a forward of its own": lambda: forward_of_its_own(None),
    "statistics that stay": follows_no_more,
    "hooked": hooked,
    "hooked between": identity_with_hook,
    "tied": tied,
    "a class of its own": lambda: nn.Sequential(NormOfItsOwn(3), Splash()),
    "each neuron": lambda: nn.Sequential(nn.BatchNorm1d(3), Splash(share="unit", features=3)),
    "something between": lambda: nn.Sequential(nn.BatchNorm1d(3), nn.Dropout(0.1), Splash()),
    "a unit alone": Splash,
    "nothing": lambda: nn.Linear(3, 3),
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays_as_it_is(name: str) -> None:
    network = STAY[name]()
    fused = fuse(network)
    assert str(fused) == str(network)
    assert fused.state_dict().keys() == network.state_dict().keys()
    x, outputs = torch.randn(7, 3), []
    for each in (fused, network):
        torch.manual_seed(1)  # for a dropout
        outputs.append(each(x))
    torch.testing.assert_close(*outputs)


def test_networks_without_memory() -> None:
    with torch.device("meta"):
        network = nn.Sequential(nn.BatchNorm1d(3), Splash())
    fused = fuse(network)
    assert type(fused[0]) is BatchNormSplash
    assert all(tensor.is_meta for tensor in fused.state_dict().values())


def test_hinges_that_16_bits_do_not_tell_apart() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), Splash(hinges=(0.0, 1.0, 1.001))).bfloat16()
    assert torch.equal(fuse(network)[0].hinges, network[1].hinges)


def test_fusing_twice_changes_nothing() -> None:
    once = fuse(convert(Network()))
    assert str(fuse(once)) == str(once)


def test_it_takes_modules_only() -> None:
    with pytest.raises(TypeError, match=r"fuse needs a torch\.nn\.Module, got 3"):
        fuse(3)
