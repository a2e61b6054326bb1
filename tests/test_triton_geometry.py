"""How tensors are seen and cut by the GPU kernel."""

import math

import pytest
import torch

from splash_units.kernels.triton.geometry import own_dimensions, tiles_of, view_of
from triton_kernel import SHARINGS


@pytest.mark.parametrize("sharing", SHARINGS)
def test_groups_are_those_that_share(sharing: str) -> None:
    """By (outer, group, inner), numbers must meet the slopes that broadcasting gives them."""
    own, trailing, shape = SHARINGS[sharing]
    a = torch.arange(math.prod(own)).reshape(1, *own)
    x = torch.empty(shape)
    view = view_of(x, own_dimensions(x, a, trailing))
    broadcast = a.reshape(1, *own, *(1 for _ in range(trailing))).expand(1, *shape)
    groups = torch.arange(view.groups).reshape(1, -1, 1).expand(view.outer, -1, view.inner)
    assert torch.equal(broadcast.reshape(groups.shape), groups)


@pytest.mark.parametrize(
    ("outer", "groups", "inner"), [(1, 1, 10**10), (128, 16, 1024), (7, 3, 49), (10**8, 300, 1)]
)
def test_tiles_cover_everything_once(outer: int, groups: int, inner: int) -> None:
    tiles = tiles_of(outer, groups, inner)
    assert tiles.width == (groups if tiles.by_column else inner)
    assert (tiles.column_blocks - 1) * tiles.columns < tiles.width
    assert tiles.column_blocks * tiles.columns >= tiles.width
    row_blocks = math.ceil(outer / tiles.rows)
    assert tiles.programs == row_blocks * tiles.column_blocks * (1 if tiles.by_column else groups)
    assert tiles.programs < 2**31  # the most that a grid's first dimension has
    assert tiles.rows * tiles.columns <= 2048
