"""Products of groups of rows by blocks that stay: each reads tiles by descriptors of tensors (the
copying engine of compute capability 9.0), and goes from tile to tile.

They are configurations (``TMA=1``) of the products of `grouped_matmul.py` for half precision whose
rows are stored one after the other and are whole pieces of 16 bytes.
"""

from collections.abc import Sequence
from typing import Any

import triton
import triton.language as tl

from meta.dialect.core import Config, OpEnv
from meta.dialect.triton.sequence import TritonLaunch, launch_sequence
from meta.op.core.call import CallValues
from meta.runtime import gpu_properties

BYTES = 16
"""Of which addresses and strides are multiples, for a descriptor."""
TILES = ((128, 256, 64, 8, 3), (128, 128, 64, 4, 4), (64, 128, 64, 4, 4))
"""Rows, columns, inner extent, warps, stages; the best for many rows first."""
NAMES = "BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"


@triton.jit
def tiles_of_groups(
    offs, extent, GROUPS: tl.constexpr, POWER: tl.constexpr, BLOCK: tl.constexpr
):  # fmt: skip
    """Return of each group its first row, where its rows end, and how many rows of tiles there are
    with it, and of it. The last group is the rows that are in none.
    """
    at = tl.arange(0, POWER)
    ends = tl.load(offs + at, mask=at < GROUPS, other=extent)
    begins = tl.load(offs + at - 1, mask=(at > 0) & (at <= GROUPS), other=0)
    # Nobody may have looked at them.
    ends = tl.minimum(tl.maximum(ends, 0), extent).to(tl.int32)
    begins = tl.minimum(tl.maximum(begins, 0), extent).to(tl.int32)
    tiles = tl.where(at <= GROUPS, tl.cdiv(tl.maximum(ends - begins, 0), BLOCK), 0)
    return begins, ends, tl.cumsum(tiles, 0), tiles


@triton.jit
def tile_at(tile, begins, ends, sums, tiles, POWER: tl.constexpr, BLOCK: tl.constexpr):
    """Return the group of a row of tiles, its first row, and where the rows of the group end."""
    group = tl.sum((sums <= tile).to(tl.int32), 0)
    mine = tl.arange(0, POWER) == group
    first = tl.sum(tl.where(mine, begins - (sums - tiles) * BLOCK, 0), 0)
    return group, first + tile * BLOCK, tl.sum(tl.where(mine, ends, 0), 0)


@triton.jit
def grouped_tiles(
    a, b, offs, out, extent, columns, inner,
    GROUPS: tl.constexpr, POWER: tl.constexpr, ORDER: tl.constexpr, TRANSPOSED: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Multiply each group of rows of a (extent, inner) by its b[group], (inner, columns) or, where
    TRANSPOSED, (columns, inner).
    """
    begins, ends, sums, tiles = tiles_of_groups(offs, extent, GROUPS, POWER, BLOCK_M)
    down, across = tl.sum(tiles, 0), tl.cdiv(columns, BLOCK_N)
    rows_of = tl.make_tensor_descriptor(a, [extent, inner], [inner, 1], [BLOCK_M, BLOCK_K])
    if TRANSPOSED:
        own_of = tl.make_tensor_descriptor(
            b, [GROUPS, columns, inner], [columns * inner, inner, 1], [1, BLOCK_N, BLOCK_K]
        )
    else:
        own_of = tl.make_tensor_descriptor(
            b, [GROUPS, inner, columns], [inner * columns, columns, 1], [1, BLOCK_K, BLOCK_N]
        )
    for block in range(tl.program_id(0), down * across, tl.num_programs(0)):
        above = block // (ORDER * across) * ORDER
        many = tl.minimum(down - above, ORDER)
        within = block % (ORDER * across)
        tile, column = above + within % many, within // many * BLOCK_N
        group, row, end = tile_at(tile, begins, ends, sums, tiles, POWER, BLOCK_M)
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        limit = tl.where(group < GROUPS, inner, 0)
        for k in range(0, limit, BLOCK_K):
            part_a = rows_of.load([row, k])
            if TRANSPOSED:
                part_b = own_of.load([group, column, k]).reshape(BLOCK_N, BLOCK_K).T
            else:
                part_b = own_of.load([group, k, column]).reshape(BLOCK_K, BLOCK_N)
            total = tl.dot(part_a, part_b, total)
        rows, cols = row + tl.arange(0, BLOCK_M), column + tl.arange(0, BLOCK_N)
        place = out + rows.to(tl.int64)[:, None] * columns + cols[None, :]
        inside = (rows < end)[:, None] & (cols < columns)[None, :]
        tl.store(place, total.to(out.dtype.element_ty), mask=inside)


def listed(call: CallValues, t1: bool, t2: bool) -> Sequence[Config]:
    """Return the configurations of a call with groups of rows; none that it is not made for."""
    x1, x2, _ = call.args
    if t1 or x1.dtype not in ("float16", "bfloat16"):
        return ()
    lanes = BYTES // 2
    if any(0 in t.shape or t.static_shape[-1] % lanes for t in (x1, x2)):
        return ()
    if gpu_properties.target_of(call.device).capability < (9, 0):
        return ()
    return [tuple(sorted({**dict(zip(NAMES, t, strict=True)), "TMA": 1}.items())) for t in TILES]


def prepared(call: CallValues, t2: bool, order: int, config: Config, plain: OpEnv) -> OpEnv:
    """Return the kernel in one of the configurations. ``plain`` runs where an address is none of a
    descriptor.
    """
    x1, x2, offs = call.args
    (extent, inner), columns = x1.static_shape, call.out.static_shape[1]
    options = {name: int(value) for name, value in config if name != "TMA"}
    groups = offs.static_shape[0]
    processors = (
        gpu_properties.target_of(call.device).processors if call.device.kind == "cuda" else 2
    )
    launch = TritonLaunch(
        grouped_tiles, call.device, (processors,), a=x1, b=x2, offs=offs, out=call.out,
        extent=extent, columns=columns, inner=inner, GROUPS=groups,
        POWER=triton.next_power_of_2(groups + 1), ORDER=order, TRANSPOSED=t2, **options,
    )  # fmt: skip

    def run(*values: Any) -> None:
        if any(value.data_ptr() % BYTES for value in values[:2]):
            plain.run(*values)
        else:
            launch(*values)

    return launch_sequence(run, launch)
