"""What runs on the GPU: SPLASH forward and backward.

A tensor is (outer, groups, inner) in dense memory; a *group* shares its slopes, or is a channel of
the batch norm. Each program has one tile of it, ROWS of `outer` by COLUMNS of the rest:

- BY_COLUMN: inner is 1, columns are groups, and whatever belongs to a group is a (1, COLUMNS) row.
- else: columns are one group's inner elements, and whatever belongs to the group is a scalar.

With u = |x| and r_s = max(0, u − b_s), one side's slopes count, chosen by the sign of x:
    h = Σ a_s r_s,   dh/dx = ±(Σ of a_s over the hinges below u),   dh/da_s = r_s.

Everything is computed in the type that the hinges come in: float64 for float64, else float32. Sums
over a tile go into that tile's own place, to be added up in float64 later: nothing is added
atomically, and every run gives the same bits. Offsets are int64: tensors may pass 2³¹ elements.
"""
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-decorators, allow-untyped-calls
# The types are Triton's here, and its compiler infers them.

import triton
import triton.language as tl

# --- where a program is ---------------------------------------------------------------------------


@triton.jit
def in_64_bits(n):
    return tl.full((), 0, tl.int64) + n  # not n.to(...): Triton makes a constant of 1, without `to`


@triton.jit
def place(
    outer,
    groups,
    width,
    column_blocks,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BY_COLUMN: tl.constexpr,
):
    """Of this program's tile: its offsets, which of them count, its group(s) and how many there
    are (in 64 bits), and its number among the tiles of the same group(s)."""
    program = tl.program_id(0).to(tl.int64)
    groups = in_64_bits(groups)
    column_block = program % column_blocks
    rest = program // column_blocks
    column = column_block * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    if BY_COLUMN:
        row = rest * ROWS + tl.arange(0, ROWS)[:, None]
        offsets = row * width + column
        group = column
        tile = rest
    else:
        group = rest % groups
        row_block = rest // groups
        row = row_block * ROWS + tl.arange(0, ROWS)[:, None]
        offsets = (row * groups + group) * width + column
        tile = row_block * column_blocks + column_block
    inside = (row < outer) & (column < width)
    return offsets, inside, group, groups, tile


@triton.jit
def read(memory, offsets, inside, hinges):
    """A tile in the type of the computation."""
    return tl.load(memory + offsets, mask=inside, other=0.0).to(hinges.dtype.element_ty)


@triton.jit
def of_group(values, group, groups):
    return tl.load(values + group, mask=group < groups, other=0.0)


@triton.jit
def slope_row(a, s, group, groups, SHARED: tl.constexpr):
    """Row s of the slopes: one number if all groups share it, else that of each group."""
    if SHARED:
        return tl.load(a + s)
    else:
        return of_group(a + s * groups, group, groups)


@triton.jit
def no_slope(a, group, groups, SHARED: tl.constexpr):
    """Zero, shaped like a row of slopes."""
    return tl.zeros_like(slope_row(a, 0, group, groups, SHARED))


@triton.jit
def tile_sum(values, BY_COLUMN: tl.constexpr):
    if BY_COLUMN:
        return tl.sum(values, 0, keep_dims=True)
    else:
        return tl.sum(values)


# --- the unit -------------------------------------------------------------------------------------


@triton.jit
def total_slope(a, group, groups, HINGES: tl.constexpr, SHARED: tl.constexpr):
    total = no_slope(a, group, groups, SHARED)
    for s in tl.range(HINGES, loop_unroll_factor=4):
        total += slope_row(a, s, group, groups, SHARED)
    return total


@triton.jit
def limit(slope, intercept):
    """slope · ∞ + intercept, without 0·∞."""
    return slope * tl.where(slope == 0, 0.0, float("inf")) + intercept


@triton.jit
def unit(z, a_pos, a_neg, hinges, group, groups, HINGES: tl.constexpr, SHARED: tl.constexpr):
    """h(z)."""
    u = tl.abs(z)
    infinite = u == float("inf")
    finite = tl.where(infinite, 0.0, u)
    right = tl.zeros_like(z)
    left = tl.zeros_like(z)
    slope_pos = no_slope(a_pos, group, groups, SHARED)
    slope_neg = no_slope(a_neg, group, groups, SHARED)
    intercept_pos = slope_pos
    intercept_neg = slope_neg
    for s in tl.range(HINGES, loop_unroll_factor=4):
        b = tl.load(hinges + s)
        pos = slope_row(a_pos, s, group, groups, SHARED)
        neg = slope_row(a_neg, s, group, groups, SHARED)
        r = tl.maximum(finite - b, 0.0)
        right += pos * r
        left += neg * r
        slope_pos += pos
        slope_neg += neg
        intercept_pos -= pos * b
        intercept_neg -= neg * b
    right = tl.where(infinite, limit(slope_pos, intercept_pos), right)
    left = tl.where(infinite, limit(slope_neg, intercept_neg), left)
    h = tl.where(z > 0, right, left)
    return tl.where((z == 0) | (z != z), z, h)  # ±0 keeps its sign, NaN passes


@triton.jit
def unit_gradient(
    z, g, a_pos, a_neg, hinges, group, groups, HINGES: tl.constexpr, SHARED: tl.constexpr
):
    """g · dh/dz by torch's convention: at a hinge the inner side counts, a NaN is on all sides."""
    u = tl.abs(z)
    right = tl.zeros_like(z)
    left = tl.zeros_like(z)
    all_sides = no_slope(a_pos, group, groups, SHARED)
    for s in tl.range(HINGES, loop_unroll_factor=4):
        beyond = u > tl.load(hinges + s)
        pos = slope_row(a_pos, s, group, groups, SHARED)
        neg = slope_row(a_neg, s, group, groups, SHARED)
        right += tl.where(beyond, pos, 0.0)
        left -= tl.where(beyond, neg, 0.0)
        all_sides += pos - neg
    slope = tl.where(z != z, all_sides, tl.where(z > 0, right, left))
    # Nothing at z = 0, whatever g is; and + 0.0 makes 0 of −0, as torch.relu has it left of zero.
    return tl.where(z == 0, 0.0, g * slope + 0.0)


@triton.jit
def store_slope_sums(
    sums,
    z,
    g,
    a_pos,
    a_neg,
    hinges,
    group,
    groups,
    HINGES: tl.constexpr,
    SHARED: tl.constexpr,
    BY_COLUMN: tl.constexpr,
):
    """Σ g · dh/da over the tile: a row of `sums` for each of a_pos, then for each of a_neg."""
    u = tl.abs(z)
    slope = tl.where(
        z > 0,
        total_slope(a_pos, group, groups, HINGES, SHARED),
        total_slope(a_neg, group, groups, HINGES, SHARED),
    )
    # Where h has an end at infinity, that end is −Σ ab: as if u were 0 in a(u − b).
    reach = tl.where((u == float("inf")) & (slope == 0), 0.0, u)
    counts = group < groups
    for s in tl.range(HINGES, loop_unroll_factor=4):
        b = tl.load(hinges + s)
        ramp = g * tl.where(u <= b, 0.0, reach - b)
        # Asked this way round, a NaN is on both sides.
        pos = tile_sum(tl.where(z <= 0, 0.0, ramp), BY_COLUMN)
        neg = tile_sum(tl.where(z >= 0, 0.0, ramp), BY_COLUMN)
        tl.store(sums + s * groups + group, pos, mask=counts)
        tl.store(sums + (HINGES + s) * groups + group, neg, mask=counts)


@triton.jit
def splash_forward(
    x,
    y,
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
    z = read(x, offsets, inside, hinges)
    h = unit(z, a_pos, a_neg, hinges, group, groups, HINGES, SHARED)
    tl.store(y + offsets, h.to(y.dtype.element_ty), mask=inside)


@triton.jit
def splash_backward(
    x,
    grad,
    dx,
    sums,
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
    """dx, and into `sums`, (tiles, 2·HINGES, groups), the tile's share of the slopes' gradients."""
    offsets, inside, group, groups, tile = place(
        outer, groups, width, column_blocks, ROWS, COLUMNS, BY_COLUMN
    )
    z = read(x, offsets, inside, hinges)
    g = read(grad, offsets, inside, hinges)
    dz = unit_gradient(z, g, a_pos, a_neg, hinges, group, groups, HINGES, SHARED)
    tl.store(dx + offsets, dz.to(dx.dtype.element_ty), mask=inside)
    own = sums + tile * (2 * HINGES) * groups
    store_slope_sums(own, z, g, a_pos, a_neg, hinges, group, groups, HINGES, SHARED, BY_COLUMN)
