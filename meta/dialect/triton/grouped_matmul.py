"""Products of matrices in groups, all in one launch.

Where groups end is read on the device, by every block: a row of tiles belongs to the group that the
running sum of the groups' tiles says. So no host waits, and CUDA graphs hold a launch. The grid has
as many rows of tiles as there may be; blocks that are beyond the last end at once. Rows after the
last group are one more group, of zeros. A product whose columns are divided is one of transposed
matrices whose rows are. Float32 is not rounded to TensorFloat-32, with META_TF32 neither.

Measured on an H200 in bfloat16, these kernels take 0.79 to 0.95 of the time of ATen's where rows
are divided, and up to 1.1 where the inner extent is.

Products of groups of rows by blocks that stay: each reads tiles by descriptors of tensors (the
copying engine of compute capability 9.0), and goes from tile to tile.

They are configurations (``TMA=1``) of the products of `grouped_matmul.py` for half precision whose
rows are stored one after the other and are whole pieces of 16 bytes.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import triton
import triton.language as tl

from meta.dialect.core import HANDWRITTEN, REFERENCE, Config, Configs, OpEnv, Unsupported
from meta.dialect.triton import triton_dialect
from meta.dialect.triton.dialect import INTERPRETED
from meta.dialect.triton.sequence import TritonLaunch, launch_sequence
from meta.dialect.triton.single_launch import SingleKernel
from meta.ir.types import TensorType
from meta.op.core.call import CallValues
from meta.op.core.op import Op
from meta.op.linalg import GROUPED, grouped_extent
from meta.runtime import gpu_properties

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
        more, plain = listed(call, t1, t2), env.configs
        if not more or plain is None:
            return env
        made = partial(prepared, call, t2, BAND)
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
    options: dict[str, Any] = {n: int(value) for n, value in config if n != "TMA"}
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
