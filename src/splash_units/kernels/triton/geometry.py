"""How tensors look to the GPU kernel: dense memory of (outer, groups, inner), cut into tiles."""

import functools
import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

TILE: Final = 2048  # elements a program has,
WARPS: Final = 8  # of 32 threads: 8 elements a thread, which is what registers have room for
# Columns of a tile whose columns are groups: 32 bytes or more of neighbours for every row, and many
# rows, because each tile writes sums of its own for every column.
GROUP_COLUMNS: Final = 16


@dataclass(frozen=True)
class View:
    """Dense memory: element (o, g, i) lies at (o · groups + g) · inner + i.

    `memory` is x itself where its strides allow, else a contiguous copy.
    """

    memory: Tensor
    outer: int
    groups: int
    inner: int

    @property
    def tiles(self) -> "Tiles":
        return tiles_of(self.outer, self.groups, self.inner)


@dataclass(frozen=True)
class Tiles:
    """A :class:`View` cut into tiles of (rows, columns): powers of two, as Triton wants them."""

    rows: int
    columns: int
    width: int  # how many columns there are to cut
    column_blocks: int
    programs: int
    per_group: int  # tiles that one group has a share in
    by_column: bool  # columns are groups, not elements of one group


def own_dimensions(x: Tensor, slopes: Tensor, trailing: int) -> range:
    """The dimensions of x along which slopes of shape (hinges, own...) differ.

    `trailing` dimensions of x stand to the right of the slopes' own. The kernel serves one run of
    whole dimensions, which those where x has one element do not part; for anything else that
    broadcasts there is a ValueError.
    """
    own = slopes.shape[1:]
    offset = x.dim() - trailing - len(own)
    differing = [offset + d for d, size in enumerate(own) if size != 1]
    run = range(differing[0], differing[-1] + 1) if differing else range(0)
    whole = offset >= 0 and all(x.shape[d] == own[d - offset] for d in differing)
    if not whole or any(x.shape[d] != 1 for d in run if d not in differing):
        raise ValueError(
            f"slopes of shape {tuple(slopes.shape)} with {trailing} trailing dimensions are no run "
            f"of whole dimensions of x, of shape {tuple(x.shape)}"
        )
    return run


def view_of(x: Tensor, own: range) -> View:
    """x with the dimensions `own` as its groups."""
    if not own:
        return View(x if _is_dense(x) else x.contiguous(), 1, 1, x.numel())
    if own == range(1, 2) and not x.is_contiguous() and _is_channels_last(x):
        channels = x.shape[1]
        return View(x, x.numel() // max(channels, 1), channels, 1)
    sizes = x.shape
    groups = math.prod(sizes[own.start : own.stop])
    outer, inner = math.prod(sizes[: own.start]), math.prod(sizes[own.stop :])
    return View(x.contiguous(), outer, groups, inner)


def like(grad: Tensor, memory: Tensor) -> Tensor:
    """`grad` to be walked beside `memory`: it may come in any strides, expanded ones too."""
    if grad.stride() == memory.stride() and grad.dtype == memory.dtype:
        return grad
    return torch.empty_like(memory).copy_(grad)


@functools.lru_cache(maxsize=1024)  # a network has few shapes, and meets them in every step
def tiles_of(outer: int, groups: int, inner: int) -> Tiles:
    """Tiles as wide as what lies side by side, then as high as there is room."""
    by_column = inner == 1 and groups > 1
    width = groups if by_column else inner
    columns = min(_power_of_two(width), GROUP_COLUMNS if by_column else TILE)
    rows = min(_power_of_two(outer), TILE // columns)
    column_blocks, row_blocks = -(-width // columns), -(-outer // rows)
    return Tiles(
        rows=rows,
        columns=columns,
        width=width,
        column_blocks=column_blocks,
        programs=row_blocks * column_blocks * (1 if by_column else groups),
        per_group=row_blocks * (1 if by_column else column_blocks),
        by_column=by_column,
    )


def _power_of_two(n: int) -> int:
    """The least power of two that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


def _is_dense(x: Tensor) -> bool:
    """Whether x fills a stretch of memory, each place once, in whatever order of dimensions."""
    filled = 1
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size != 1 and stride != filled:
            return False
        filled *= size
    return True


def _is_channels_last(x: Tensor) -> bool:
    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(x.dim())
    return layout is not None and x.is_contiguous(memory_format=layout)
