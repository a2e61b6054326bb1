"""What lies in another order of memory than the kernel walks is put in order, exactly."""

import pytest
import torch
from torch import Tensor, nn
from torch._functorch import config as functorch_config

from splash_units import Splash
from splash_units.kernels import native

OPERATORS = native.load()
if OPERATORS is None:
    pytest.skip(f"no CPU kernel here: {native.why_not()}", allow_module_level=True)

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
# Sides that are blocks of registers and that are not, that are longer than what is taken at a time,
# more channels than positions and fewer, and sides of one.
SHAPES = [
    *[(2, 4, 4, 4), (2, 6, 5, 7), (3, 37, 5, 11), (1, 64, 20, 20), (2, 600, 3, 3), (1, 9, 40, 41)],
    *[(2, 1, 6, 7), (2, 7, 1, 1), (1, 1, 1, 1), (0, 3, 4, 4), (2, 0, 4, 4)],
    *[(2, 6, 3, 4, 5), (1, 40, 2, 3, 3), (8, 16, 32, 32)],
]


def last(t: Tensor) -> Tensor:
    return t.to(memory_format=torch.channels_last if t.dim() == 4 else torch.channels_last_3d)


def numbers(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_gradient_in_another_order_of_memory(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    unit = Splash(init="random")
    slopes = (unit.a_pos.detach(), unit.a_neg.detach(), unit.hinges)
    grad = numbers(shape, dtype)
    for x in (numbers(shape, dtype).flip(0), last(numbers(shape, dtype).flip(0))):
        in_its_order = torch.empty_like(x).copy_(grad)
        expected = OPERATORS.splash_backward(in_its_order, x, *slopes, 0, 1.0)
        for given in (grad, last(grad)):
            got = OPERATORS.splash_backward(given, x, *slopes, 0, 1.0)
            assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
            assert got[0].stride() == expected[0].stride()


@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (2, 6, 3, 4, 5)], ids=str)
def test_an_input_in_an_order_that_the_kernel_does_not_walk(shape: tuple[int, ...]) -> None:
    """Each neuron has slopes of its own, which stand in the order of dimensions."""
    unit, x = Splash(init="random", share="unit", features=shape[1:]), numbers(shape, torch.float32)
    assert torch.equal(unit(last(x)), unit(x))


def test_types_of_one_byte_are_refused_in_any_order_of_memory() -> None:
    unit = Splash(share="unit", features=(16, 8, 8))
    x = last(numbers((4, 16, 8, 8), torch.float32)).to(torch.float8_e4m3fn)
    with pytest.raises(TypeError, match="float8"):
        unit(x)


def test_a_gradient_of_another_type_is_converted() -> None:
    unit, x = Splash(init="random"), last(numbers((2, 6, 5, 7), torch.float32))
    slopes = (unit.a_pos.detach(), unit.a_neg.detach(), unit.hinges)
    grad = numbers((2, 6, 5, 7), torch.float64)
    got, *_ = OPERATORS.splash_backward(grad, x, *slopes, 0, 1.0)
    expected, *_ = OPERATORS.splash_backward(last(grad.float()), x, *slopes, 0, 1.0)
    assert torch.equal(got, expected)


@pytest.mark.filterwarnings("ignore:`torch.jit.script.*is deprecated:DeprecationWarning")
def test_what_a_compiled_network_computes_is_taken_as_it_lies(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Convolutions are compiled with channels last; the eager network's order would be a copy."""
    from torch._inductor import config as inductor_config  # not before: it imports triton

    torch._dynamo.reset()
    torch.manual_seed(0)
    first, unit, second = nn.Conv2d(3, 16, 3), Splash(init="random"), nn.Conv2d(16, 4, 3)
    operator = torch.ops.splash_units.splash.default
    call, strides = operator._op, []

    def watched(x: Tensor, *rest: object) -> Tensor:
        strides.append(x.stride())
        return call(x, *rest)

    def network(x: Tensor) -> Tensor:
        return second(unit(2 * first(x)))

    compiled, x = torch.compile(network), torch.randn(2, 3, 12, 12)
    with (  # what is kept on disk may be of other operators
        inductor_config.patch(fx_graph_cache=False),
        functorch_config.patch(enable_autograd_cache=False),
    ):
        y = compiled(x)
    monkeypatch.setattr(operator, "_op", watched)
    torch.testing.assert_close(compiled(x), y, rtol=0, atol=0)
    assert strides == [(1600, 1, 160, 16)]
    torch.testing.assert_close(y, network(x), rtol=1e-4, atol=1e-5)
    torch._dynamo.reset()
