"""BatchNormSplash beside nn.BatchNorm and Splash: statistics, states, and what it refuses."""

import copy
from collections import OrderedDict
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from splash_units import BatchNormSplash, Splash

NORMS = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


@pytest.fixture(params=["as chosen", "reference"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPLASH_KERNEL", raising=False)
    if request.param == "reference":
        monkeypatch.setenv("SPLASH_KERNEL", "reference")


def pair(
    rank: int, channels: int = 3, share: str = "layer", **options: object
) -> tuple[BatchNormSplash, nn.Sequential]:
    """One of ours, and batch norm and unit in a row with the same values."""
    torch.manual_seed(0)
    fused = BatchNormSplash(channels, init="random", share=share, **options)
    if fused.weight is not None:
        nn.init.normal_(fused.weight)
        nn.init.normal_(fused.bias)
    features = None if share == "layer" else channels
    apart = nn.Sequential(NORMS[rank](channels, **options), Splash(share=share, features=features))
    apart[0].load_state_dict(fused.state_dict(), strict=False)
    apart[1].load_state_dict({n: getattr(fused, n) for n in ("a_pos", "a_neg", "hinges")})
    return fused, apart


def batches(*shape: int, dtype: torch.dtype = torch.float32) -> Iterator[Tensor]:
    """Batches that differ in mean and spread."""
    generator = torch.Generator().manual_seed(1)
    for step in range(4):
        yield (step + (step + 1) * torch.randn(shape, generator=generator)).to(dtype)


def assert_same_statistics(ours: nn.Module, theirs: nn.Module) -> None:
    for name in STATISTICS:
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert (mine is None) == (other is None)
        if mine is not None:
            torch.testing.assert_close(mine, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("share", ["layer", "channel"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("tracked", [True, False])
@pytest.mark.parametrize("momentum", [None, 0.0, 0.5, 1])
def test_trains_and_evaluates_as_the_two_in_a_row(
    momentum: float | None, tracked: bool, affine: bool, share: str
) -> None:
    options = {"momentum": momentum, "affine": affine, "track_running_stats": tracked}
    fused, apart = pair(4, share=share, **options)
    for training in (True, False):
        for x in batches(6, 3, 2, 5):
            outcomes = []
            for network in (fused.train(training), apart.train(training)):
                z = x.clone().requires_grad_()
                y = network(z)
                outcomes.append([y, *torch.autograd.grad(y.sin().sum(), [z, *learned(network)])])
            for ours, theirs in zip(*outcomes, strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
            assert_same_statistics(fused, apart[0])


def learned(network: nn.Module) -> list[nn.Parameter]:
    """Parameters in one order, whoever owns them."""
    by_name = {name.rpartition(".")[2]: p for name, p in network.named_parameters()}
    return [by_name[n] for n in ("weight", "bias", "a_pos", "a_neg") if n in by_name]


@pytest.mark.parametrize("shape", [(8, 3), (4, 3, 5), (2, 3, 2, 3, 4), (1, 3, 2, 2)])
@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str
)
def test_statistics_of_any_rank_and_dtype(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    fused, apart = pair(len(shape))
    wide = dtype if dtype == torch.float64 else torch.float32
    fused.to(wide)
    apart.to(wide)
    for x in batches(*shape, dtype=dtype):
        assert fused(x).dtype == apart(x).dtype == dtype
        assert_same_statistics(fused, apart[0])


def test_no_elements_leave_statistics_as_they_are() -> None:
    fused, apart = pair(2)
    for network in (fused, apart):
        y = network(torch.empty(0, 3))
        assert y.shape == (0, 3)
        y.sum().backward()
    assert_same_statistics(fused, apart[0])


def test_compiled_no_elements_are_none() -> None:
    fused, _ = pair(2)
    compiled = torch.compile(fused, backend="eager")
    assert compiled(torch.empty(0, 3)).shape == (0, 3)
    torch._dynamo.reset()


@pytest.mark.parametrize("shape", [(1, 3), (1, 3, 1, 1)])
def test_one_value_a_channel_is_refused_before_anything_moves(shape: tuple[int, ...]) -> None:
    fused = BatchNormSplash(3)
    before = copy.deepcopy(fused.state_dict())
    with pytest.raises(ValueError, match="one value a channel"):
        fused(torch.randn(shape))
    assert all(torch.equal(t, before[name]) for name, t in fused.state_dict().items())
    assert fused.eval()(torch.randn(shape)).shape == shape


@pytest.mark.parametrize("shape", [(3,), (4, 2), (1, 1, 1, 1, 1, 3)])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"expected \(N, 3\).*got an input of shape"):
        BatchNormSplash(3)(torch.randn(shape))


# --- states -----------------------------------------------------------------------------------


def trained_norm() -> nn.BatchNorm2d:
    norm = nn.BatchNorm2d(3)
    nn.init.normal_(norm.weight)
    for x in batches(4, 3, 2, 2):
        norm(x)
    return norm


def test_a_state_goes_from_batch_norm_and_back() -> None:
    norm, fused = trained_norm(), BatchNormSplash(3, init="tanh")
    shape = fused.a_pos.detach().clone()
    fused.load_state_dict(norm.state_dict())
    assert torch.equal(fused.a_pos, shape)
    back = nn.BatchNorm2d(3)
    left = back.load_state_dict(fused.state_dict(), strict=False)
    assert left.missing_keys == []
    assert sorted(left.unexpected_keys) == ["a_neg", "a_pos", "hinges"]
    assert all(torch.equal(t, norm.state_dict()[name]) for name, t in back.state_dict().items())


def test_a_state_from_before_batches_were_counted() -> None:
    """nn.BatchNorm2d takes one, and so must what replaces it."""
    fused = nn.Sequential(BatchNormSplash(3))
    old = OrderedDict(nn.Sequential(trained_norm()).state_dict())  # without its version
    del old["0.num_batches_tracked"]
    fused.load_state_dict(old)
    assert torch.equal(fused[0].running_var, old["0.running_var"])
    assert fused[0].num_batches_tracked == 0


@pytest.mark.parametrize("name", ["a_pos", "hinges", "running_mean", "num_batches_tracked"])
def test_a_state_that_lacks_something_is_refused(name: str) -> None:
    state = BatchNormSplash(3).state_dict()
    del state[name]
    with pytest.raises(RuntimeError, match=f'Missing key.*"{name}"'):
        BatchNormSplash(3).load_state_dict(state)


@pytest.mark.parametrize("training", [True, False])
def test_made_from_a_batch_norm(training: bool) -> None:
    norm = trained_norm().train(training)
    fused = BatchNormSplash.from_batch_norm(norm)
    assert fused.training == training
    x = torch.randn(4, 3, 2, 2)
    torch.testing.assert_close(fused(x), torch.relu(norm(x)), rtol=1e-5, atol=1e-6)
