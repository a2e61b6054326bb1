"""The five networks of the study, each with a unit of choice.

Every hidden activation is batch norm, then the unit, whatever the unit, though the sources of
LeNet5 and All-CNN-C have no batch norm: the paper's hinges need it, and comparisons must be of
units alone. Kernels start from He's normal distribution and biases from zero, for every unit.

A network takes images in [0, 1], standardises them itself (so that attacks work on pixels) and
returns logits. `network.features(images)` is what its last linear map sees, one row an image.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from splash_units.catalogue import Unit
from splash_units.lab.layers import Chain, Input, Layers, Size

# A builder gets the layers, the number of classes and channels, the size of the images after
# padding, and options; it returns the network up to its features, and from there to logits.
Builder = Callable[..., tuple[nn.Module, nn.Module]]


class Network(nn.Module):
    """Input, body, head: images in [0, 1] to logits."""

    def __init__(self, name: str, input: Input, body: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.name = name
        self.input = input
        self.body = body
        self.head = head

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.head(self.body(self.input(images)))
        return logits

    def features(self, images: Tensor) -> Tensor:
        """What the last linear map sees, (N, features); maps are averaged over positions."""
        features: Tensor = self.body(self.input(images))
        return features.mean((2, 3)) if features.ndim == 4 else features


def mlp(
    layers: Layers,
    *,
    num_classes: int,
    in_channels: int,
    image_size: Size,
    widths: Sequence[int] = (256, 64, 32),
) -> tuple[nn.Module, nn.Module]:
    """Dense layers of the given widths."""
    body = Chain(layers, in_channels, image_size)
    body.flatten()
    for width in widths:
        body.dense(width)
    return body.build(), layers.dense(body.channels, num_classes, bias=True)


def lenet5(
    layers: Layers, *, num_classes: int, in_channels: int, image_size: Size
) -> tuple[nn.Module, nn.Module]:
    """LeNet5 with max pooling."""
    body = Chain(layers, in_channels, image_size)
    body.conv(6, 5)
    body.max_pool(2, 2)
    body.conv(16, 5)
    body.max_pool(2, 2)
    body.flatten()
    body.dense(120)
    body.dense(84)
    return body.build(), layers.dense(body.channels, num_classes, bias=True)


def nin(
    layers: Layers,
    *,
    num_classes: int,
    in_channels: int,
    image_size: Size,
    dropout: Sequence[float] = (0.5, 0.5),
    class_unit: bool | None = None,
) -> tuple[nn.Module, nn.Module]:
    """Network in network, with max pooling in both places.

    The last unit acts on the class scores; `class_unit` None keeps it except for tanh and sigmoid,
    which would bound the logits.
    """
    after_first, after_second = _dropout("nin", dropout, 2)
    if class_unit is None:
        class_unit = layers.unit.name not in ("tanh", "sigmoid")
    body = Chain(layers, in_channels, image_size)
    body.conv(192, 5, padding=2)
    body.conv(160, 1)
    body.conv(96, 1)
    body.max_pool(3, 2)
    body.dropout(after_first)
    body.conv(192, 5, padding=2)
    body.conv(192, 1)
    body.conv(192, 1)
    body.max_pool(3, 2)
    body.dropout(after_second)
    body.conv(192, 3, padding=1)
    body.conv(192, 1)
    head = Chain(layers, body.channels, body.size)
    if class_unit:
        head.conv(num_classes, 1)
    else:
        head.add("conv", layers.conv(body.channels, num_classes, 1))
        head.add("norm", layers.norm(num_classes))
    head.mean_pool()
    return body.build(), head.build()


def allcnn(
    layers: Layers,
    *,
    num_classes: int,
    in_channels: int,
    image_size: Size,
    dropout: Sequence[float] = (0.2, 0.5, 0.5),
) -> tuple[nn.Module, nn.Module]:
    """All-CNN-C; the first dropout is on the input, the class scores have neither norm nor unit."""
    on_input, after_first, after_second = _dropout("allcnn", dropout, 3)
    body = Chain(layers, in_channels, image_size)
    body.dropout(on_input)
    body.conv(96, 3, padding=1)
    body.conv(96, 3, padding=1)
    body.conv(96, 3, stride=2, padding=1)
    body.dropout(after_first)
    body.conv(192, 3, padding=1)
    body.conv(192, 3, padding=1)
    body.conv(192, 3, stride=2, padding=1)
    body.dropout(after_second)
    body.conv(192, 3)
    body.conv(192, 1)
    head = Chain(layers, body.channels, body.size)
    head.add("conv", layers.conv(body.channels, num_classes, 1, bias=True))
    head.mean_pool()
    return body.build(), head.build()


def resnet20(
    layers: Layers,
    *,
    num_classes: int,
    in_channels: int,
    image_size: Size,
    preactivation: bool = False,
) -> tuple[nn.Module, nn.Module]:
    """ResNet-20 with projections where the shape changes: He's first version, or pre-activation.

    In the first version the nine units after additions have no batch norm of their own, so that
    their inputs are not standardised; in the pre-activation network all nineteen have.
    """
    body = Chain(layers, in_channels, image_size)
    if preactivation:
        body.add("conv", layers.conv(in_channels, layers.widened(16), 3, padding=1))
    else:
        body.conv(16, 3, padding=1)
    body.channels = 16
    block = PreactivationBlock if preactivation else ResidualBlock
    for channels, stride in (
        [(16, 1)] * 3 + [(32, 2), (32, 1), (32, 1)] + [(64, 2), (64, 1), (64, 1)]
    ):
        body.add("block", block(layers, body.channels, channels, body.size, stride))
        body.channels = channels
        body.size = _halved(body.size) if stride == 2 else body.size
    if preactivation:
        body.add("unit", layers.activation((64, *body.size)))
    body.mean_pool()
    return body.build(), layers.dense(64, num_classes, bias=True)


class ResidualBlock(nn.Module):
    """unit(norm(conv(unit(norm(conv(x))))) + shortcut(x))."""

    def __init__(self, layers: Layers, inputs: int, outputs: int, size: Size, stride: int) -> None:
        super().__init__()
        wide = layers.widened(outputs)
        shape = (outputs, *(_halved(size) if stride == 2 else size))
        self.conv1 = layers.conv(inputs, wide, 3, stride=stride, padding=1)
        self.unit1 = layers.activation(shape)
        self.conv2 = layers.conv(outputs, wide, 3, padding=1)
        self.norm2 = layers.norm(wide)
        self.shortcut = (
            layers.conv(inputs, outputs, 1, stride=stride) if stride == 2 else nn.Identity()
        )
        self.unit2 = layers.unit(shape)
        self.pieces = layers.unit.inputs_per_output

    def forward(self, x: Tensor) -> Tensor:
        shortcut = self.shortcut(x)
        if self.pieces > 1:
            # Maxout takes the maximum over pieces of the sum: each piece is given the shortcut.
            shortcut = shortcut.repeat(1, self.pieces, 1, 1)
        y: Tensor = self.unit2(self.norm2(self.conv2(self.unit1(self.conv1(x)))) + shortcut)
        return y


class PreactivationBlock(nn.Module):
    """x + conv(unit(norm(conv(a)))) with a = unit(norm(x)); a projection is of a, not of x.

    What runs through the shortcuts feeds units, so it is as wide as they need.
    """

    def __init__(self, layers: Layers, inputs: int, outputs: int, size: Size, stride: int) -> None:
        super().__init__()
        wide = layers.widened(outputs)
        shape = (outputs, *(_halved(size) if stride == 2 else size))
        self.unit1 = layers.activation((inputs, *size))
        self.conv1 = layers.conv(inputs, wide, 3, stride=stride, padding=1)
        self.unit2 = layers.activation(shape)
        self.conv2 = layers.conv(outputs, wide, 3, padding=1)
        self.projection = layers.conv(inputs, wide, 1, stride=stride) if stride == 2 else None

    def forward(self, x: Tensor) -> Tensor:
        activated = self.unit1(x)
        shortcut = x if self.projection is None else self.projection(activated)
        y: Tensor = self.conv2(self.unit2(self.conv1(activated))) + shortcut
        return y


@dataclass(frozen=True)
class _Entry:
    builder: Builder
    pad_to: int


# The convolutional networks were made for 32x32; 28x28 images are padded to that.
_builders = {
    "mlp": _Entry(mlp, pad_to=0),
    "lenet5": _Entry(lenet5, pad_to=32),
    "nin": _Entry(nin, pad_to=32),
    "allcnn": _Entry(allcnn, pad_to=32),
    "resnet20": _Entry(resnet20, pad_to=32),
}


def names() -> tuple[str, ...]:
    """The networks that `build` knows."""
    return tuple(_builders)


def register(name: str, builder: Builder, *, pad_to: int = 0, replace: bool = False) -> None:
    """Make a network of your own known by `name` everywhere in the lab.

    `builder(layers, *, num_classes, in_channels, image_size, **options)` returns two modules: from
    standardised images to features, and from there to logits. Images smaller than `pad_to` are
    padded before they get there.
    """
    if not callable(builder):
        raise TypeError(f"a builder is a function, got {type(builder).__name__}")
    if name in _builders and not replace:
        raise ValueError(f"network name {name!r} is taken; known are {', '.join(names())}")
    _builders[name] = _Entry(builder, pad_to)


def build(
    name: str,
    unit: Unit,
    *,
    mean: Sequence[float],
    std: Sequence[float],
    num_classes: int = 10,
    in_channels: int = 3,
    image_size: Size | None = None,
    batch_norm: bool = True,
    bias: bool = True,
    pad_to: int | None = None,
    fused: bool = True,
    **options: Any,
) -> Network:
    """Build a network by name, with `unit` for every hidden activation.

    `mean` and `std` standardise the input, one value a channel. `image_size` (height, width)
    defaults to 28x28 for one channel and 32x32 for three; `pad_to` is the side that smaller images
    are padded to, by default 32 for all but the MLP. `batch_norm=False` and `bias=False` leave
    out batch norms and the biases of hidden layers; `fused=False` keeps batch norm and unit apart
    where the unit offers both in one pass. `options` are the network's own.

    The kernels depend on the state of torch's global generator alone, not on the unit.
    """
    if name not in _builders:
        near = difflib.get_close_matches(str(name), names(), n=2)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known are {', '.join(names())}"
        raise ValueError(f"unknown network {name!r}; {hint}")
    entry = _builders[name]
    _check_options(name, entry.builder, options)
    _check_input(num_classes, in_channels, mean, std)
    if image_size is None:
        image_size = (28, 28) if in_channels == 1 else (32, 32)
    side = entry.pad_to if pad_to is None else pad_to
    size = (max(image_size[0], side), max(image_size[1], side))
    seed = int(torch.randint(2**62, ()))
    layers = Layers(unit, torch.Generator().manual_seed(seed), batch_norm, bias, fused)
    body, head = entry.builder(
        layers, num_classes=num_classes, in_channels=in_channels, image_size=size, **options
    )
    return Network(name, Input(mean, std, size), body, head)


def _check_options(name: str, builder: Builder, options: dict[str, Any]) -> None:
    parameters = inspect.signature(builder).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    own = [
        key
        for key in list(parameters)[1:]
        if key not in ("num_classes", "in_channels", "image_size")
    ]
    allowed = [*own, "image_size", "batch_norm", "bias", "pad_to", "fused"]
    for option in options:
        if option not in own:
            raise ValueError(
                f"network {name!r} has no option {option!r}; it has {', '.join(allowed)}"
            )


def _check_input(
    num_classes: int, in_channels: int, mean: Sequence[float], std: Sequence[float]
) -> None:
    if num_classes < 2:
        raise ValueError(f"num_classes must be at least 2, got {num_classes}")
    if in_channels not in (1, 3):
        raise ValueError(f"in_channels must be 1 or 3, got {in_channels}")
    if not len(mean) == len(std) == in_channels:
        raise ValueError(
            f"mean and std need one value for each of {in_channels} channels, got {mean} and {std}"
        )
    if any(not deviation > 0 for deviation in std):
        raise ValueError(f"std must be positive, got {std}")


def _dropout(name: str, probabilities: Sequence[float], count: int) -> Sequence[float]:
    if len(probabilities) != count or any(not 0 <= p < 1 for p in probabilities):
        raise ValueError(
            f"network {name!r} needs {count} dropout probabilities from 0 up to 1, "
            f"got {probabilities}"
        )
    return probabilities


def _halved(size: Size) -> Size:
    return (size[0] + 1) // 2, (size[1] + 1) // 2
