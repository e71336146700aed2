"""Products with quantised weights in Triton: numbers are unpacked in registers.

Of one row of x, a block has some rows of the weight, goes along their bytes, and adds up in float32
what the threads have at its end. Of more rows it has a tile of the result, and products of halves:
what was unpacked is rounded to the dtype of x. The bytes of 4 bits hold two columns, 16 apart.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from meta import op
from meta.dialect.core import HANDWRITTEN, OpEnv, Unsupported, ask, require_static, tunable
from meta.dialect.triton import triton_dialect as dialect
from meta.dialect.triton.dialect import INTERPRETED
from meta.dialect.triton.sequence import TritonLaunch, launch_sequence
from meta.op.core.call import CallValues
from meta.op.quantized import BLOCK, MIDDLE

LEVELS = {"cuda": HANDWRITTEN, "cpu": INTERPRETED}
MANY = 128
"""Rows of x from which on the weight is written down for a product of a library."""
DTYPES = "float32", "float16", "bfloat16"
HALF = tl.constexpr(BLOCK // 2)


@triton.jit
def _numbers(
    stored, scales, zeros, r, at, inside, half: tl.constexpr,
    GROUPS: tl.constexpr, GROUP: tl.constexpr, MIDDLE: tl.constexpr, HALVES: tl.constexpr,
):  # fmt: skip
    """Return what stored bytes (rows, places) stand for, in float32, and the columns. Of two in a
    byte, the numbers are those in that half. What is not inside has no scale, and is 0.
    """
    column = at
    if HALVES == 2:
        column = at // HALF * (2 * HALF) + at % HALF + half * HALF
        stored = stored >> 4 if half else stored & 15
    where = r[:, None] * GROUPS + (column // GROUP)[None, :]
    scale = tl.load(scales + where, mask=inside[None, :], other=0.0).to(tl.float32)
    if zeros is None:
        shifted = (stored.to(tl.int32) - MIDDLE).to(tl.float32)
    else:
        zero = tl.load(zeros + where, mask=inside[None, :], other=0.0).to(tl.float32)
        shifted = stored.to(tl.float32) - zero
    return shifted * scale, column


@triton.jit
def row_product(
    x, weight, scales, zeros, out, n,
    BYTES: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, MIDDLE: tl.constexpr,
    HALVES: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Multiply one row of x by BLOCK_N rows of the weight."""
    rows = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
    # Behind the last, the last is read again.
    r = tl.minimum(rows, n - 1).to(tl.int64)
    total = tl.zeros((BLOCK_N, BLOCK_K), tl.float32)
    for start in range(0, BYTES, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        inside = at < BYTES
        stored = tl.load(weight + r[:, None] * BYTES + at[None, :], mask=inside[None, :], other=0)
        for half in tl.static_range(HALVES - 1, -1, -1):
            number, column = _numbers(
                stored, scales, zeros, r, at, inside, half, GROUPS, GROUP, MIDDLE, HALVES
            )
            own = tl.load(x + column, mask=inside, other=0.0).to(tl.float32)
            total += number * own[None, :]
    tl.store(out + rows, tl.sum(total, 1).to(out.dtype.element_ty), mask=rows < n)


@triton.jit
def tile_product(
    x, weight, scales, zeros, out, m, n,
    BYTES: tl.constexpr, GROUPS: tl.constexpr, GROUP: tl.constexpr, MIDDLE: tl.constexpr,
    HALVES: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr,
):  # fmt: skip
    """Compute a tile of the product of several rows of x."""
    down = tl.cdiv(m, BLOCK_M)
    i = tl.program_id(0) % down * BLOCK_M + tl.arange(0, BLOCK_M)
    rows = tl.program_id(0) // down * BLOCK_N + tl.arange(0, BLOCK_N)
    r = tl.minimum(rows, n - 1).to(tl.int64)
    x_at = x + tl.minimum(i, m - 1).to(tl.int64)[:, None] * (BYTES * HALVES)
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, BYTES, BLOCK_K):
        at = start + tl.arange(0, BLOCK_K)
        inside = at < BYTES
        stored = tl.load(weight + r[:, None] * BYTES + at[None, :], mask=inside[None, :], other=0)
        for half in tl.static_range(HALVES - 1, -1, -1):
            number, column = _numbers(
                stored, scales, zeros, r, at, inside, half, GROUPS, GROUP, MIDDLE, HALVES
            )
            own = tl.load(x_at + column[None, :], mask=inside[None, :], other=0.0)
            total = tl.dot(own, tl.trans(number.to(own.dtype)), total, input_precision="ieee")
    place = out + i.to(tl.int64)[:, None] * n + rows[None, :]
    tl.store(place, total.to(out.dtype.element_ty), mask=(i < m)[:, None] & (rows < n)[None, :])


@dialect.op(op.quantized_matmul, plevel=LEVELS)
@tunable
def quantized_matmul(call: CallValues) -> OpEnv:
    """Prepare the kernel of one row of x, or of several."""
    x, weight, scales, zeros = call.args
    require_static(x, weight, scales)
    if x.dtype not in DTYPES or weight.dtype not in ("int8", "uint8"):
        raise Unsupported(f"{weight.dtype} numbers times {x.dtype} are ATen's")
    k, (n, bytes_) = x.static_shape[-1], weight.static_shape
    rows = x.size // max(k, 1)
    if 0 in (rows, k, n):
        raise Unsupported("nothing is multiplied, or summed")
    if rows > MANY:
        raise Unsupported(f"of {rows} rows, products of libraries are faster")
    if rows * n >= 1 << 31:
        raise Unsupported(f"{rows} rows of {n}: places have 32 bits")
    groups = scales.static_shape[1]
    given: dict[str, Any] = {
        "x": x, "weight": weight, "scales": scales, "zeros": zeros, "out": call.out, "n": n,
        "BYTES": bytes_, "GROUPS": groups, "GROUP": k // groups,
        "MIDDLE": MIDDLE[weight.dtype], "HALVES": 1 + (weight.dtype == "uint8"),
    }  # fmt: skip
    if rows == 1:
        block = ask("BLOCK_N", 8, (4, 16))
        step = min(ask("BLOCK_K", 512, (256, 1024)), triton.next_power_of_2(bytes_))
        grid = (triton.cdiv(n, block),)
        launch = TritonLaunch(
            row_product, call.device, grid, **given, BLOCK_N=block, BLOCK_K=step,
            num_warps=ask("num_warps", 4, (2, 8)),
        )  # fmt: skip
    else:
        down = min(max(triton.next_power_of_2(rows), 16), 64)
        block = ask("BLOCK_N", 32, (16, 64))
        grid = (triton.cdiv(rows, down) * triton.cdiv(n, block),)
        launch = TritonLaunch(
            tile_product, call.device, grid, **given, m=rows, BLOCK_M=down, BLOCK_N=block,
            BLOCK_K=ask("BLOCK_K", 64, (32, 128)), num_warps=ask("num_warps", 4, (2, 8)),
            num_stages=3,
        )  # fmt: skip
    return launch_sequence(launch, launch)
