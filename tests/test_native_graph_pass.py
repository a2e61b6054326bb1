"""In a compiled graph batch norm and the unit behind it are one operator, and nothing else is.

And the gradient of a bias in front of them is not summed up a second time.
"""

import copy
import math
from collections.abc import Callable, Iterator
from importlib import import_module
from types import ModuleType

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves

from splash_units import BatchNormSplash, Splash, convert, splash
from splash_units.kernels import native

if native.load() is None:
    pytest.skip(f"no CPU kernel here: {native.why_not()}", allow_module_level=True)


def late(module: str) -> ModuleType:
    """Imported when a test runs: it brings triton along, whose interpreter others choose before."""
    return import_module(module)


GRAPH_PASS, CONFIG = "splash_units.kernels.native.graph_pass", "torch._inductor.config"
TOGETHER = torch.ops.splash_units.batch_norm_splash.default
APART = torch.ops.splash_units.splash.default


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def merged(model: Callable[..., object], dynamic: bool = False) -> tuple[Callable, list[object]]:
    """The model as a graph that went through the pass, and which operators its graphs have."""
    found: list[object] = []

    def backend(module: fx.GraphModule, _: object) -> Callable[..., object]:
        late(GRAPH_PASS).MergeBatchNorm()(module.graph)
        module.graph.lint()
        module.recompile()
        found.extend(n.target for n in module.graph.nodes if n.target in (TOGETHER, APART))
        return module.forward

    compiled = torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic)
    return compiled, found


def without_sums(model: nn.Module, dynamic: bool = False) -> tuple[Callable, list[object]]:
    """The model with a backward that went through the pass, and the sums that are left there."""
    common, compilers = late("torch._dynamo.backends.common"), late("functorch.compile")
    found: list[object] = []

    def forward(module: fx.GraphModule, _: object) -> Callable[..., object]:
        return compilers.make_boxed_func(module.forward)

    def backward(module: fx.GraphModule, _: object) -> Callable[..., object]:
        late(GRAPH_PASS).TakeSumOfGradient()(module.graph)
        module.graph.lint()
        module.recompile()
        sums = module.graph.find_nodes(op="call_function", target=torch.ops.aten.sum.dim_IntList)
        found.extend(sums)
        return compilers.make_boxed_func(module.forward)

    backend = common.aot_autograd(fw_compiler=forward, bw_compiler=backward)
    return torch.compile(model, fullgraph=True, backend=backend, dynamic=dynamic), found


def everything(model: Callable[..., Tensor], owner: nn.Module, x: Tensor) -> list[Tensor]:
    """Output, gradients, and what batch norm has counted."""
    x = x.detach().clone().requires_grad_()
    y = model(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
    wanted = [x, *owner.parameters()]
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), wanted), *owner.buffers()]


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "matrix": (lambda: nn.Sequential(nn.BatchNorm1d(6), Splash(init="random")), (16, 6)),
    "sequence": (lambda: nn.Sequential(nn.BatchNorm1d(6), Splash(init="random")), (8, 6, 5)),
    "images": (lambda: nn.Sequential(nn.BatchNorm2d(6), Splash(init="random")), (4, 6, 5, 7)),
    "volumes": (
        lambda: nn.Sequential(nn.BatchNorm3d(6), Splash(init="random")),
        (3, 6, 2, 3, 4),
    ),
    "by channel": (
        lambda: nn.Sequential(
            nn.BatchNorm2d(6), Splash(init="random", share="channel", features=6)
        ),
        (4, 6, 5, 7),
    ),
    "without weights": (
        lambda: nn.Sequential(nn.BatchNorm2d(6, affine=False), Splash(init="random")),
        (4, 6, 5, 7),
    ),
    "without statistics": (
        lambda: nn.Sequential(nn.BatchNorm2d(6, track_running_stats=False), Splash(init="random")),
        (4, 6, 5, 7),
    ),
    "other numbers": (
        lambda: nn.Sequential(
            nn.BatchNorm2d(6, eps=0.5, momentum=0.3), Splash(init="random", grad_scale=0.25)
        ),
        (4, 6, 5, 7),
    ),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", NETWORKS)
def test_both_are_one_operator_in_training_and_compute_the_same(
    name: str, training: bool, dynamic: bool
) -> None:
    torch.manual_seed(0)
    make, shape = NETWORKS[name]
    network = make().train(training)
    for parameter in network[0].parameters():
        nn.init.normal_(parameter, 1.0, 0.3)
    apart, x = copy.deepcopy(network), 1 + 2 * torch.randn(shape)
    compiled, found = merged(network, dynamic)
    for _ in range(2):
        got, expected = everything(compiled, network, x), everything(apart, apart, x)
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-5)
    by_batch = training or network[0].running_mean is None
    assert found == [TOGETHER if by_batch else APART]


def test_a_converted_network() -> None:
    torch.manual_seed(0)
    network = convert(
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU()
        )
    )
    compiled, found = merged(network)
    x = torch.randn(3, 1, 8, 8)
    torch.testing.assert_close(compiled(x), copy.deepcopy(network)(x), rtol=1e-5, atol=1e-6)
    assert found == [TOGETHER, APART]


class Apart(nn.Module):
    """Batch norm and a unit that must stay two."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        self.norm, self.unit = nn.BatchNorm2d(3), Splash(init="random", **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.unit(self.norm(x))


class ReadTwice(Apart):
    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(x)
        return self.unit(z) + z


class Added(Apart):
    def forward(self, x: Tensor) -> Tensor:
        return self.unit(self.norm(x) + x)


class Returned(Apart):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.norm(x)
        return self.unit(z), z


class InputChangesBetween(Apart):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = x.clone()
        z = self.norm(x)
        x.add_(1)
        return self.unit(z), x


class OtherContext(Apart):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.norm(x)
        with torch.no_grad():
            h = self.unit(z)
        return h, x * 2


class AlsoASlope(Apart):
    """What the norm gives is x and slopes."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm(x)
        return splash(z, z, z, torch.tensor([0.0, 1.0, 2.0]))


class StatisticsAreSlopes(Apart):
    def forward(self, x: Tensor) -> Tensor:
        statistics = self.norm.running_mean
        return splash(self.norm(x), statistics, statistics, torch.tensor([0.0, 1.0, 2.0]))


class ReadBetween(Apart):
    """Batch norm has moved the statistics by then."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.norm(x)
        mean = self.norm.running_mean.clone()
        return self.unit(z), mean


STAY_APART: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "read twice": (ReadTwice, (4, 3, 5, 5)),
    "added to": (Added, (4, 3, 5, 5)),
    "returned": (Returned, (4, 3, 5, 5)),
    "x changes between": (InputChangesBetween, (4, 3, 5, 5)),
    "in another context": (OtherContext, (4, 3, 5, 5)),
    "a slope, too": (AlsoASlope, (3, 3)),
    "statistics are slopes": (StatisticsAreSlopes, (4, 3, 5, 5)),
    "read between": (ReadBetween, (4, 3, 5, 5)),
    "each neuron": (lambda: Apart(share="unit", features=(3, 5, 5)), (4, 3, 5, 5)),
    "another dimension": (lambda: Apart(share="channel", features=3, dim=-1), (4, 3, 5, 3)),
}


@pytest.mark.parametrize("name", STAY_APART)
def test_what_stays_apart(name: str) -> None:
    torch.manual_seed(0)
    make, shape = STAY_APART[name]
    network = make()
    before = copy.deepcopy(network)
    compiled, found = merged(network)
    x = torch.randn(shape, requires_grad=True)
    got, expected = compiled(x), before(x)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)
    assert [t.requires_grad for t in tree_leaves(got)] == [
        t.requires_grad for t in tree_leaves(expected)
    ]
    assert found == [APART]


@pytest.mark.filterwarnings("ignore:`torch.jit.script.*is deprecated:DeprecationWarning")
def test_torchs_own_compiler_does_it_beside_what_others_ask() -> None:
    seen: list[fx.Graph] = []
    with late(CONFIG).patch(pre_grad_custom_pass=seen.append, fx_graph_cache=False):
        torch.manual_seed(0)
        network = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), Splash(init="random"))
        apart, x = copy.deepcopy(network), torch.randn(3, 1, 8, 8)
        y, (code,) = late("torch._inductor.utils").run_and_get_code(torch.compile(network), x)
        late(GRAPH_PASS).install()
        passes = late(CONFIG).pre_grad_custom_pass
    torch.testing.assert_close(y, apart(x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(network[1].running_var, apart[1].running_var)
    assert "splash_units.batch_norm_splash.default" in code
    assert "splash_units.splash.default" not in code
    assert len(seen) == 1
    assert [type(each) for each in passes[1:]] == [late(GRAPH_PASS).MergeBatchNorm]


class BiasInFront(nn.Module):
    def __init__(self, **options: object) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(5, 6), BatchNormSplash(6, init="random", **options)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x))


class RowInFront(BiasInFront):
    """Its sum keeps the dimension."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.linear = nn.Linear(5, 6, bias=False)
        self.bias = nn.Parameter(torch.linspace(-1, 1, math.prod(shape)).reshape(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x) + self.bias)


class TwoInFront(BiasInFront):
    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-1, 1, 6).reshape(shape))

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x) + self.bias)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        BiasInFront,
        lambda: RowInFront(6),
        lambda: RowInFront(1, 6),
        lambda: BiasInFront(share="channel"),
        lambda: BiasInFront(affine=False),
        lambda: BiasInFront(track_running_stats=False),
    ],
    ids=["bias", "vector", "row", "by channel", "without weights", "without statistics"],
)
def test_the_gradient_of_a_bias_in_front(
    make: Callable[[], BiasInFront], training: bool, dynamic: bool
) -> None:
    torch.manual_seed(0)
    network = make().double().train(training)
    apart, x = copy.deepcopy(network), torch.randn(16, 5, dtype=torch.float64)
    compiled, left = without_sums(network, dynamic)
    got, expected = everything(compiled, network, x), everything(apart, apart, x)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)
    assert not left
    names = [name for name, _ in network.named_parameters()]
    of_bias = got[2 + next(i for i, name in enumerate(names) if name in ("bias", "linear.bias"))]
    moves_with_batch = training or network.norm.running_mean is None
    assert bool((of_bias == 0).all()) is moves_with_batch


@pytest.mark.parametrize("training", [True, False])
def test_a_gradient_of_a_bias_that_is_nan(training: bool) -> None:
    torch.manual_seed(0)
    network = BiasInFront().train(training)
    apart, x = copy.deepcopy(network), torch.randn(16, 5)
    for each in (network, apart):
        with torch.no_grad():
            each.linear.weight[2, 3] = torch.nan
    compiled, left = without_sums(network)
    got, expected = everything(compiled, network, x), everything(apart, apart, x)
    assert not left
    assert bool(network.linear.bias.isnan().any()) is False
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours.isnan(), theirs.isnan())


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_gradient_that_is_not_finite_where_batch_norms_weight_is_zero(value: float) -> None:
    torch.manual_seed(0)
    network = BiasInFront()
    network.norm.weight.data[3] = 0
    apart, x, grad = copy.deepcopy(network), torch.randn(16, 5), torch.randn(16, 6)
    grad[7, 3] = value
    compiled, left = without_sums(network)
    for call in (compiled, apart):
        call(x).backward(grad)
    assert not left
    for ours, theirs in zip(network.parameters(), apart.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        torch.testing.assert_close(ours.grad.isnan(), theirs.grad.isnan())


class ImagesInFront(BiasInFront):
    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x).unsqueeze(-1).expand(-1, -1, 3))


@pytest.mark.parametrize(
    ("make", "dtype", "tolerance"),
    [
        (ImagesInFront, torch.float64, 1e-9),
        (lambda: RowInFront(16, 1), torch.float64, 1e-9),
        (lambda: TwoInFront(6), torch.float64, 1e-9),
        (lambda: TwoInFront(1, 6), torch.float64, 1e-9),
        (BiasInFront, torch.bfloat16, 0.05),
    ],
    ids=["another shape", "another sum", "two biases", "bias and row", "bfloat16"],
)
def test_what_is_still_summed_up(
    make: Callable[[], BiasInFront], dtype: torch.dtype, tolerance: float
) -> None:
    torch.manual_seed(0)
    network = make()
    network.linear.to(dtype)
    if dtype is torch.float64:
        network.to(dtype)
    apart, x = copy.deepcopy(network), torch.randn(16, 5, dtype=dtype)
    compiled, left = without_sums(network)
    got, expected = everything(compiled, network, x), everything(apart, apart, x)
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)
    assert left


@pytest.mark.filterwarnings("ignore:`torch.jit.script.*is deprecated:DeprecationWarning")
@pytest.mark.parametrize(
    "make",
    [BiasInFront, lambda: TwoInFront(6), lambda: TwoInFront(1, 6)],
    ids=["one", "two", "bias and row"],
)
def test_gradients_that_add_up_and_are_changed_in_place(make: Callable[[], BiasInFront]) -> None:
    torch.manual_seed(0)
    network = make().eval()  # where the gradients of biases are not zero
    apart, x = copy.deepcopy(network), torch.randn(16, 5)
    with late(CONFIG).patch(fx_graph_cache=False):
        compiled = torch.compile(network)
        for module, call in ((network, compiled), (apart, apart)):
            for _ in range(2):
                call(x).sum().backward()
            nn.utils.clip_grad_norm_(module.parameters(), 0.5)
    for ours, theirs in zip(network.parameters(), apart.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)


@pytest.mark.filterwarnings("ignore:`torch.jit.script.*is deprecated:DeprecationWarning")
def test_torchs_own_compiler_sums_up_no_bias_in_front() -> None:
    before: list[int] = []
    after: list[int] = []

    def count_into(counts: list[int]) -> Callable[[fx.Graph], None]:
        sums = torch.ops.aten.sum.dim_IntList
        return lambda graph: counts.append(len(graph.find_nodes(op="call_function", target=sums)))

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), Splash(init="random"))
    apart, x = copy.deepcopy(network), torch.randn(16, 5)
    options = {
        "post_grad_custom_pre_pass": count_into(before),
        "post_grad_custom_post_pass": count_into(after),
    }
    with late(CONFIG).patch(**options, fx_graph_cache=False):
        got = everything(torch.compile(network), network, x)
        passes = late(CONFIG).post_grad_custom_pre_pass
    torch.testing.assert_close(got, everything(apart, apart, x), rtol=1e-4, atol=1e-5)
    assert [type(each) for each in passes[1:]] == [late(GRAPH_PASS).TakeSumOfGradient]
    assert (sum(before), sum(after)) == (1, 0)


def test_a_number_that_is_read_from_a_tensor_between() -> None:
    """It is what batch norm has left there, not what was there before."""
    norm, unit = nn.BatchNorm1d(1), Splash(init="random")

    def network(x: Tensor) -> tuple[Tensor, float]:
        z = norm(x)
        mean = norm.running_mean.item()
        return unit(z), mean

    x = 3 + torch.randn(8, 1)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled, found = merged(network)
        _, mean = compiled(x)
    assert float(mean) == pytest.approx(norm.running_mean.item())
    assert found == [APART]


def test_by_name() -> None:
    norm, unit = nn.BatchNorm1d(3), Splash(init="random")
    operator = torch.ops.splash_units.splash.default

    def network(x: Tensor) -> Tensor:
        return operator(x=norm(x), a_pos=unit.a_pos, a_neg=unit.a_neg, hinges=unit.hinges)

    compiled, found = merged(network)
    x = torch.randn(8, 3)
    torch.testing.assert_close(compiled(x), unit(copy.deepcopy(norm)(x)), rtol=1e-5, atol=1e-6)
    assert found == [TOGETHER]


def test_a_list_stays_the_list_that_its_owner_knows() -> None:
    mine: list[object] = []
    with late(CONFIG).patch(pre_grad_custom_pass=mine):
        late(GRAPH_PASS).install()
        late(GRAPH_PASS).install()
        assert late(CONFIG).pre_grad_custom_pass is mine
    assert [type(each) for each in mine] == [late(GRAPH_PASS).MergeBatchNorm]


@pytest.mark.filterwarnings("ignore:`torch.jit.script.*is deprecated:DeprecationWarning")
def test_a_compiled_evaluation_leaves_statistics_untouched() -> None:
    network = nn.Sequential(nn.BatchNorm1d(3), Splash(init="random")).eval()
    x = torch.randn(8, 3)
    eager = network(x)
    difference = eager - torch.compile(network)(x)
    difference.square().sum().backward()  # what the eager network has saved has not changed
    assert float(difference.detach().abs().max()) < 1e-5


def test_what_is_kept_on_disk_is_of_this_library(monkeypatch: pytest.MonkeyPatch) -> None:
    merge = late(GRAPH_PASS).MergeBatchNorm()
    now = merge.uuid()
    assert merge.uuid() == now
    other = native.Operators(native.load().library.with_name("other.so"))
    monkeypatch.setattr(native, "_outcome", other)
    assert merge.uuid() != now
