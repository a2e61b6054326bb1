"""The GPU kernel behind batch norm, against torch's batch norm and the plain equation."""

from dataclasses import dataclass, replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from oracle import assert_same_bits
from splash_units.kernels import reference
from triton_kernel import (
    DEVICE,
    OPERATORS,
    assert_passes_in_a_process_of_its_own,
    normal,
    on_device,
    runs_kernel,
    runs_no_kernel,
    slopes,
)

HINGES = torch.tensor([0.0, 1.0, 2.0, 2.5])
EPS = 1e-5
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


@dataclass(frozen=True)
class Case:
    """All that batch norm and the unit are given."""

    x: Tensor
    upstream: Tensor
    weight: Tensor | None
    bias: Tensor | None
    a_pos: Tensor
    a_neg: Tensor
    running_mean: Tensor | None
    running_var: Tensor | None
    training: bool = True
    momentum: float = 0.1
    grad_scale: float = 1.0

    def on(self, device: str, dtype: torch.dtype | None = None) -> "Case":
        moved = {
            name: value.detach().to(device, dtype, copy=True)
            for name, value in vars(self).items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)


@dataclass(frozen=True)
class Outcome:
    y: Tensor
    grads: tuple[Tensor, ...]  # of x, then weight and bias if there are, then the slopes
    running: tuple[Tensor | None, Tensor | None]


def case(
    *shape: int,
    dtype: torch.dtype = torch.float32,
    affine: bool = True,
    share: str = "layer",
    **how: bool | float,
) -> Case:
    channels = shape[1]
    own = (channels,) if share == "channel" else ()
    x = normal(*shape, seed=7) * 1.5 + torch.arange(channels).reshape(-1, *(1 for _ in shape[2:]))
    return Case(
        x.to(dtype),
        normal(*shape, dtype=dtype, seed=3),
        normal(channels, seed=4) if affine else None,
        normal(channels, seed=5) if affine else None,
        *slopes(4, *own),
        running_mean=normal(channels, seed=6),
        running_var=normal(channels, seed=8).abs() + 0.5,
        **how,  # type: ignore[arg-type]
    )


def gradients(y: Tensor, given: Case) -> tuple[Tensor, ...]:
    wanted = [given.x, given.weight, given.bias, given.a_pos, given.a_neg]
    return torch.autograd.grad(y, [t for t in wanted if t is not None], given.upstream)


def ask_for_gradients(given: Case) -> None:
    for t in (given.x, given.weight, given.bias, given.a_pos, given.a_neg):
        if t is not None:
            t.requires_grad_()


def run(given: Case) -> Outcome:
    own = given.on(DEVICE)
    ask_for_gradients(own)
    y, mean, inverse_std = OPERATORS.batch_norm_splash(
        own.x,
        own.weight,
        own.bias,
        own.running_mean,
        own.running_var,
        own.a_pos,
        own.a_neg,
        *on_device(HINGES),
        own.training,
        own.momentum,
        EPS,
        own.grad_scale,
    )
    assert mean.shape == inverse_std.shape == own.x.shape[1:2]
    grads = tuple(g.cpu() for g in gradients(y, own))
    running = (t if t is None else t.cpu() for t in (own.running_mean, own.running_var))
    return Outcome(y.detach().cpu(), grads, tuple(running))  # type: ignore[arg-type]


def run_reference(given: Case) -> Outcome:
    """torch's batch norm and the plain equation, in float64."""
    own = given.on("cpu", torch.float64)
    ask_for_gradients(own)
    z = F.batch_norm(
        own.x,
        own.running_mean,
        own.running_var,
        own.weight,
        own.bias,
        own.training,
        own.momentum,
        EPS,
    )
    trailing = 0 if own.a_pos.dim() == 1 else own.x.dim() - 2
    y = reference.scaled_splash(z, own.a_pos, own.a_neg, HINGES, trailing, own.grad_scale)
    return Outcome(y.detach(), gradients(y, own), (own.running_mean, own.running_var))


def assert_serves(given: Case) -> None:
    ours, theirs = run(given), run_reference(given)
    assert ours.y.dtype == given.x.dtype
    computed_in = torch.promote_types(given.x.dtype, torch.float32)
    assert_close(ours.y, theirs.y, computed_in)
    for d, expected in zip(ours.grads, theirs.grads, strict=True):
        assert_close(d, expected, computed_in)
    for running, expected in zip(ours.running, theirs.running, strict=True):
        assert running is not None
        assert expected is not None
        assert_close(running, expected, computed_in)


def assert_close(ours: Tensor, theirs: Tensor, computed_in: torch.dtype) -> None:
    """Off by one rounding to its own dtype, and by what sums of terms that cancel have lost."""
    lost = 100 * torch.finfo(computed_in).eps * max(theirs.abs().max().item(), 1.0)
    rounding = torch.finfo(ours.dtype).eps
    torch.testing.assert_close(ours.double(), theirs, rtol=rounding, atol=lost)


@runs_no_kernel
def test_in_a_process_of_its_own() -> None:
    assert_passes_in_a_process_of_its_own(__file__)


@runs_kernel
@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize(("affine", "share"), [(True, "layer"), (False, "channel")])
@pytest.mark.parametrize("shape", [(6, 3), (5, 3, 4), (3, 3, 4, 5), (2, 3, 2, 3, 2)], ids=str)
def test_output_and_gradients(
    shape: tuple[int, ...], affine: bool, share: str, training: bool
) -> None:
    assert_serves(case(*shape, affine=affine, share=share, training=training))


@runs_kernel
@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_dtypes(dtype: torch.dtype, training: bool) -> None:
    assert_serves(case(4, 3, 6, 5, dtype=dtype, share="channel", training=training))


@runs_kernel
@pytest.mark.parametrize("shape", [(140, 18), (5, 2, 700), (8400, 2)], ids=str)
def test_more_than_one_tile(shape: tuple[int, ...]) -> None:
    assert_serves(case(*shape))


@runs_kernel
@pytest.mark.parametrize("share", ["layer", "channel"])
def test_strides(share: str) -> None:
    given = case(3, 4, 5, 6, share=share)
    channels_last = given.x.contiguous(memory_format=torch.channels_last)
    assert_serves(replace(given, x=channels_last))
    assert run(replace(given, x=channels_last)).y.is_contiguous(memory_format=torch.channels_last)
    assert_serves(replace(given, x=given.x.transpose(2, 3), upstream=given.upstream.mT))
    assert_serves(replace(given, upstream=given.upstream[:, :, :, :1].expand(3, 4, 5, 6)))


@runs_kernel
@pytest.mark.parametrize("momentum", [0.0, 0.3, 1.0])
def test_momentum(momentum: float) -> None:
    assert_serves(case(6, 20, momentum=momentum))


@runs_kernel
def test_running_statistics_in_the_dtype_of_a_16_bit_network() -> None:
    given = case(6, 3, dtype=torch.bfloat16)
    assert_serves(given.on("cpu", torch.bfloat16))


@runs_kernel
def test_without_running_statistics() -> None:
    given = case(6, 3)
    tracked, untracked = run(given), run(replace(given, running_mean=None, running_var=None))
    assert_same_bits(untracked.y, tracked.y)
    assert untracked.running == (None, None)


@runs_kernel
def test_weight_or_bias_alone() -> None:
    given = case(6, 3)
    assert_serves(replace(given, bias=None))
    assert_serves(replace(given, weight=None))


@runs_kernel
def test_variance_of_numbers_far_from_zero() -> None:
    """Σx² − (Σx)²/n would have nothing left of it."""
    given = case(600, 2)
    far = replace(given, x=given.x + 3000.0)
    ours, theirs = run(far), run_reference(far)
    assert ours.running[1] is not None
    assert theirs.running[1] is not None
    torch.testing.assert_close(ours.running[1].double(), theirs.running[1], rtol=1e-5, atol=0)


@runs_kernel
def test_gradient_scale_reaches_the_slopes_alone() -> None:
    given = case(6, 3)
    plain, scaled = run(given), run(replace(given, grad_scale=0.25))
    for full, ours, factor in zip(plain.grads, scaled.grads, (1, 1, 1, 0.25, 0.25), strict=True):
        assert_same_bits(ours, factor * full)


@runs_kernel
def test_the_same_bits_from_run_to_run() -> None:
    given = case(140, 18)
    first, second = run(given), run(given)
    for ours, again in zip((first.y, *first.grads), (second.y, *second.grads), strict=True):
        assert_same_bits(ours, again)


@runs_kernel
@pytest.mark.parametrize("training", [True, False], ids=["training", "eval"])
def test_second_derivatives(training: bool) -> None:
    given = case(3, 2, training=training).on(DEVICE, torch.float64)
    ask_for_gradients(given)
    hinges = HINGES.double().to(DEVICE)

    def function(x: Tensor, weight: Tensor, bias: Tensor, a_pos: Tensor, a_neg: Tensor) -> Tensor:
        assert given.running_mean is not None
        assert given.running_var is not None
        running = given.running_mean.clone(), given.running_var.clone()
        how = (training, 0.1, EPS)
        return OPERATORS.batch_norm_splash(x, weight, bias, *running, a_pos, a_neg, hinges, *how)[0]

    inputs = (given.x, given.weight, given.bias, given.a_pos, given.a_neg)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@runs_kernel
def test_a_change_of_running_statistics_before_backward_is_noticed() -> None:
    x, mean, var = on_device(normal(6, 3), torch.zeros(3), torch.ones(3))
    a_pos, a_neg, hinges = on_device(*slopes(4), HINGES)
    x.requires_grad_()
    rest = (None, None, mean, var, a_pos, a_neg, hinges)
    evaluated = OPERATORS.batch_norm_splash(x, *rest, False, 0.1, EPS)[0]
    OPERATORS.batch_norm_splash(x, *rest, True, 0.1, EPS)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        evaluated.sum().backward()


@runs_kernel
def test_registered_as_operators() -> None:
    given = case(4, 3, share="channel").on(DEVICE)
    mean, inverse_std = torch.ops.splash_units_triton.statistics(given.x, None, None, 0.1, EPS)
    ask_for_gradients(given)
    torch.library.opcheck(
        torch.ops.splash_units_triton.normalised_splash.default,
        (
            given.x,
            given.weight,
            given.bias,
            mean,
            inverse_std,
            given.a_pos,
            given.a_neg,
            *on_device(HINGES),
            True,
            EPS,
            0.5,
        ),
    )
    torch.library.opcheck(
        torch.ops.splash_units_triton.statistics.default,
        (given.x.detach(), given.running_mean, given.running_var, 0.1, EPS),
    )


@runs_kernel
@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"x": torch.ones(3)}, ValueError, "behind batch norm"),
        ({"x": torch.ones(1, 3)}, ValueError, "too few elements"),
        ({"x": torch.ones(0, 3)}, ValueError, "too few elements"),
        ({"weight": torch.ones(2)}, ValueError, r"3 channels, got shape \(2,\)"),
        ({"bias": torch.ones(3, device="meta")}, ValueError, "on meta"),
        ({"running_mean": None}, ValueError, "both running statistics or neither"),
        ({"running_var": torch.ones(3, dtype=torch.int64)}, TypeError, "got torch.int64"),
        (dict.fromkeys(("a_pos", "a_neg"), torch.ones(4, 2)), ValueError, "behind batch norm"),
        (
            {"running_mean": None, "running_var": None, "training": False},
            ValueError,
            "needs running ones",
        ),
    ],
)
def test_says_what_it_does_not_serve(
    changed: dict[str, Tensor | bool | None], error: type[Exception], message: str
) -> None:
    """And leaves the running statistics alone: whoever serves instead will move them."""
    given = replace(case(6, 3), **changed)  # type: ignore[arg-type]
    before = [None if t is None else t.clone() for t in (given.running_mean, given.running_var)]
    with pytest.raises(error, match=message):
        OPERATORS.batch_norm_splash(
            given.x.to(DEVICE),
            *(
                t if t is None or t.is_meta else t.to(DEVICE)
                for t in (given.weight, given.bias, given.running_mean, given.running_var)
            ),
            *on_device(given.a_pos, given.a_neg, HINGES),
            given.training,
            0.1,
            EPS,
        )
    for now, then in zip((given.running_mean, given.running_var), before, strict=True):
        assert (now is None and then is None) or torch.equal(now, then)  # type: ignore[arg-type]
