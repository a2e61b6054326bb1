"""Second derivatives through the CPU kernel are those of the plain equation."""

import pytest
import torch
from torch import Tensor

from splash_units import BatchNormSplash, Splash
from splash_units.kernels import native, reference
from splash_units.kernels.native import second_derivative

HINGES = torch.tensor([0.0, 1.0, 2.5], dtype=torch.float64)


def tensors(seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """x of shape (2, 3, 2) and slopes for its 3 channels."""
    generator = torch.Generator().manual_seed(seed)
    shapes = ((2, 3, 2), (3, 3), (3, 3))
    x, a_pos, a_neg = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes
    )
    return 2 * x, a_pos, a_neg


@pytest.mark.parametrize("grad_scale", [1.0, 0.25])
def test_the_first_derivative_is_the_equations(grad_scale: float) -> None:
    inputs = [t.requires_grad_() for t in tensors()]
    grad = torch.randn(2, 3, 2, dtype=torch.float64)
    h = reference.scaled_splash(*inputs, HINGES, 1, grad_scale)
    expected = torch.autograd.grad(h, inputs, grad)
    for ours, theirs in zip(
        second_derivative.splash(grad, *inputs, HINGES, 1, grad_scale), expected, strict=True
    ):
        assert ours.requires_grad
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)


def test_gradients_are_given_for_inputs_that_need_none() -> None:
    grad = torch.randn(2, 3, 2, dtype=torch.float64, requires_grad=True)
    x, a_pos, a_neg = tensors()
    for t, gradient in zip(
        (x, a_pos, a_neg),
        second_derivative.splash(grad, x, a_pos, a_neg, HINGES, 1, 1.0),
        strict=True,
    ):
        assert gradient.shape == t.shape
        assert not t.requires_grad


def slope_penalty(x: Tensor, a_pos: Tensor, a_neg: Tensor, grad_scale: float, f: object) -> Tensor:
    """A loss of first derivatives, as a gradient penalty is, where the slopes depend on x too."""
    assert callable(f)
    h = f(x, a_pos + x.mean(), a_neg * x.std(), HINGES, 1, grad_scale)
    gradients = torch.autograd.grad(h.square().sum(), (x, a_pos, a_neg), create_graph=True)
    return torch.stack([g.square().sum() for g in gradients]).sum()


@pytest.mark.parametrize("grad_scale", [1.0, 0.25])
def test_through_the_operator_it_is_the_equations(grad_scale: float) -> None:
    operators = native.load()
    assert operators is not None
    inputs = [t.requires_grad_() for t in tensors()]
    results = []
    for f in (operators.splash, reference.scaled_splash):
        loss = slope_penalty(*inputs, grad_scale, f)
        results.append((loss, *torch.autograd.grad(loss, inputs)))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-10)


def test_gradcheck_of_both_orders() -> None:
    operators = native.load()
    assert operators is not None
    inputs = tuple(t.requires_grad_() for t in tensors())

    def h(x: Tensor, a_pos: Tensor, a_neg: Tensor) -> Tensor:
        y: Tensor = operators.splash(x, a_pos, a_neg, HINGES, 1, 1.0)
        return y

    assert torch.autograd.gradcheck(h, inputs)
    assert torch.autograd.gradgradcheck(h, inputs)


@pytest.mark.parametrize("kind", ["layer", "channel", "unit", "fused", "fused, channel"])
def test_second_derivatives(kind: str) -> None:
    torch.manual_seed(0)
    unit = {
        "layer": lambda: Splash(init="random"),
        "channel": lambda: Splash(init="random", share="channel", features=3),
        "unit": lambda: Splash(init="random", share="unit", features=(3, 4)),
        "fused": lambda: BatchNormSplash(3, init="random"),
        "fused, channel": lambda: BatchNormSplash(3, init="random", share="channel"),
    }[kind]().double()
    unit.hinges = unit.hinges.double()
    x = torch.randn(5, 3, 4, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in unit.named_parameters()]

    def run(x: Tensor, *values: Tensor) -> Tensor:
        for p, v in zip(unit.parameters(), values, strict=True):
            assert p.shape == v.shape
        return torch.func.functional_call(unit, dict(zip(names, values, strict=True)), (x,))

    inputs = (x, *(p.detach().clone().requires_grad_() for p in unit.parameters()))
    unit.grad_scale = 1.0
    assert torch.autograd.gradcheck(run, inputs)
    assert torch.autograd.gradgradcheck(run, inputs)
