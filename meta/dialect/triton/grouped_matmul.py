"""Products of matrices in groups, all in one launch.

Where groups end is read on the device, by every block: a row of tiles belongs to the group that the
running sum of the groups' tiles says. So no host waits, and CUDA graphs hold a launch. The grid has
as many rows of tiles as there may be; blocks that are beyond the last end at once. Rows after the
last group are one more group, of zeros. A product whose columns are divided is one of transposed
matrices whose rows are. Float32 is not rounded to TensorFloat-32, with META_TF32 neither.

Measured on an H200 in bfloat16, these kernels take 0.79 to 0.95 of the time of ATen's where rows
are divided, and up to 1.1 where the inner extent is.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import triton
import triton.language as tl

from meta.dialect.core import HANDWRITTEN, REFERENCE, Configs, OpEnv, Unsupported
from meta.dialect.triton import grouped_descriptors, triton_dialect
from meta.dialect.triton.dialect import INTERPRETED
from meta.dialect.triton.grouped_descriptors import tile_at, tiles_of_groups
from meta.dialect.triton.single import SingleKernel
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.op import Op
from meta.op.linalg import GROUPED, grouped_extent

LEVELS = {"cuda": HANDWRITTEN, "cpu": INTERPRETED}
DIVIDED_INNER = {"cuda": REFERENCE - 1, "cpu": INTERPRETED}
"""Of `grouped_matmul_tn`, whose inner extent is divided in gradients: ATen's kernel is faster."""
MANY_ROWS = 512
"""Rows of a group from which on the kernel with descriptors is faster."""
BAND = 8
"""Rows of tiles whose blocks run at about one time, so that they share columns in the cache."""


@triton.jit
def grouped_rows(
    a, b, offs, out, extent, columns, inner,
    a_row, a_inner, b_group, b_inner, b_column, out_row, out_column,
    index_dtype: tl.constexpr, GROUPS: tl.constexpr, POWER: tl.constexpr, ORDER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Multiply each group of rows of a (extent, inner) by its b[group] (inner, columns)."""
    across = tl.cdiv(columns, BLOCK_N)
    down = tl.num_programs(0) // across
    block = tl.program_id(0)
    above = block // (ORDER * across) * ORDER
    many = tl.minimum(down - above, ORDER)
    within = block % (ORDER * across)
    begins, ends, sums, tiles = tiles_of_groups(offs, extent, GROUPS, POWER, BLOCK_M)
    tile = above + within % many
    group, row, end = tile_at(tile, begins, ends, sums, tiles, POWER, BLOCK_M)
    if group <= GROUPS:
        rows = row + tl.arange(0, BLOCK_M)
        cols = within // many * BLOCK_N + tl.arange(0, BLOCK_N)
        ks = tl.arange(0, BLOCK_K)
        inside_row, inside_column = (rows < end)[:, None], (cols < columns)[None, :]
        rows, cols = rows.to(index_dtype), cols.to(index_dtype)
        own = tl.minimum(group, GROUPS - 1).to(index_dtype)
        a_at = a + rows[:, None] * a_row + ks[None, :] * a_inner
        b_at = b + own * b_group + ks[:, None] * b_inner + cols[None, :] * b_column
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        limit = tl.where(group < GROUPS, inner, 0)
        for k in range(0, limit, BLOCK_K):
            left = inner - k
            part_a = tl.load(a_at, mask=inside_row & (ks < left)[None, :], other=0.0)
            part_b = tl.load(b_at, mask=(ks < left)[:, None] & inside_column, other=0.0)
            total = tl.dot(part_a, part_b, total, input_precision="ieee")
            a_at += BLOCK_K * a_inner
            b_at += BLOCK_K * b_inner
        at = out + rows[:, None] * out_row + cols[None, :] * out_column
        tl.store(at, total.to(out.dtype.element_ty), mask=inside_row & inside_column)


@triton.jit
def grouped_inner(
    a, b, offs, out, rows_, columns, extent,
    a_row, a_inner, b_inner, b_column,
    index_dtype: tl.constexpr, ORDER: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Multiply groups of columns of a (rows_, extent) by these rows of b (extent, columns)."""
    across, down = tl.cdiv(columns, BLOCK_N), tl.cdiv(rows_, BLOCK_M)
    block, group = tl.program_id(0), tl.program_id(1)
    above = block // (ORDER * across) * ORDER
    many = tl.minimum(down - above, ORDER)
    within = block % (ORDER * across)
    rows = (above + within % many) * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = within // many * BLOCK_N + tl.arange(0, BLOCK_N)
    begin = tl.load(offs + group - 1, mask=group > 0, other=0)
    end = tl.load(offs + group)
    begin = tl.minimum(tl.maximum(begin, 0), extent).to(tl.int32)
    end = tl.minimum(tl.maximum(end, 0), extent).to(tl.int32)
    ks = tl.arange(0, BLOCK_K)
    inside_row, inside_column = (rows < rows_)[:, None], (cols < columns)[None, :]
    rows, cols = rows.to(index_dtype), cols.to(index_dtype)
    first = (begin + ks).to(index_dtype)
    a_at = a + rows[:, None] * a_row + first[None, :] * a_inner
    b_at = b + first[:, None] * b_inner + cols[None, :] * b_column
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for k in range(begin, end, BLOCK_K):
        left = end - k
        part_a = tl.load(a_at, mask=inside_row & (ks < left)[None, :], other=0.0)
        part_b = tl.load(b_at, mask=(ks < left)[:, None] & inside_column, other=0.0)
        total = tl.dot(part_a, part_b, total, input_precision="ieee")
        a_at += BLOCK_K * a_inner
        b_at += BLOCK_K * b_inner
    at = out + (group.to(index_dtype) * rows_ + rows[:, None]) * columns + cols[None, :]
    tl.store(at, total.to(out.dtype.element_ty), mask=inside_row & inside_column)


Tile = tuple[int, int, int, int, int]
HALF: tuple[Tile, ...] = (
    (128, 128, 64, 8, 3),
    (128, 256, 64, 8, 3),
    (128, 128, 64, 4, 4),
    (64, 128, 64, 4, 4),
    (64, 64, 64, 4, 4),
    (32, 128, 64, 4, 4),
    (16, 128, 64, 4, 4),
    (16, 32, 32, 2, 3),
)
SINGLE: tuple[Tile, ...] = (
    (64, 64, 32, 4, 3),
    (128, 64, 32, 8, 3),
    (32, 64, 32, 4, 3),
    (16, 64, 32, 4, 3),
    (16, 32, 32, 2, 3),
)
"""Tiles of rows, columns and inner extent, warps and stages."""


def shapes(dtype: str, rows: int, columns: int) -> list[dict[str, int]]:
    """Return configurations for groups of about so many rows and columns, the best guess first:
    the largest tile of which little is outside of a group, and then those of about its size.
    """
    known = SINGLE if dtype == "float32" else HALF

    def wasted(tile: Tile) -> tuple[float, int]:
        down, across = -(-max(rows, 1) // tile[0]), -(-columns // tile[1])
        share = down * tile[0] * across * tile[1] / (max(rows, 1) * columns)
        return round(share, 1) if share > 1.5 else 1.0, known.index(tile)

    names = "BLOCK_M", "BLOCK_N", "BLOCK_K", "num_warps", "num_stages"
    return [dict(zip(names, tile, strict=True)) for tile in sorted(known, key=wasted)]


def _strides(x: TensorType, transposed: bool) -> tuple[int, int]:
    """Return the strides of rows and columns of matrices that may be stored transposed."""
    width = x.static_shape[-1]
    return (1, width) if transposed else (width, 1)


def _fits(call: CallValues) -> None:
    """Raise Unsupported for what the kernels are not made for."""
    x1, _, offs = call.args
    if x1.dtype == "float64":
        raise Unsupported("sums are in float32")
    if offs.shape[0] >= 1 << 12:
        raise Unsupported(f"{offs.shape[0]} groups are more than a block reads at once")


def _by_rows(call: CallValues, columns: bool, t1: bool, t2: bool) -> dict[str, Any]:
    """Return the parameters of `grouped_rows`; with ``columns`` all is transposed."""
    x1, x2, offs = call.args
    (m, k), (_, n) = _logical(x1, t1), _logical(x2, t2)
    (row, left), (right, column) = _strides(x1, t1), _strides(x2, t2)
    groups = offs.shape[0]
    common = {"GROUPS": groups, "POWER": triton.next_power_of_2(groups + 1), "ORDER": BAND}
    if columns:
        return {
            "extent": n, "columns": m, "inner": k, "a_row": column, "a_inner": right,
            "b_group": m * k, "b_inner": left, "b_column": row, "out_row": 1, "out_column": n,
            **common,
        }  # fmt: skip
    return {
        "extent": m, "columns": n, "inner": k, "a_row": row, "a_inner": left,
        "b_group": k * n, "b_inner": right, "b_column": column, "out_row": n, "out_column": 1,
        **common,
    }  # fmt: skip


def _by_inner(call: CallValues, t1: bool, t2: bool) -> dict[str, Any]:
    """Return the parameters of `grouped_inner`."""
    x1, x2, _ = call.args
    (m, k), (_, n) = _logical(x1, t1), _logical(x2, t2)
    (row, left), (right, column) = _strides(x1, t1), _strides(x2, t2)
    strides = {"a_row": row, "a_inner": left, "b_inner": right, "b_column": column}
    return {"rows_": m, "columns": n, "extent": k, **strides, "ORDER": BAND}


def _logical(x: TensorType, transposed: bool) -> tuple[int, int]:
    rows, columns = x.static_shape[-2:]
    return (columns, rows) if transposed else (rows, columns)


def _row_tiles(call: CallValues, columns: bool, t1: bool, t2: bool) -> list[dict[str, int]]:
    x1, x2, offs = call.args
    (m, _), (_, n) = _logical(x1, t1), _logical(x2, t2)
    groups = max(offs.shape[0], 1)
    return shapes(x1.dtype, n // groups, m) if columns else shapes(x1.dtype, m // groups, n)


def _row_grid(meta: Any) -> tuple[int, ...]:
    """As many rows of tiles as there may be: one of each group, and what is after the last, may be
    filled in part.
    """
    most = meta["extent"] // meta["BLOCK_M"] + meta["GROUPS"] + 1
    return (most * triton.cdiv(meta["columns"], meta["BLOCK_N"]),)


def _inner_grid(meta: Any) -> tuple[int, ...]:
    down, across = triton.cdiv(meta["rows_"], meta["BLOCK_M"]), meta["columns"]
    return (down * triton.cdiv(across, meta["BLOCK_N"]), meta["offs_size_0"])


def _define(base: Op, t1: bool, t2: bool) -> None:
    def kernel(function: Any, grid: Any, stated: Any, names: Any, bind: Any) -> SingleKernel:
        return SingleKernel(function, base, grid, stated, {}, names, bind, None, "")

    def of_rows(columns: bool) -> SingleKernel:
        names = {"a": "x2", "b": "x1"} if columns else {"a": "x1", "b": "x2"}
        how: Callable[..., Any] = partial(_by_rows, columns=columns, t1=t1, t2=t2)
        stated = partial(_row_tiles, columns=columns, t1=t1, t2=t2)
        return kernel(grouped_rows, _row_grid, stated, names, how)

    def inner_tiles(call: CallValues) -> list[dict[str, int]]:
        m, n = call.out.static_shape[1:]
        return shapes(call.args.x1.dtype, m, n)

    by_inner = partial(_by_inner, t1=t1, t2=t2)
    rows, columns = of_rows(columns=False), of_rows(columns=True)
    inner = kernel(grouped_inner, _inner_grid, inner_tiles, {"a": "x1", "b": "x2"}, by_inner)

    def make(call: CallValues) -> OpEnv:
        _fits(call)
        x1, x2, _ = call.args
        extent, name = grouped_extent(x1, x2, t1, t2)
        if isinstance(extent, int) and extent >= 1 << 31:
            raise Unsupported(f"{name}, {extent}, are counted in 32 bits")
        if x2.ndim == 3:
            return with_descriptors(rows.make(call), call)
        return (columns if x1.ndim == 3 else inner).make(call)

    def with_descriptors(env: OpEnv, call: CallValues) -> OpEnv:
        """Return a kernel that has the configurations of `grouped_descriptors.py`, too; for many
        rows the first of these is what runs.
        """
        more, plain = grouped_descriptors.listed(call, t1, t2), env.configs
        if not more or plain is None:
            return env
        made = partial(grouped_descriptors.prepared, call, t2, BAND)
        extent, groups = call.args.x1.static_shape[0], call.args.offs.static_shape[0]
        if extent // max(groups, 1) >= MANY_ROWS:
            first, *more = more
            env = made(first, env)
        env.configs = Configs(
            lambda: [*plain.listed(), *more],
            lambda c: made(c, rows.make(call)) if c in more else plain.made(c),
        )
        return env

    tn = t1 and not t2
    triton_dialect.op(base, plevel=DIVIDED_INNER if tn else LEVELS)(make)


for _base, _stored in GROUPED.items():
    _define(_base, *_stored)
