"""Whole training steps of the paper's networks, with ReLU, SPLASH, and SPLASH fused with norms."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from splash_units import catalogue
from splash_units.lab import models
from splash_units.lab.assembly import laid_out, wants_channels_last
from splash_units.lab.timing import Work
from splash_units.unit import Splash

BATCH_SIZE = 128
NETWORKS = ("mlp", "lenet5", "resnet20", "nin", "allcnn")

Build = Callable[[str], nn.Module]


def with_relu(name: str) -> nn.Module:
    """Batch norm, then ReLU."""
    return _network(name, "relu")


def with_splash(name: str) -> nn.Module:
    """Batch norm, then a SPLASH unit of its own: what swapping the modules of a network gives."""
    network = with_relu(name)
    for parent in tuple(network.modules()):
        for child_name, child in tuple(parent.named_children()):
            if isinstance(child, nn.ReLU):
                setattr(parent, child_name, Splash())
    return network


def with_fused_splash(name: str, num_hinges: int = 7) -> nn.Module:
    """Batch norm and SPLASH in one pass wherever one follows the other."""
    return _network(name, "splash", num_hinges=num_hinges)


def _network(name: str, unit: str, **unit_options: Any) -> nn.Module:
    """The network for MNIST (the MLP) or CIFAR-10, laid out as training lays it out."""
    channels = _image_shape(name)[0]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        network = models.build(
            name,
            catalogue.unit(unit, **unit_options),
            mean=(0.5,) * channels,
            std=(0.25,) * channels,
            in_channels=channels,
        )
    return laid_out(network)


def _image_shape(name: str) -> tuple[int, int, int]:
    return (1, 28, 28) if name == "mlp" else (3, 32, 32)


def images_and_labels(name: str, network: nn.Module, device: str) -> tuple[Tensor, Tensor]:
    """A batch of noise in [0, 1], in the layout that the network wants."""
    generator = torch.Generator().manual_seed(0)
    images = torch.rand((BATCH_SIZE, *_image_shape(name)), generator=generator)
    layout = torch.channels_last if wants_channels_last(network) else torch.contiguous_format
    labels = torch.randint(10, (BATCH_SIZE,), generator=generator)
    return images.to(device, memory_format=layout), labels.to(device)


def training_step(name: str, build: Build, device: str, compiled: bool = False) -> Work:
    """Forward, loss, backward, SGD with momentum; gradients are made anew in each step."""
    network = build(name).to(device).train()
    images, labels = images_and_labels(name, network, device)
    # A small rate: over hundreds of steps on noise the network must stay where numbers are usual.
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-4, momentum=0.9, fused=True)
    called = torch.compile(network, dynamic=False) if compiled else network

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(called(images), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step
