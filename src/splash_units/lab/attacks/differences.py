"""The first convolution of a network, for variants of one image: the clean values, and what each
changed pixel adds to them.

A convolution is linear, so that a changed pixel adds its difference times the part of the kernels
that reaches from it; nothing else of the image is read. What it adds to a box depends only on where
it lies from the box's beginning. So one table is made of the image's clean boxes and of what a
pixel adds from any place, and each box is a weighted sum of a few of its rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from splash_units.lab.attacks.operations import Windowed, convolve
from splash_units.lab.attacks.reach import Reach, Site, Variants, Window

LARGEST_TABLE = 2**23
"""How many values the clean boxes of an image may take: 32 MiB in single precision."""


@dataclass(frozen=True)
class Axis:
    """Along one axis, where the boxes of changed pixels begin, and what of the image they see."""

    starts: Tensor  #: all coordinates at which a box begins
    number: Tensor  #: for every coordinate of a changed pixel, which of the starts is its box's
    corner: Tensor  #: for every coordinate of a changed pixel, the first one that its box sees
    size: int  #: of a box
    span: int  #: how many coordinates of the image a box sees

    @staticmethod
    def of(window: Window, reach: Reach) -> Axis:
        starts, number = torch.unique(reach.start, return_inverse=True)
        corner = reach.start * window.stride - window.padding
        return Axis(starts, number, corner, reach.size, window.span(reach.size))

    @property
    def boxes(self) -> Tensor:
        """The coordinates of all boxes, (starts, size)."""
        return self.starts[:, None] + torch.arange(self.size, device=self.starts.device)

    def offsets(self, coordinates: Tensor) -> Tensor:
        """How far each pixel of a variant lies into what each of its boxes sees: (variants, boxes,
        pixels), below 0 or from `span` on if it is not seen.
        """
        return coordinates[:, None, :] - self.corner[coordinates][:, :, None]


@dataclass(frozen=True)
class Differences:
    """A convolution of an image of which single pixels change."""

    height: Axis
    width: Axis
    additions: Tensor  #: what a pixel adds to a box: a row for each channel, row and column
    channels: int  #: of the image

    @staticmethod
    def of(
        module: nn.Conv2d, windowed: Windowed, before: Site, after: Site, image: Tensor
    ) -> Differences | None:
        """The convolution of an image, if its boxes can be had so and a table of them is small."""
        if not before.is_of_pixels:
            return None
        height = Axis.of(windowed.vertical, after.height)
        width = Axis.of(windowed.horizontal, after.width)
        values = module.out_channels * height.size * width.size
        if len(height.starts) * len(width.starts) * values > LARGEST_TABLE:
            return None
        channels = image.shape[1]
        each = torch.eye(channels * height.span * width.span, dtype=image.dtype)
        pixels = each.view(-1, channels, height.span, width.span).to(image.device)
        additions = convolve(module, pixels, with_bias=False).detach()
        return Differences(height, width, as_rows(additions), channels)

    def table(self, clean: Tensor) -> Tensor:
        """All boxes of one image behind the convolution, (1, C, H, W), then the additions."""
        rows, columns = self.height.boxes, self.width.boxes
        boxes = clean[0][:, rows[:, None, :, None], columns[None, :, None, :]]
        return torch.cat([as_rows(boxes.flatten(1, 2).transpose(0, 1)), self.additions])

    def boxes(self, table: Tensor, pixels: Variants) -> Tensor:
        """The boxes of variants of the image that the table was made for, (boxes, C, h, w)."""
        changes = pixels.changes
        down, right = self.height.offsets(changes.rows), self.width.offsets(changes.columns)
        seen = (down >= 0) & (down < self.height.span) & (right >= 0) & (right < self.width.span)
        area = self.height.span * self.width.span
        channel = area * torch.arange(self.channels, device=table.device)
        place = len(table) - len(self.additions) + down * self.width.span + right
        additions = torch.where(seen, place, 0)[..., None] + channel
        weights = pixels.differences[:, None] * seen[..., None]
        clean = (
            self.height.number[changes.rows] * len(self.width.starts)
            + self.width.number[changes.columns]
        )
        values = F.embedding_bag(
            torch.cat([clean[..., None], additions.flatten(2)], 2).flatten(0, 1),
            table,
            per_sample_weights=F.pad(weights.flatten(2), (1, 0), value=1.0).flatten(0, 1),
            mode="sum",
        )
        shape = (len(values), self.height.size, self.width.size, -1)
        return values.view(shape).permute(0, 3, 1, 2)


def as_rows(boxes: Tensor) -> Tensor:
    """Boxes (N, C, h, w) as rows of positions of channels, (N, h w C)."""
    return boxes.permute(0, 2, 3, 1).flatten(1)
