"""`convert`: what can't be converted, and what is refused."""

import random
import warnings
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from convertible import Block, Calls, OwnActivation, same_outputs, units_of
from splash_units import Splash, catalogue, rivals
from splash_units.convert import EXACT, convert


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def helper(x: Tensor) -> Tensor:
    return F.relu(x)


class DataDependent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.act = nn.ReLU()
        self.inner = Calls()

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.layer(x))
        if x.sum() > 0:
            x = F.relu(x)  # left
        x = helper(self.inner(x))
        return self.act(x.relu())  # left


def test_what_torch_fx_cannot_trace_is_converted_as_far_as_modules_go() -> None:
    model = DataDependent().eval()
    network, report = convert(model, return_report=True)
    assert len(units_of(network)) == 1 + 9
    called = {(item.what, item.where.rpartition(":")[0]) for item in report.left}
    assert called == {("F.relu", __file__), ("x.relu", __file__)}
    lines = Path(__file__).read_text().split("\n")
    for item in report.left:
        line = lines[int(item.where.rpartition(":")[2]) - 1]
        assert "# left" in line or line == "    return F.relu(x)"
        assert "DataDependent: torch.fx can't trace it" in item.why
    assert "called 2 times" in report.changed[0].notes[0]
    assert same_outputs(model, network, torch.randn(9, 6))
    with pytest.warns(UserWarning, match="stay as they are"):
        convert(model)


class SetsAttribute(Calls):
    def forward(self, x: Tensor) -> Tensor:
        self.seen = super().forward(x)
        return self.seen


class Appends(Calls):
    def __init__(self) -> None:
        super().__init__()
        self.log: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.log.append(x)
        return super().forward(x)


class Draws(Calls):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) if random.random() < 0.5 else F.relu(x)


class MakesTensor(Calls):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.arange(6.0))


class MakesNoise(Calls):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + torch.randn(6))


class NoGrad(Calls):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            return super().forward(x)


class NoAutocast(Calls):
    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return super().forward(x)


class AsksType(Calls):
    def forward(self, x: Tensor | list[Tensor]) -> Tensor:
        return super().forward(x if isinstance(x, Tensor) else x[0])


class AsksTorchForTheType(Calls):
    def forward(self, x: Tensor | list[Tensor]) -> Tensor:
        return super().forward(x if torch.is_tensor(x) else x[0])


class TakesAny(Calls):
    def forward(self, *x: Tensor) -> Tensor:
        return super().forward(x[0])


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * x

    @staticmethod
    def backward(ctx: object, grad: Tensor) -> Tensor:
        return grad


class OwnGradient(Calls):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(Square.apply(x))


UNTRACEABLE = {
    SetsAttribute: "sets its own attribute seen",
    Appends: "sets its own attribute log",
    Draws: "draws random numbers",
    MakesTensor: "makes a tensor of its own",
    MakesNoise: "draws random numbers",
    NoGrad: "gradient or autocast context",
    NoAutocast: "gradient or autocast context",
    AsksType: "asks for the type",
    AsksTorchForTheType: "asks for the type",
    TakesAny: "takes *x",
    OwnGradient: "gradient or autocast context",
}


@pytest.mark.parametrize("model_class", UNTRACEABLE, ids=lambda c: c.__name__)
def test_what_a_graph_would_lose_is_left_and_the_model_undisturbed(
    model_class: type[nn.Module],
) -> None:
    model = model_class()
    state, random_state, generator = dict(vars(model)), random.getstate(), torch.get_rng_state()
    network, report = convert(model, return_report=True, copy=False)
    assert network is model
    assert type(model) is model_class
    assert not report.changed
    assert len(report.left) >= 9
    for item in report.left:
        assert UNTRACEABLE[model_class] in item.why
    assert vars(model).keys() == state.keys()
    assert getattr(model, "log", []) == []
    assert random.getstate() == random_state
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_forward_without_source_is_named() -> None:
    scope: dict[str, object] = {"nn": nn, "F": F}
    exec(
        "class Typed(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return F.relu(x) if x.sum() > 0 else x\n",
        scope,
    )
    _, report = convert(scope["Typed"](), return_report=True)
    assert "source isn't at hand" in report.left[0].why


def test_torchscript_is_left() -> None:
    with warnings.catch_warnings():
        # torch 2.13 calls TorchScript deprecated; networks compiled with it exist.
        warnings.simplefilter("ignore", DeprecationWarning)
        scripted = torch.jit.script(nn.Sequential(nn.Linear(2, 2), OwnActivation()))
    network, report = convert(nn.Sequential(scripted, nn.ReLU()), return_report=True)
    assert list(units_of(network)) == ["1"]
    assert [item.path for item in report.left] == ["0"]
    assert "compiled by TorchScript" in report.left[0].why


# -- bad input --


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"from_": nn.Sigmoid}, ValueError, "unknown from_ Sigmoid: choose among.*ReLU.*Tanh"),
        ({"from_": nn.Linear}, ValueError, "unknown from_ Linear"),
        ({"from_": ("relu",)}, ValueError, "unknown from_ 'relu'"),
        ({"from_": ()}, ValueError, "from_ is empty"),
        ({"to": "splash"}, TypeError, "to must be a class.*'splash'"),
        ({"to": Splash()}, TypeError, "a unit of its own: let to be the class Splash"),
        ({"to": lambda: 3}, TypeError, "to must make modules"),
        ({"to": catalogue.unit("maxout", k=3)}, ValueError, "3 inputs for each output"),
        ({"to": rivals.PReLU}, ValueError, "^1: .*example_inputs"),
        ({"reused": "shared"}, ValueError, "unknown reused 'shared'"),
        ({"num_hinges": 6}, ValueError, "^1: num_hinges must be odd"),
        ({"share": "channel", "dim": 7, "example_inputs": torch.ones(1, 2)}, ValueError, "7"),
        ({"nonsense": 1}, TypeError, "nonsense"),
    ],
)
def test_bad_arguments(arguments: dict[str, object], error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        convert(nn.Sequential(nn.Linear(2, 2), nn.ReLU()), **arguments)


def test_a_factory_that_repeats_itself() -> None:
    unit = Splash()
    with pytest.raises(ValueError, match="gave one twice"):
        convert(nn.Sequential(nn.ReLU(), nn.ReLU()), lambda: unit)


def test_not_a_module() -> None:
    with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
        convert(torch.ones(2))


def test_nothing_to_convert() -> None:
    with pytest.raises(ValueError, match=r"Linear has no activation among ReLU.*nor any other"):
        convert(nn.Linear(2, 2))
    with pytest.raises(ValueError, match=r"it has GELU, SiLU: name them in from_"):
        convert(nn.Sequential(nn.SiLU(), nn.GELU(), nn.SiLU()))
    network, report = convert(nn.Linear(2, 2), return_report=True)
    assert isinstance(network, nn.Linear)
    assert not report.changed
    assert "changed: 0" in str(report)


def test_what_is_not_zero_at_zero_is_left_and_the_report_says_why() -> None:
    model = nn.Sequential(nn.Hardtanh(1.0, 2.0), nn.ReLU())
    network, report = convert(model, return_report=True)
    assert isinstance(network[0], nn.Hardtanh)
    assert "it is 1 at 0" in report.left[0].why


def test_computed_arguments_are_left_and_the_report_says_so() -> None:
    class Computed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.slope = nn.Parameter(torch.tensor([0.3]))

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(F.prelu(x, self.slope))

    network, report = convert(Computed(), return_report=True)
    assert len(units_of(network)) == 1
    (left,) = report.left
    assert left.what == "prelu"
    assert "tensors of the network" in left.why


def test_calls_of_other_kinds_are_ignored_and_the_report_says_so() -> None:
    class Smooth(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.tanh(F.gelu(F.relu(x)))

    _, report = convert(Smooth(), return_report=True)
    assert len(report.changed) == 1
    assert [item.what for item in report.ignored] == ["GELU(approximate='none')", "Tanh()"]
    assert {item.why for item in report.ignored} == {"it is not among from_"}


def test_an_activation_that_nobody_calls_gets_no_slopes() -> None:
    class Spare(Block):
        def __init__(self) -> None:
            super().__init__()
            self.spare = nn.ReLU()

    network, report = convert(Spare(), return_report=True)
    assert isinstance(network.spare, nn.ReLU)
    assert [(item.path, item.what) for item in report.left] == [("spare", "ReLU()")]
    assert "no forward calls it" in report.left[0].why


def test_clamps_are_not_activations() -> None:
    class Clamps(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x).clamp(0, 1) + x.clamp(min=0)

    _, report = convert(Clamps(), return_report=True)
    assert len(report.changed) == 1
    assert not report.left


def test_an_example_that_does_not_get_everywhere() -> None:
    class Auxiliary(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(x) if self.training else x

    with pytest.raises(ValueError, match=r"^relu_1: the example inputs don't get there"):
        convert(Auxiliary(), share="channel", example_inputs=torch.ones(2, 3))


def test_a_prelu_for_units_that_cannot_have_channels() -> None:
    with pytest.raises(ValueError, match="slope for each of 3 channels"):
        convert(nn.PReLU(3), lambda: Splash())


def test_a_report_reads_well() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.SiLU(), nn.Tanh(), nn.Tanh(), DataDependent())
    _, report = convert(model, from_=(*EXACT, nn.SiLU), return_report=True)
    text = str(report)
    assert "1: SiLU() -> Splash(" in text
    assert "off by at most 0.0239 on [-8, 8]" in text
    assert "left: 3" in text
    assert "not among from_: Tanh (2)" in text
