"""The CPU kernel with batch norm in front, against torch's own and the plain equation."""

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from splash_units import BatchNormSplash
from splash_units.functional import batch_norm_splash
from splash_units.kernels import native, reference
from splash_units.sharing import automatic_scale

if native.load() is None:
    pytest.skip(f"no CPU kernel here: {native.why_not()}", allow_module_level=True)


@pytest.mark.parametrize("share", ["layer", "channel"])
@pytest.mark.parametrize("training", [True, False])
def test_fused_operators_keep_their_promises_to_torch(share: str, training: bool) -> None:
    unit = BatchNormSplash(3, share=share)
    norm = (unit.weight, unit.bias, unit.running_mean, unit.running_var)
    x = torch.randn(4, 3, 5, requires_grad=True)
    arguments = (x, *norm, unit.a_pos, unit.a_neg, unit.hinges, training, 0.1, 1e-5, 0.5)
    torch.library.opcheck(torch.ops.splash_units.batch_norm_splash.default, arguments)
    kept = torch.ops.splash_units.batch_norm_splash.default(*arguments)[1]
    backward = (torch.randn(4, 3, 5), x.detach(), kept, 4, share == "channel", training, 0.5)
    torch.library.opcheck(torch.ops.splash_units.batch_norm_splash_backward.default, backward)


NORMS = [
    *((n, s, torch.contiguous_format) for n, s in ((7, (10,)), (64, (6,)), (5, (6, 7)))),
    *(
        (n, s, layout)
        for n, s in ((3, (5, 4, 4)), (4, (33, 3, 3)), (9, (8, 1, 1)))
        for layout in (torch.contiguous_format, torch.channels_last)
    ),
]


@pytest.mark.parametrize("share", ["layer", "channel"])
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("batch", "shape", "layout"), NORMS, ids=str)
def test_batch_norm_and_unit_in_one(
    share: str, affine: bool, batch: int, shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    torch.manual_seed(0)
    channels = shape[0]
    x = (3 + 2 * torch.randn(batch, *shape)).to(memory_format=layout)
    fused = BatchNormSplash(channels, affine=affine, init="random", share=share)
    norms = {1: nn.BatchNorm1d, 2: nn.BatchNorm1d, 3: nn.BatchNorm2d}
    plain = norms[len(shape)](channels, affine=affine).double()
    if affine:
        nn.init.normal_(fused.weight)
        nn.init.normal_(fused.bias)
    own = {k: v.double() if v.is_floating_point() else v for k, v in fused.state_dict().items()}
    plain.load_state_dict({k: v for k, v in own.items() if k in plain.state_dict()})
    grad = torch.randn(batch, *shape)

    for training in (True, True, False):
        fused.train(training)
        plain.train(training)
        ours_x, theirs_x = x.detach().requires_grad_(), x.detach().double().requires_grad_()
        y = fused(ours_x)
        z = plain(theirs_x)
        exact = reference.scaled_splash(
            z, fused.a_pos.double(), fused.a_neg.double(), fused.hinges.double(),
            0 if share == "layer" else len(shape) - 1, 1.0,
        )  # fmt: skip
        assert y.stride() == x.stride()
        assert float((y - exact).detach().abs().max()) < 3e-5 * max(
            1.0, float(exact.detach().abs().max())
        )
        mine = [p for n, p in fused.named_parameters() if n in ("weight", "bias")]
        found = torch.autograd.grad(y, (ours_x, *mine, fused.a_pos, fused.a_neg), grad)
        wanted = torch.autograd.grad(
            exact, (theirs_x, *plain.parameters(), fused.a_pos, fused.a_neg), grad.double()
        )
        for i, (ours, theirs) in enumerate(zip(found, wanted, strict=True)):
            if i >= len(found) - 2:  # the slopes
                theirs = theirs * automatic_scale(x.shape, share, fused.a_pos.shape[1:])
            top = max(float(theirs.abs().max()), 1e-3)
            assert float((ours.double() - theirs.double()).abs().max()) < 3e-5 * top, i
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(
            getattr(fused, name).double(), getattr(plain, name), rtol=1e-5, atol=1e-6
        )
    assert fused.num_batches_tracked == plain.num_batches_tracked == 2


@pytest.mark.parametrize(
    ("shape", "layout"),
    [
        *((s, torch.contiguous_format) for s in ((128, 40), (1024, 40), (16, 6, 28, 28))),
        ((16, 6, 28, 28), torch.channels_last),
    ],
    ids=str,
)
def test_a_mean_far_from_zero_costs_no_more_than_in_torch(
    shape: tuple[int, ...], layout: torch.memory_format
) -> None:
    """Almost all of this gradient moves the statistics; what is left shows all rounding."""
    torch.manual_seed(0)
    mean = 1e3
    x = (mean + torch.randn(shape)).to(memory_format=layout)
    grad = x - mean + 0.1 * torch.randn(shape)
    unit = BatchNormSplash(shape[1])
    with torch.no_grad():
        unit.bias += 10  # where ReLU, which the unit is at the start, lets everything through
    norm = {2: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)](shape[1])

    def input_gradient(module: nn.Module, dtype: torch.dtype) -> torch.Tensor:
        leaf = x.detach().to(dtype).requires_grad_()
        module.to(dtype)(leaf).backward(grad.to(dtype))
        assert leaf.grad is not None
        return leaf.grad.double()

    ours, theirs = (input_gradient(module, torch.float32) for module in (unit, norm))
    exact = input_gradient(norm, torch.float64)
    assert (ours - exact).abs().max() <= 1.25 * (theirs - exact).abs().max()


@pytest.mark.parametrize("num_hinges", [7, 11, 23])
@pytest.mark.parametrize("rows", [9, 130])
@pytest.mark.parametrize("channels", [33, 64, 520])
def test_many_channels_side_by_side(channels: int, rows: int, num_hinges: int) -> None:
    """A line of the most is longer than what is summed up at a time; of the others, columns are."""
    torch.manual_seed(0)
    x, grad = torch.randn(rows, channels), torch.randn(rows, channels)
    unit = BatchNormSplash(channels, num_hinges=num_hinges, init="random", grad_scale=1.0)
    slopes = (unit.a_pos, unit.a_neg)
    ours_x, theirs_x = x.requires_grad_(), x.detach().double().requires_grad_()
    y = unit(ours_x)
    exact = reference.splash(
        F.batch_norm(theirs_x, None, None, training=True),
        *(a.double() for a in slopes),
        unit.hinges.double(),
    )
    found = torch.autograd.grad(y, (ours_x, *slopes), grad)
    wanted = torch.autograd.grad(exact, (theirs_x, *slopes), grad.double())
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("num_hinges", [3, 7, 23])
@pytest.mark.parametrize("hinges", ["on a grid", "anywhere"])
@pytest.mark.parametrize(
    ("rows", "channels"),
    [(32, 16), (65, 48), (256, 112), (128, 256), (90, 240), (31, 64), (257, 64), (40, 272)],
)
def test_small_layers(rows: int, channels: int, num_hinges: int, hinges: str) -> None:
    """Within a cache, with AVX-512, all is done with some channels before the next, but for the
    last three, which have too few or too many rows or channels for it."""
    torch.manual_seed(0)
    places = [0.0, *(torch.rand((num_hinges - 1) // 2) * 2 + 0.1).sort().values.tolist()]
    unit = BatchNormSplash(
        channels,
        num_hinges=num_hinges,
        hinges=places if hinges == "anywhere" else None,
        init="random",
        grad_scale=1.0,
    )
    nn.init.normal_(unit.weight)
    nn.init.normal_(unit.bias)
    x, grad = (2 + 3 * torch.randn(rows, channels)).requires_grad_(), torch.randn(rows, channels)
    learned = dict(unit.named_parameters())
    exact = {name: t.detach().double() for name, t in unit.state_dict().items()}
    leaves = [exact[name].requires_grad_() for name in learned]
    exact_x = x.detach().double().requires_grad_()
    kept = [exact[name] for name in ("running_mean", "running_var", "weight", "bias")]
    z = F.batch_norm(exact_x, *kept, training=True)
    expected = reference.splash(z, exact["a_pos"], exact["a_neg"], exact["hinges"])
    y = unit(x)
    found = torch.autograd.grad(y, (x, *learned.values()), grad)
    wanted = torch.autograd.grad(expected, (exact_x, *leaves), grad.double())
    for ours, theirs in ((y, expected), (found[0], wanted[0])):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-5)
    for ours, theirs in zip(found[1:], wanted[1:], strict=True):  # sums of thousands
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-4)
    for name in ("running_mean", "running_var"):
        torch.testing.assert_close(getattr(unit, name).double(), exact[name], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("shape", [(64, 48), (9, 33), (8, 3, 5, 5)], ids=str)
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("of", ["x", "grad"])
def test_in_training_what_is_not_finite_stays_in_its_channel(
    of: str, value: float, shape: tuple[int, ...]
) -> None:
    torch.manual_seed(0)
    given = {"x": torch.randn(shape), "grad": torch.randn(shape)}
    given[of][1, 1] = value
    unit = BatchNormSplash(shape[1], init="random")
    x = given["x"].requires_grad_()
    y = unit(x)
    exact = reference.splash(
        F.batch_norm(x, None, None, training=True), unit.a_pos, unit.a_neg, unit.hinges
    )
    learned = (unit.weight, unit.bias)
    dx, *of_norm = torch.autograd.grad(y, (x, *learned), given["grad"])
    wanted = torch.autograd.grad(exact, x, given["grad"])[0]
    others = torch.arange(shape[1]) != 1
    torch.testing.assert_close(y, exact, rtol=1e-4, atol=1e-4, equal_nan=True)
    torch.testing.assert_close(dx[:, others], wanted[:, others], rtol=1e-4, atol=1e-4)
    assert not dx[:, 1].isfinite().any()
    assert all(g[others].isfinite().all() for g in of_norm)


@pytest.mark.parametrize("channels", [3, 24])
@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("of", ["x", "grad"])
def test_in_evaluation_what_is_not_finite_stays_where_it_is(
    of: str, value: float, channels: int
) -> None:
    torch.manual_seed(0)
    given = {"x": torch.randn(4, channels), "grad": torch.randn(4, channels)}
    given[of][1, 1] = value
    unit = BatchNormSplash(channels, init="random").eval()
    x = given["x"].requires_grad_()
    plain = F.batch_norm(x, unit.running_mean, unit.running_var, eps=unit.eps)
    exact = reference.splash(plain, unit.a_pos, unit.a_neg, unit.hinges)
    found, wanted = (torch.autograd.grad(h, x, given["grad"])[0] for h in (unit(x), exact))
    torch.testing.assert_close(found, wanted, equal_nan=True)


@pytest.mark.parametrize("num_hinges", [7, 31])
@pytest.mark.parametrize("channels", [3, 24, 1504])
@pytest.mark.parametrize("rows", [40, 50])  # with the most channels, within and beyond a cache
@pytest.mark.parametrize("of", ["x", "grad"])
def test_in_evaluation_other_channels_learn_what_they_would_without_it(
    of: str, rows: int, channels: int, num_hinges: int
) -> None:
    torch.manual_seed(0)
    given = {"x": torch.randn(rows, channels), "grad": torch.randn(rows, channels)}
    unit = BatchNormSplash(channels, init="random", num_hinges=num_hinges).eval()
    exact = BatchNormSplash(channels, num_hinges=num_hinges).eval()
    exact.load_state_dict(unit.state_dict())
    unit_of = {"exact": exact.double(), "found": unit}
    others = torch.arange(channels) != 1
    gradients = {}
    for name, module in unit_of.items():
        x, grad = (given[key].to(module.weight.dtype) for key in ("x", "grad"))
        if name == "found":
            {"x": x, "grad": grad}[of][1, 1] = math.inf
        learned = torch.autograd.grad(module(x), (module.weight, module.bias), grad)
        gradients[name] = [g[others].double() for g in learned]
    for ours, theirs in zip(gradients["found"], gradients["exact"], strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("share", ["layer", "channel"])
@pytest.mark.parametrize("shape", [(128, 256), (300, 300), (7, 5000), (16, 24, 31, 31)], ids=str)
def test_the_same_bits_for_any_number_of_threads(shape: tuple[int, ...], share: str) -> None:
    torch.manual_seed(0)
    layout = torch.channels_last if len(shape) == 4 else torch.contiguous_format
    x, grad = (torch.randn(shape).to(memory_format=layout) for _ in range(2))
    start = BatchNormSplash(shape[1], share=share, features=shape[1], init="random").state_dict()
    results, threads = [], torch.get_num_threads()
    try:
        for count in (1, 2, 3, 16):
            torch.set_num_threads(count)
            unit = BatchNormSplash(shape[1], share=share, features=shape[1])
            unit.load_state_dict(start)
            leaf = x.detach().requires_grad_()
            y = unit(leaf)
            found = torch.autograd.grad(y, (leaf, *unit.parameters()), grad)
            results.append((y, *found, *unit.buffers()))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(torch.equal(p, q) for p, q in zip(results[0], other, strict=True))


def test_fused_bfloat16_keeps_its_dtype() -> None:
    fused, x = BatchNormSplash(4), torch.randn(8, 4, 5, 5)
    y = fused(x.bfloat16())
    assert y.dtype == torch.bfloat16
    assert fused.running_mean.dtype == torch.float32
    exact = F.relu(F.batch_norm(x.bfloat16().float(), None, None, training=True))
    assert float((y.detach().float() - exact).abs().max()) < 2**-7 * float(exact.abs().max())


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("given", ["weight", "bias"])
def test_a_weight_or_a_bias_alone(given: str, training: bool) -> None:
    torch.manual_seed(0)
    x, grad = torch.randn(6, 4, 3), torch.randn(6, 4, 3)
    own = torch.randn(4).requires_grad_()
    unit = BatchNormSplash(4, init="random")
    slopes = (unit.a_pos, unit.a_neg)

    def gradients(compute, dtype):
        z, statistics = x.to(dtype).requires_grad_(), (torch.zeros(4), torch.ones(4))
        a_pos, a_neg = (a.detach().to(dtype).requires_grad_() for a in slopes)
        norm = {"weight": None, "bias": None, given: own.to(dtype)}
        moved = [t.to(dtype) for t in statistics]
        y = compute(z, *moved, norm["weight"], norm["bias"], a_pos, a_neg, unit.hinges.to(dtype))
        return torch.autograd.grad(y, (z, own, a_pos, a_neg), grad.to(dtype))

    def plain(z, mean, var, weight, bias, *shape):
        return reference.splash(F.batch_norm(z, mean, var, weight, bias, training), *shape)

    ours = gradients(lambda *a: batch_norm_splash(*a, training, 0.1, 1e-5), torch.float32)
    theirs = gradients(plain, torch.float64)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.double(), other.double(), rtol=1e-4, atol=1e-5)


WRONG = {
    "weight": {"weight": torch.ones(3)},
    "bias": {"bias": torch.zeros(1)},
    "running statistics": {"running_mean": torch.zeros(3), "running_var": torch.ones(3)},
    "variance without a mean": {"running_mean": None},
    "mean without a variance": {"running_var": None},
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("wrong", WRONG)
def test_parameters_of_other_sizes_are_refused_before_anything_moves(
    wrong: str, training: bool
) -> None:
    norm = {"weight": torch.ones(4), "bias": torch.zeros(4)}
    norm |= {"running_mean": torch.zeros(4), "running_var": torch.ones(4)} | WRONG[wrong]
    before = {name: None if t is None else t.clone() for name, t in norm.items()}
    shape = (torch.ones(4), torch.zeros(4), torch.tensor([0.0, 1.0, 2.0, 2.5]))
    with pytest.raises(ValueError, match="batch_norm_splash"):
        torch.ops.splash_units.batch_norm_splash(
            torch.randn(5, 4), *norm.values(), *shape, training, 0.1, 1e-5
        )
    assert all(t is None or torch.equal(t, before[name]) for name, t in norm.items())


def test_one_value_a_channel_has_no_statistics() -> None:
    norm = [torch.ones(4), torch.zeros(4), torch.zeros(4), torch.ones(4)]
    shape = (torch.ones(1), torch.zeros(1), torch.zeros(1))
    with pytest.raises(ValueError, match="more than one value a channel"):
        torch.ops.splash_units.batch_norm_splash(torch.randn(1, 4), *norm, *shape, True, 0.1, 1e-5)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        batch_norm_splash(torch.randn(1, 4), *norm[2:], *norm[:2], *shape, True, 0.1, 1e-5)
    assert torch.equal(norm[3], torch.ones(4))


@pytest.mark.parametrize("share", ["layer", "channel"])
def test_slopes_that_change_before_the_backward_do_not_change_the_gradients(share: str) -> None:
    """What the backward needs of them is a copy; of x it is not, and torch's own check says so."""
    torch.manual_seed(0)
    unit, x = BatchNormSplash(4, init="random", share=share), torch.randn(6, 4, requires_grad=True)
    inputs = (x, *unit.parameters())
    expected = torch.autograd.grad(unit(x).square().sum(), inputs)
    total = unit(x).square().sum()
    with torch.no_grad():
        for parameter in unit.parameters():
            parameter.mul_(-3.0)
    ours = torch.autograd.grad(total, inputs)
    assert all(torch.equal(mine, other) for mine, other in zip(ours, expected, strict=True))

    total = unit(x).square().sum()
    with torch.no_grad():
        x.mul_(2.0)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("share", ["layer", "channel"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_parameters_may_have_another_type_than_x(dtype: torch.dtype, share: str) -> None:
    torch.manual_seed(0)
    unit, x = BatchNormSplash(4, init="random", share=share).to(dtype), torch.randn(60, 4)
    exact = BatchNormSplash(4, share=share).double()
    exact.load_state_dict(unit.state_dict())
    unit(x).square().sum().backward()
    exact(x.double()).square().sum().backward()
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 1e-5
    for ours, theirs in zip(unit.parameters(), exact.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert ours.grad.dtype == dtype
        torch.testing.assert_close(ours.grad.double(), theirs.grad, rtol=rounding, atol=1e-4)


@pytest.mark.parametrize("training", [True, False])
def test_what_is_learned_begins_with_the_gradient_of_a_bias_in_front(training: bool) -> None:
    torch.manual_seed(0)
    unit, x = BatchNormSplash(3, init="random").double(), torch.randn(6, 3, 5).double()
    bias, grad = torch.zeros(3, 1, dtype=x.dtype, requires_grad=True), torch.randn_like(x)
    norm = (unit.weight, unit.bias, unit.running_mean, unit.running_var)
    shape = (unit.a_pos, unit.a_neg, unit.hinges)
    kept = torch.ops.splash_units.batch_norm_splash(x, *norm, *shape, training, 0.1, 1e-5)[1]
    _, learned = torch.ops.splash_units.batch_norm_splash_backward(
        grad, x, kept.detach(), len(unit.hinges), False, training
    )
    z = F.batch_norm(x + bias, *norm[2:], *norm[:2], training, 0.0, 1e-5)
    (expected,) = torch.autograd.grad(reference.splash(z, *shape), bias, grad)
    torch.testing.assert_close(learned[:3], expected.reshape(3), rtol=1e-10, atol=1e-13)
    assert not training or not learned[:3].any()


class Watch(TorchDispatchMode):
    """Sees every operation, and changes none."""

    def __torch_dispatch__(
        self,
        func: Callable[..., object],
        types: object,
        args: tuple[object, ...] = (),
        kwargs: dict[str, object] | None = None,
    ) -> object:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("share", ["layer", "channel"])
def test_gradients_under_a_mode_and_without_memory(share: str) -> None:
    torch.manual_seed(0)
    unit, x = BatchNormSplash(4, init="random", share=share), torch.randn(6, 4, 3)
    unit.a_pos.data[0] += 0.5
    inputs = [x.requires_grad_(), *unit.parameters()]
    y = unit(x)
    expected = torch.autograd.grad(y.square().sum(), inputs, retain_graph=True)
    with Watch():
        watched = torch.autograd.grad(y.square().sum(), inputs)
    for ours, theirs in zip(watched, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    unit.to("meta")
    inputs = [x.detach().to("meta").requires_grad_(), *unit.parameters()]
    without = torch.autograd.grad(unit(inputs[0]).sum(), inputs)
    assert [g.shape for g in without] == [g.shape for g in expected]


@pytest.mark.parametrize(("share", "hinges"), [("layer", 3), ("channel", 4), ("layer", 0)])
def test_the_backward_refuses_what_another_unit_kept(share: str, hinges: int) -> None:
    unit, x = BatchNormSplash(4), torch.randn(6, 4)
    norm = (unit.weight, unit.bias, unit.running_mean, unit.running_var)
    shape = (unit.a_pos, unit.a_neg, unit.hinges)
    kept = torch.ops.splash_units.batch_norm_splash(x, *norm, *shape, True, 0.1, 1e-5)[1]
    with pytest.raises(ValueError, match="batch_norm_splash_backward"):
        torch.ops.splash_units.batch_norm_splash_backward(
            x, x, kept.detach(), hinges, share == "channel", True
        )
