"""What runs on the GPU for batch norm and SPLASH in one: statistics, forward, backward.

Forward reads x twice, for its statistics and for the result; backward reads x and the gradient
twice, for their sums and for dx, and writes no normalised copy in between.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# The types are Triton's here, and its compiler infers them.

import triton
import triton.language as tl

from splash_units.kernels.triton.device import (
    in_64_bits,
    of_group,
    place,
    read,
    store_slope_sums,
    tile_sum,
    unit,
    unit_gradient,
)

# --- statistics -----------------------------------------------------------------------------------


@triton.jit
def moments(
    x,
    parts,
    outer,
    groups,
    width,
    column_blocks,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BY_COLUMN: tl.constexpr,
):
    """Into `parts`, (tiles, 3, groups): how many elements, their mean, their squared deviations."""
    offsets, inside, group, groups, tile = place(
        outer, groups, width, column_blocks, ROWS, COLUMNS, BY_COLUMN
    )
    wide = parts.dtype.element_ty
    values = tl.load(x + offsets, mask=inside, other=0.0).to(wide)
    count = tile_sum(inside.to(wide), BY_COLUMN)
    # A column past the last group has no elements, and is not stored.
    mean = tile_sum(values, BY_COLUMN) / tl.maximum(count, 1.0)
    away = tl.where(inside, values - mean, 0.0)
    own = parts + tile * 3 * groups + group
    counts = group < groups
    tl.store(own, count, mask=counts)
    tl.store(own + groups, mean, mask=counts)
    tl.store(own + 2 * groups, tile_sum(away * away, BY_COLUMN), mask=counts)


@triton.jit
def moments_of(parts, first, tiles, channel, channels, TILES: tl.constexpr):
    """The three moments of some tiles of some channels, each (TILES, CHANNELS) in float64."""
    tile = first + tl.arange(0, TILES).to(tl.int64)[:, None]
    at = parts + tile * 3 * channels + channel[None, :]
    there = (tile < tiles) & (channel[None, :] < channels)
    n = tl.load(at, mask=there, other=0.0).to(tl.float64)
    m = tl.load(at + channels, mask=there, other=0.0).to(tl.float64)
    d = tl.load(at + 2 * channels, mask=there, other=0.0).to(tl.float64)
    return n, m, d


@triton.jit
def move_towards(running, value, momentum, mask):
    before = tl.load(running, mask=mask, other=0.0).to(tl.float64)
    after = (1.0 - momentum) * before + momentum * value
    if running.dtype.element_ty != tl.float64:
        after = after.to(tl.float32)  # not all devices get to 16 bits from 64 in one step
    tl.store(running, after.to(running.dtype.element_ty), mask=mask)


@triton.jit
def join_moments(
    parts,
    mean,
    inverse_std,
    running_mean,
    running_var,
    tiles,
    channels,
    momentum: tl.float64,
    eps: tl.float64,
    TILES: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    """Mean and 1/std of each channel, and the running statistics moved towards them.

    In float64 and from deviations about each tile's own mean (Chan et al. 1979): as exact as two
    passes over everything. Running variance is the unbiased one, as batch norm has it.
    """
    channels = in_64_bits(channels)
    channel = tl.program_id(0).to(tl.int64) * CHANNELS + tl.arange(0, CHANNELS)
    counts = channel < channels
    count = tl.zeros((CHANNELS,), tl.float64)
    total = tl.zeros((CHANNELS,), tl.float64)
    for first in range(0, tiles, TILES):
        n, m, _ = moments_of(parts, first, tiles, channel, channels, TILES)
        count += tl.sum(n, 0)
        total += tl.sum(n * m, 0)
    middle = total / tl.where(counts, count, 1.0)
    deviation = tl.zeros((CHANNELS,), tl.float64)
    for first in range(0, tiles, TILES):
        n, m, d = moments_of(parts, first, tiles, channel, channels, TILES)
        gap = m - middle[None, :]
        deviation += tl.sum(d + n * gap * gap, 0)

    variance = deviation / tl.where(counts, count, 1.0)
    std = tl.sqrt(tl.where(counts, variance + eps, 1.0))
    tl.store(mean + channel, middle.to(mean.dtype.element_ty), mask=counts)
    tl.store(inverse_std + channel, (1.0 / std).to(inverse_std.dtype.element_ty), mask=counts)
    if running_mean is not None:
        unbiased = deviation / tl.where(counts, count - 1.0, 1.0)
        move_towards(running_mean + channel, middle, momentum, counts)
        move_towards(running_var + channel, unbiased, momentum, counts)


# --- forward and backward -----------------------------------------------------------------------


@triton.jit
def normalised(x, offsets, inside, mean, inverse_std, weight, bias, hinges, group, groups):
    """A tile's x̂ = (x − mean) / std, and the z that the unit sees."""
    values = read(x, offsets, inside, hinges)
    standard = (values - of_group(mean, group, groups)) * of_group(inverse_std, group, groups)
    z = standard
    if weight is not None:
        z = z * of_group(weight, group, groups)
    if bias is not None:
        z = z + of_group(bias, group, groups)
    return standard, z


@triton.jit
def normalised_forward(
    x,
    y,
    mean,
    inverse_std,
    weight,
    bias,
    a_pos,
    a_neg,
    hinges,
    outer,
    groups,
    width,
    column_blocks,
    HINGES: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BY_COLUMN: tl.constexpr,
):
    offsets, inside, group, groups, _ = place(
        outer, groups, width, column_blocks, ROWS, COLUMNS, BY_COLUMN
    )
    _, z = normalised(x, offsets, inside, mean, inverse_std, weight, bias, hinges, group, groups)
    h = unit(z, a_pos, a_neg, hinges, group, groups, HINGES, SHARED)
    tl.store(y + offsets, h.to(y.dtype.element_ty), mask=inside)


@triton.jit
def normalised_sums(
    x,
    grad,
    sums,
    mean,
    inverse_std,
    weight,
    bias,
    a_pos,
    a_neg,
    hinges,
    outer,
    groups,
    width,
    column_blocks,
    HINGES: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BY_COLUMN: tl.constexpr,
):
    """Into `sums`, (tiles, 2·HINGES + 2, groups): the slopes' gradients, Σ dz, Σ dz·x̂."""
    offsets, inside, group, groups, tile = place(
        outer, groups, width, column_blocks, ROWS, COLUMNS, BY_COLUMN
    )
    standard, z = normalised(
        x, offsets, inside, mean, inverse_std, weight, bias, hinges, group, groups
    )
    g = read(grad, offsets, inside, hinges)
    own = sums + tile * (2 * HINGES + 2) * groups
    store_slope_sums(own, z, g, a_pos, a_neg, hinges, group, groups, HINGES, SHARED, BY_COLUMN)
    dz = unit_gradient(z, g, a_pos, a_neg, hinges, group, groups, HINGES, SHARED)
    counts = group < groups
    last = own + 2 * HINGES * groups + group
    tl.store(last, tile_sum(dz, BY_COLUMN), mask=counts)
    tl.store(last + groups, tile_sum(dz * standard, BY_COLUMN), mask=counts)


@triton.jit
def normalised_backward(
    x,
    grad,
    dx,
    mean_dz,
    mean_dz_standard,
    mean,
    inverse_std,
    weight,
    bias,
    a_pos,
    a_neg,
    hinges,
    outer,
    groups,
    width,
    column_blocks,
    HINGES: tl.constexpr,
    SHARED: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BY_COLUMN: tl.constexpr,
):
    """dx = w/std · (dz − mean(dz) − x̂ · mean(dz·x̂)); fixed statistics have no means."""
    offsets, inside, group, groups, _ = place(
        outer, groups, width, column_blocks, ROWS, COLUMNS, BY_COLUMN
    )
    standard, z = normalised(
        x, offsets, inside, mean, inverse_std, weight, bias, hinges, group, groups
    )
    g = read(grad, offsets, inside, hinges)
    compute = hinges.dtype.element_ty
    moved = unit_gradient(z, g, a_pos, a_neg, hinges, group, groups, HINGES, SHARED)
    if mean_dz is not None:
        moved -= of_group(mean_dz, group, groups).to(compute)
        moved -= standard * of_group(mean_dz_standard, group, groups).to(compute)
    scale = of_group(inverse_std, group, groups)
    if weight is not None:
        scale = scale * of_group(weight, group, groups)
    tl.store(dx + offsets, (moved * scale).to(dx.dtype.element_ty), mask=inside)
