"""A convolution to a few channels with a 2 x 2 max-pool behind it, in half the time.

oneDNN computes eight output channels at once, and several such groups side by side; with six
channels in all, the processor mostly waits. So the four values that the pool compares are made four
times the channels, by one convolution of stride 2 whose kernels are the original ones at the four
places of a 2 x 2 window, and the pool compares whole maps. What lies between, batch norm and units
that treat all positions alike, comes after the pool if it never falls, and otherwise sees the four
places as more images.

The additional zeros in the sums change no bit, provided that oneDNN adds in the same order; that is
tried out on noise of the same shape, and where it does not hold the layers are left alone.
Gradients differ in their last bits: the backward pass is a convolution to four times the channels
too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property, reduce
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from splash_units.lab.attacks.pools import Forward, corners, halves, largest

MOST_CHANNELS = 16
"""With eight or fewer, twice as fast; with sixteen, a tenth, for what then follows the pool."""

Padding = tuple[int, int]


def cheaper_chains(model: nn.Module) -> Iterator[tuple[nn.Module, Forward]]:
    """The chains of a network that can be had for less, and how; chains within chains excepted."""
    if type(model) is nn.Sequential and is_plain(model):
        steps = list(combined(list(links(model))))
        if any(isinstance(step, PooledConvolution) for step in steps):
            yield model, chained(model, steps)
            return
    for child in model.children():
        yield from cheaper_chains(child)


def chained(model: nn.Sequential, steps: Sequence[Forward]) -> Forward:
    """The forward of a chain by other steps; who traces the network gets to see the network."""
    return lambda x: in_turn(steps if isinstance(x, Tensor) else model, x)


def in_turn(steps: Iterable[Forward], x: Tensor) -> Tensor:
    return reduce(lambda x, step: step(x), steps, x)


def is_plain(module: nn.Module) -> bool:
    """Whether a module does what its class says: no hooks, no forward of somebody else's."""
    return not is_hooked(module) and "forward" not in vars(module)


def is_hooked(module: nn.Module) -> bool:
    """Whether somebody looks at, or changes, what goes into a module or comes out of it."""
    hooks = module._forward_hooks or module._forward_pre_hooks
    return bool(hooks or module._backward_hooks or module._backward_pre_hooks)


def links(chain: nn.Sequential) -> Iterator[nn.Module]:
    """The modules of a chain and of the chains in it, one after another."""
    for module in chain:
        if type(module) is nn.Sequential and is_plain(module):
            yield from links(module)
        else:
            yield module


def combined(modules: Sequence[nn.Module]) -> Iterator[Forward]:
    """The modules, with each narrow convolution, its pool and what is between them as one."""
    start = 0
    while start < len(modules):
        found = PooledConvolution.at_the_start_of(modules[start:])
        yield modules[start] if found is None else found
        start += 1 if found is None else len(found.modules)


@dataclass(frozen=True, eq=False)
class PooledConvolution:
    """A narrow convolution, a pool, and what is between them."""

    modules: tuple[nn.Module, ...]
    kernel: Tensor
    bias: Tensor | None
    backward_kernel: Tensor
    padding: Padding

    @staticmethod
    def at_the_start_of(modules: Sequence[nn.Module]) -> PooledConvolution | None:
        convolution = modules[0]
        pool = next((module for module in modules if type(module) is nn.MaxPool2d), None)
        if pool is None or not halves(pool) or not is_narrow(convolution):
            return None
        chosen = tuple(modules[: modules.index(pool) + 1])
        if not all(map(is_plain, chosen)):
            return None
        if not all(treats_positions_alike(module, convolution) for module in chosen[1:-1]):
            return None
        kernel = at_four_places(convolution.weight.detach())
        return PooledConvolution(
            modules=chosen,
            kernel=kernel,
            bias=None if convolution.bias is None else convolution.bias.detach().repeat(4),
            backward_kernel=backward_kernel(kernel),
            padding=(int(convolution.padding[0]), int(convolution.padding[1])),
        )

    @property
    def between(self) -> tuple[nn.Module, ...]:
        return self.modules[1:-1]

    @cached_property
    def pool_may_come_first(self) -> bool:
        """Whether the largest value before is the largest behind, by rounded arithmetic too."""
        return all(map(never_falls, self.between))

    def __call__(self, x: Tensor) -> Tensor:
        if not self.fits(x):
            return in_turn(self.modules, x)
        if torch.is_grad_enabled() and x.requires_grad:
            maps: Tensor = FourPlaces.apply(x, self)  # type: ignore[no-untyped-call]
        else:
            maps = self.four_places(x)
        if self.pool_may_come_first:
            return in_turn(self.between, pooled(maps))
        maps = in_turn(self.between, maps.view(4 * len(x), -1, *maps.shape[2:]))
        return pooled(maps.view(len(x), -1, *maps.shape[2:]))

    def fits(self, x: Tensor) -> bool:
        """Whether the cheaper way gives the bits of the other for such images."""
        plain = x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()
        if not plain or x.device != self.kernel.device or x.ndim != 4:
            return False
        return keeps_bits(x.shape, self.kernel.shape, self.padding, torch.get_num_threads())

    def four_places(self, x: Tensor) -> Tensor:
        """The maps at each of the four places, one after another: (N, 4 O, H, W)."""
        maps = F.conv2d(x, self.kernel, self.bias, stride=2, padding=self.padding)
        return maps.contiguous()


def pooled(maps: Tensor) -> Tensor:
    """The largest of the maps at the four places."""
    if torch.is_grad_enabled() and maps.requires_grad:
        return largest(maps, by_place)
    return maps.view(len(maps), 4, -1, *maps.shape[2:]).amax(1)  # faster by a third


def by_place(maps: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The maps of every image, (N, 4 O, H, W), by their place in a window of 2 x 2."""
    a, b, c, d = maps.chunk(4, dim=1)
    return a, b, c, d


def is_narrow(module: nn.Module) -> TypeGuard[nn.Conv2d]:
    """Whether a module is a convolution that is worth computing at four places at once."""
    if type(module) is not nn.Conv2d or module.out_channels > MOST_CHANNELS:
        return False
    height, width = module.kernel_size
    simple = module.stride == module.dilation == (1, 1) and module.groups == 1
    zeros = module.padding_mode == "zeros" and not isinstance(module.padding, str)
    return simple and zeros and height == width and height % 2 == 1


def never_falls(module: nn.Module) -> bool:
    """Whether a module is known to give nothing smaller for something larger."""
    if type(module) is nn.BatchNorm2d:
        return module.weight is None or bool((module.weight >= 0).all())
    return type(module) is nn.ReLU


def treats_positions_alike(unit: nn.Module, convolution: nn.Conv2d) -> bool:
    """Whether a unit, which may be any module, works on any position by itself, to the bit."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, convolution.out_channels, 6, 6, generator=generator)
    values = values.to(convolution.weight)
    quarter = (..., slice(None, None, 2), slice(1, None, 2))
    try:
        found, alone = unit(values), unit(values[quarter].contiguous())
    except (RuntimeError, ValueError):  # a parameter for every position, say
        return False
    return found.shape == values.shape and torch.equal(found[quarter], alone)


def at_four_places(weight: Tensor) -> Tensor:
    """Kernels (O, I, K, K) in the corners of ones larger by 1, (4 O, I, K + 1, K + 1)."""
    return torch.cat(
        [F.pad(weight, (left, 1 - left, top, 1 - top)) for top in (0, 1) for left in (0, 1)]
    )


def backward_kernel(kernel: Tensor) -> Tensor:
    """What takes the gradients of maps at four places to those of pixels, by row and column parity.

    Pixel 2 u + p is reached from place v by the kernel's value 2 (u - v) + p: a convolution of the
    gradients for each parity p.
    """
    outputs, inputs, size, _ = kernel.shape
    parities = kernel.view(outputs, inputs, size // 2, 2, size // 2, 2).flip(2, 4)
    return parities.permute(3, 5, 1, 0, 2, 4).reshape(4 * inputs, outputs, size // 2, size // 2)


class FourPlaces(torch.autograd.Function):
    """`PooledConvolution.four_places`, with the gradient of the images."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: PooledConvolution) -> Tensor:
        ctx.layer, ctx.shape = layer, x.shape
        return layer.four_places(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        kernel, (top, left) = ctx.layer.backward_kernel, ctx.layer.padding
        count, channels, height, width = ctx.shape
        parities = F.conv2d(gradient, kernel, padding=kernel.shape[2] - 1)
        rows, columns = parities.shape[2:]
        pixels = gradient.new_empty(count, channels, 2 * rows, 2 * columns)
        for slot, values in zip(corners(pixels), by_place(parities), strict=True):
            slot.copy_(values)
        return pixels[..., top : top + height, left : left + width], None


@cache
def keeps_bits(shape: torch.Size, kernel: torch.Size, padding: Padding, threads: int) -> bool:
    """Whether convolutions of this shape give the same bits at four places as in the whole."""
    outputs, inputs, size, _ = kernel
    sides = [side + 2 * pad - size + 2 for side, pad in zip(shape[2:], padding, strict=True)]
    if shape[1] != inputs or any(side < 2 or side % 2 for side in sides):
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator)
    weight = torch.randn(outputs // 4, inputs, size - 1, size - 1, generator=generator)
    with torch.no_grad():
        whole = F.conv2d(x, weight, padding=padding)
        found = F.conv2d(x, at_four_places(weight), stride=2, padding=padding)
    return all(map(torch.equal, by_place(found), corners(whole)))
