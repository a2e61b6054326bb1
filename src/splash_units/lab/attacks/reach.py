"""How far a changed pixel reaches into a network, along each axis: `Reach`, `Window`, and a node's
`Site`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True)
class Reach:
    """For every coordinate of a changed pixel along one axis, the interval that can differ at a
    node.

    `box` gives all intervals the size of the longest, within the axis.
    """

    first: Tensor
    last: Tensor
    length: int  #: of the axis at the node

    @cached_property
    def size(self) -> int:
        return int((self.last - self.first).max()) + 1

    @cached_property
    def start(self) -> Tensor:
        return self.first.clamp(max=self.length - self.size)

    @cached_property
    def box(self) -> Tensor:
        """The coordinates of each interval, shape (pixels, size)."""
        return self.start[:, None] + torch.arange(self.size, device=self.first.device)

    def joined(self, other: Reach) -> Reach:
        """What can differ in a sum of two nodes."""
        first, last = torch.minimum(self.first, other.first), torch.maximum(self.last, other.last)
        return Reach(first, last, self.length)

    def tiled(self, step: int) -> Reach:
        """The same in whole tiles of so many coordinates."""
        first = self.first // step * step
        last = (self.last // step + 1) * step - 1
        return Reach(first, last.clamp(max=self.length - 1), self.length)

    @staticmethod
    def of_pixels(length: int, device: torch.device) -> Reach:
        """At the image itself: the pixel."""
        return Reach(*2 * (torch.arange(length, device=device),), length)


@dataclass(frozen=True)
class Window:
    """A convolution or pool along one axis."""

    kernel: int
    stride: int
    padding: int

    @property
    def tiles(self) -> bool:
        """Whether no two windows meet and nothing is between them."""
        return self.kernel == self.stride and self.padding == 0

    def span(self, size: int) -> int:
        """How many coordinates it takes to make so many."""
        return (size - 1) * self.stride + self.kernel

    def reach(self, before: Reach, length: int) -> Reach:
        """What can differ after the operation, `length` being the axis' length there."""
        first = -((self.kernel - 1 - self.padding - before.first) // self.stride)
        last = (before.last + self.padding) // self.stride
        first = first.clamp(0, length - 1)
        return Reach(first, torch.maximum(last.clamp(max=length - 1), first), length)

    def source(self, after: Reach, length: int) -> Tensor:
        """The coordinates read for each interval, shape (pixels, span); `length` stands for
        padding.
        """
        span = torch.arange(self.span(after.size), device=after.first.device)
        coordinates = after.start[:, None] * self.stride - self.padding + span
        inside = (coordinates >= 0) & (coordinates < length)
        return torch.where(inside, coordinates, length)


@dataclass(frozen=True)
class Changes:
    """Variants of an image: which pixels differ, (variants, pixels), and their values, (..., C)."""

    rows: Tensor
    columns: Tensor
    values: Tensor

    @cached_property
    def repeated(self) -> Tensor:
        """Which pixels a variant has named before, (variants, pixels)."""
        same = (self.rows[:, :, None] == self.rows[:, None, :]) & (
            self.columns[:, :, None] == self.columns[:, None, :]
        )
        return same.tril(-1).any(2)

    def applied_to(self, image: Tensor) -> Tensor:
        """The variants of one image, (1, C, H, W), as images."""
        variants = image.repeat(len(self.rows), 1, 1, 1)
        number = torch.arange(len(self.rows), device=image.device)[:, None]
        variants[number, :, self.rows, self.columns] = self.values
        return variants


@dataclass(frozen=True)
class Site:
    """A node at which a variant differs from the clean image only in boxes around its changed
    pixels.
    """

    height: Reach
    width: Reach

    @property
    def positions(self) -> int:
        return self.height.length * self.width.length

    @property
    def is_of_pixels(self) -> bool:
        """Whether a changed pixel is one position here, and every position a pixel."""
        return all(
            axis.size == 1 and len(axis.first) == axis.length for axis in (self.height, self.width)
        )

    def joined(self, other: Site) -> Site:
        """What can differ in a sum of two nodes."""
        return Site(self.height.joined(other.height), self.width.joined(other.width))

    def tiled(self, rows: int, columns: int) -> Site:
        """The same in whole tiles."""
        return Site(self.height.tiled(rows), self.width.tiled(columns))

    def covered(self, pixels: int) -> float:
        """What the boxes of some changed pixels amount to, as a share of the node."""
        return pixels * self.height.size * self.width.size / self.positions

    @cached_property
    def clean_map(self) -> Tensor:
        """The number of each position, row by row; a further row and column stand for padding."""
        shape, device = (self.height.length, self.width.length), self.height.first.device
        numbers = torch.full((shape[0] + 1, shape[1] + 1), self.positions, device=device)
        numbers[:-1, :-1] = torch.arange(self.positions, device=device).view(shape)
        return numbers.flatten()

    def at(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Where on a map the crossings of some rows and columns are, (variants, crossings)."""
        return (rows[..., :, None] * (self.width.length + 1) + columns[..., None, :]).flatten(1)

    def places(self, changes: Changes) -> Tensor:
        """The number of each position in a variant's boxes, (variants, positions)."""
        rows, columns = self.height.box[changes.rows], self.width.box[changes.columns]
        return (rows[..., :, None] * self.width.length + columns[..., None, :]).flatten(1)

    def map(self, changes: Changes) -> Tensor:
        """A map for every variant; the boxes' values have the numbers after the padding's."""
        boxes = self.at(self.height.box[changes.rows], self.width.box[changes.columns])
        numbers = torch.arange(boxes.numel(), device=boxes.device).view_as(boxes)
        return self.clean_map.repeat(len(boxes), 1).scatter_(1, boxes, numbers + self.positions + 1)


class Variants:
    """The values at a site in many variants of one image: the clean ones, and the boxes that
    differ.

    Values are rows of channels, so that any set of positions is one selection of rows.
    """

    def __init__(self, site: Site, clean: Tensor, boxes: Tensor, changes: Changes):
        self.site, self.boxes, self.changes = site, boxes, changes
        self._clean = clean

    def around_pixels(self, rows: Tensor, columns: Tensor, fill: float = 0.0) -> Tensor:
        """The values at each changed pixel's tabled rows and columns, (boxes, C, h, w)."""
        rows, columns = rows[self.changes.rows], columns[self.changes.columns]
        values = self._select(self._map.gather(1, self.site.at(rows, columns)), fill)
        return values.view(
            len(self.boxes), rows.shape[-1], columns.shape[-1], values.shape[1]
        ).permute(0, 3, 1, 2)

    @cached_property
    def whole(self) -> Tensor:
        """The values of whole variants, (variants, C, H, W)."""
        height, width, count = (
            self.site.height.length,
            self.site.width.length,
            len(self.changes.rows),
        )
        values = self._clean.expand(count, -1, -1).flatten(0, 1)
        first = self.site.positions * torch.arange(count, device=values.device)
        places = first[:, None] + self.site.places(self.changes)
        values.index_copy_(0, places.flatten(), self._box_rows)
        return values.view(count, height, width, values.shape[1]).permute(0, 3, 1, 2)

    @property
    def differences(self) -> Tensor:
        """By how much changed pixels differ from clean ones, (variants, pixels, C).

        For a site whose boxes are of one position. A pixel that was named before differs no more.
        """
        difference = self._box_rows - self._clean[self.site.places(self.changes).flatten()]
        difference = difference.view(*self.changes.rows.shape, -1)
        return difference.masked_fill(self.changes.repeated[..., None], 0)

    @cached_property
    def _map(self) -> Tensor:
        return self.site.map(self.changes)

    @property
    def _box_rows(self) -> Tensor:
        return self.boxes.permute(0, 2, 3, 1).reshape(-1, self._clean.shape[1])

    def _select(self, numbers: Tensor, fill: float = 0.0) -> Tensor:
        padding = self._clean.new_full((1, self._clean.shape[1]), fill)
        rows = torch.cat([self._clean, padding, self._box_rows])
        return rows.index_select(0, numbers.flatten())
