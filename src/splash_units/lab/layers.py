"""What the networks are made of: kernels with He's start, batch norm, and units from a factory."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from splash_units.catalogue import Unit

Size = tuple[int, int]
AnyLayer = TypeVar("AnyLayer", nn.Conv2d, nn.Linear)

# Layers are made without values, so that torch's own start draws nothing from any generator.
UNDRAWN = "meta"


class Input(nn.Module):
    """Images in [0, 1] of any size up to `size`, to standardised ones of exactly `size`.

    Smaller images get a black border before they are standardised: the background of MNIST goes on.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float], size: Size) -> None:
        super().__init__()
        self.size = size
        self.register_buffer(
            "mean", torch.tensor(list(mean), dtype=torch.float32).view(1, -1, 1, 1)
        )
        self.register_buffer("std", torch.tensor(list(std), dtype=torch.float32).view(1, -1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        channels = self.mean.shape[1]
        height, width = self.size
        if images.ndim != 4 or images.shape[1] != channels:
            raise ValueError(f"expected images (N, {channels}, H, W), got {tuple(images.shape)}")
        if not images.is_floating_point():
            raise ValueError(f"expected images in [0, 1], got {images.dtype}; divide bytes by 255")
        missing_rows, missing_columns = height - images.shape[2], width - images.shape[3]
        if missing_rows < 0 or missing_columns < 0:
            raise ValueError(
                f"this network was built for images of at most {height}x{width}, "
                f"got {images.shape[2]}x{images.shape[3]}; build it with image_size"
            )
        if missing_rows or missing_columns:
            top, left = missing_rows // 2, missing_columns // 2
            border = (left, missing_columns - left, top, missing_rows - top)
            images = nn.functional.pad(images, border)
        return (images - self.mean).div_(self.std)

    def extra_repr(self) -> str:
        return f"size={self.size[0]}x{self.size[1]}, channels={self.mean.shape[1]}"


@dataclass(frozen=True)
class Layers:
    """Makes layers for one unit; kernels are drawn from `generator` and from nothing else.

    So two networks of one seed have the same kernels, whatever their units draw for themselves.
    `bias` is about hidden layers, where batch norm makes biases redundant; Keras keeps them.
    Not `fused`, batch norm and unit are two modules even where the unit offers both in one pass.
    """

    unit: Unit
    generator: torch.Generator
    batch_norm: bool = True
    bias: bool = True
    fused: bool = True

    def widened(self, channels: int) -> int:
        """How many channels the layer before a unit must give for the unit to give `channels`."""
        return channels * self.unit.inputs_per_output

    def conv(
        self,
        inputs: int,
        outputs: int,
        kernel: int,
        *,
        stride: int = 1,
        padding: int = 0,
        bias: bool | None = None,
    ) -> nn.Conv2d:
        layer = nn.Conv2d(
            inputs,
            outputs,
            kernel,
            stride=stride,
            padding=padding,
            bias=self.bias if bias is None else bias,
            device=UNDRAWN,
        )
        return self._start(layer)

    def dense(self, inputs: int, outputs: int, *, bias: bool | None = None) -> nn.Linear:
        bias = self.bias if bias is None else bias
        return self._start(nn.Linear(inputs, outputs, bias=bias, device=UNDRAWN))

    def norm(self, channels: int) -> nn.Module:
        """Batch norm of a feature map by itself, where something comes between it and the unit."""
        return nn.BatchNorm2d(channels) if self.batch_norm else nn.Identity()

    def activation(self, features: int | tuple[int, int, int]) -> nn.Module:
        """Batch norm, then the unit: in one pass where the unit offers it."""
        if not self.batch_norm:
            return self.unit(features)
        if self.fused:
            return self.unit.with_batch_norm(features)
        norm = nn.BatchNorm1d if isinstance(features, int) else nn.BatchNorm2d
        channels = features if isinstance(features, int) else features[0]
        return nn.Sequential(norm(self.widened(channels)), self.unit(features))

    def _start(self, layer: AnyLayer) -> AnyLayer:
        for name, undrawn in list(layer.named_parameters()):
            # As `to_empty` would, which takes a third of a second at first to import sympy.
            setattr(layer, name, nn.Parameter(torch.empty(undrawn.shape, dtype=undrawn.dtype)))
        nn.init.kaiming_normal_(layer.weight, nonlinearity="relu", generator=self.generator)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
        return layer


class Chain:
    """A chain of layers, written down line by line, that keeps track of the shape between them.

    Layers are numbered by kind: conv1, unit1, pool1, conv2, ...
    """

    def __init__(self, layers: Layers, channels: int, size: Size = (1, 1)) -> None:
        self.layers = layers
        self.channels = channels
        self.size = size
        self._modules: OrderedDict[str, nn.Module] = OrderedDict()
        self._counts: Counter[str] = Counter()

    def add(self, kind: str, module: nn.Module) -> None:
        self._counts[kind] += 1
        self._modules[f"{kind}{self._counts[kind]}"] = module

    def conv(self, channels: int, kernel: int, *, stride: int = 1, padding: int = 0) -> None:
        """Convolution, batch norm, unit."""
        wide = self.layers.widened(channels)
        self.add(
            "conv", self.layers.conv(self.channels, wide, kernel, stride=stride, padding=padding)
        )
        self._resize(kernel, stride, padding)
        self.add("unit", self.layers.activation((channels, *self.size)))
        self.channels = channels

    def dense(self, features: int) -> None:
        """Dense layer, batch norm, unit."""
        self.add("dense", self.layers.dense(self.channels, self.layers.widened(features)))
        self.add("unit", self.layers.activation(features))
        self.channels = features

    def max_pool(self, kernel: int, stride: int) -> None:
        """Max pooling that keeps partial windows at the right and bottom, as Keras' "same" does."""
        self.add("pool", nn.MaxPool2d(kernel, stride, ceil_mode=True))
        # Rounded up: a window for every stride that still starts inside.
        self._resize(kernel, stride, 0, rounding=stride - 1)

    def dropout(self, probability: float) -> None:
        self.add("dropout", nn.Dropout(probability))

    def flatten(self) -> None:
        self.add("flatten", nn.Flatten())
        self.channels *= self.size[0] * self.size[1]
        self.size = (1, 1)

    def mean_pool(self) -> None:
        """The mean of each feature map."""
        self.add("pool", nn.AdaptiveAvgPool2d(1))
        self.size = (1, 1)
        self.flatten()

    def build(self) -> nn.Sequential:
        return nn.Sequential(self._modules)

    def _resize(self, kernel: int, stride: int, padding: int, rounding: int = 0) -> None:
        height, width = (
            (side + 2 * padding - kernel + rounding) // stride + 1 for side in self.size
        )
        if height < 1 or width < 1:
            raise ValueError(f"images are too small: a layer would give maps of {height}x{width}")
        self.size = (height, width)
