"""A network with dropout and a data set that train in milliseconds, registered as a plugin would.

For the tests that run real processes, it counts its training steps in the file that TINY_STEPS
names, and at step TINY_HANG it says so by making the file TINY_STEPS + ".hanging" and stays there.
"""

import os
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from splash_units.lab import data, models
from splash_units.lab.layers import Chain, Layers, Size

steps_here = 0


class CountsSteps(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        global steps_here
        if self.training and "TINY_STEPS" in os.environ:
            steps_here += 1
            with open(os.environ["TINY_STEPS"], "a") as file:
                file.write(".")
            if steps_here == int(os.environ.get("TINY_HANG", "0")):
                Path(os.environ["TINY_STEPS"] + ".hanging").touch()
                time.sleep(600)
        return x


def tiny(
    layers: Layers, *, num_classes: int, in_channels: int, image_size: Size, **_: Any
) -> tuple[nn.Module, nn.Module]:
    body = Chain(layers, in_channels, image_size)
    body.add("pool", nn.AvgPool2d(4))
    body.size = (image_size[0] // 4, image_size[1] // 4)
    body.conv(6, 3)
    body.flatten()
    body.dropout(0.2)
    body.dense(12)
    body.add("counter", CountsSteps())
    return body.build(), layers.dense(body.channels, num_classes, bias=True)


def blobs() -> data.DataSet:
    """Ten classes, each with 3x3 squares of its own under noise: images of 12x12."""
    generator = torch.Generator().manual_seed(0)
    squares = torch.randint(0, 256, (10, 3, 3), generator=generator)
    patterns = squares.repeat_interleave(4, 1).repeat_interleave(4, 2)
    labels = torch.arange(800) % 10
    noise = torch.randint(-200, 201, (800, 12, 12), generator=generator)
    images = (patterns[labels] + noise).clamp(0, 255).to(torch.uint8)
    return data.from_arrays("blobs", images, labels)


models.register("tiny", tiny, replace=True)
data.register("blobs", blobs, replace=True)
