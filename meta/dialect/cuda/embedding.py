"""The gradient of an embedding's table: a row's gradients are added up in one order.

Libraries sort all indices, or add atomically, which gives other bits at every run. Here a small
launch sorts the indices in chunks; then each thread block collects those of some rows, and writes
these rows once. Another gradient is added on the way, as where the table is the weights of the
scores, too: that of a product, cast and without the rows that it was padded by.
"""

from __future__ import annotations

import struct
from functools import cache
from math import prod
from typing import Any

import torch

from meta import op
from meta.base.device import Device
from meta.dialect.core import Launch, OpEnv, Unsupported, decline_if, require_static
from meta.dialect.core.knobs import ask, tunable
from meta.dialect.cuda import cubin
from meta.dialect.cuda import cuda as dialect
from meta.dialect.cuda.source import source
from meta.ir.types import TensorType
from meta.op.core.call import CallValues

LANES = 32
CHUNK = 256
"""Indices that are sorted together, one for each thread: by counting the smaller ones."""
MOST_ROWS = 64
"""Rows of a bucket: with a place in a chunk, one fits in 16 bits."""
HEAVY = 128
"""Indices of one row that one warp adds up; of more, all do."""
INDICES = "int32", "int64"
KERNELS = {"arrange": "arrange", "dx": "embedding_dx"}
"""In order, and their names in the source."""
BLOCKS, FILLING = 2048, 256
"""Thread blocks that fill a GPU a few times over, and once: of fewer rows, each gets fewer, but one
for each warp as long as there are enough.
"""
FEW = 32
"""Rows that do not fill the GPU: their thread blocks are larger, of fewer columns each."""
WARPS, OTHER_WARPS = 4, (2, 8)
"""Of a thread block of many rows."""
CAPACITIES = 1024, 4096
"""Indices that a thread block notes in shared memory; of more it goes through the chunks again."""
MOST_PIECES = 6
"""Accesses of a thread to a row that are under way together."""
BYTES = 16
"""Of a vector access."""
MOST_INDICES = 1 << 26
"""Their places and a row's number are noted in 32 bits."""
MOST_BUCKETS = 1 << 22
"""With a place in a chunk, one is a key of 32 bits."""
PARAMETERS = struct.Struct("<6Q3q2i")
SIZES = {"float16": 2, "bfloat16": 2, "float32": 4}


@dialect.op(op.embedding_dx)
@tunable
def embedding_dx(call: CallValues) -> OpEnv:
    """Return the launches for a table of float16, bfloat16 or float32."""
    return gradient(call.args.dy, call.args.indices, call.outputs[0], call.device.ordinal)


def gradient(
    dy: TensorType, indices: TensorType, out: TensorType, device: int, addend: str | None = None
) -> OpEnv:
    """Return the launches for dy, indices, an addend of that dtype if there is one, and out."""
    if dy.dtype not in SIZES or indices.dtype not in INDICES or addend not in (None, *SIZES):
        raise Unsupported(f"no kernel for {dy.dtype} by {indices.dtype}, and {addend} beside it")
    require_static(dy, indices, out)
    rows, *row = out.static_shape
    width, count = prod(row), prod(indices.static_shape)
    each = max(1, min(MOST_ROWS, rows // BLOCKS), min(WARPS, rows // FILLING))
    each = ask("rows", each, [n for n in (each // 2, each * 2) if 1 <= n <= min(MOST_ROWS, rows)])
    buckets, chunks = -(-rows // each), -(-count // CHUNK)
    decline_if(count >= MOST_INDICES, f"{count} indices, more than this kernel notes")
    decline_if(buckets >= MOST_BUCKETS, f"{rows} rows, more than this kernel divides")
    if not rows * width:
        return OpEnv(lambda *_: None, allocates=False)
    few = rows <= FEW
    capacity = next((c for c in CAPACITIES if c >= count), CAPACITIES[-1])
    entries, starts = CHUNK * chunks, (buckets + 1) * chunks
    warps = 32 if few else ask("warps", WARPS, OTHER_WARPS)

    @cache
    def text(name: str, vector: int) -> str:
        """Return the source of a kernel: "arrange", or "dx", which runs after it."""
        types = {"DATA": dy.dtype, "ADDEND": addend or dy.dtype, "INDEX": indices.dtype}
        sizes: dict[str, object] = {"CHUNK": CHUNK}
        if name == "dx":
            pieces = 1 if few else min(MOST_PIECES, -(-width // (LANES * vector)))
            sizes |= {"VECTOR": vector, "WARPS": warps, "CAPACITY": capacity}
            sizes |= {"WIDTH": f"{width}ll", "PIECES": pieces, "LANES": LANES}
            sizes |= {"READS": max(2, 8 // pieces), "HEAVY": HEAVY}
            sizes |= {"ADDS": 1} if addend else {}
        return source(f"embedding_{name}", types, sizes)

    @cache
    def kernel(name: str, vector: int) -> Launch:
        grid, threads = (chunks, 1), CHUNK
        if name == "dx":
            columns = -(-width // (LANES * vector)) if few else 1
            grid, threads = (buckets, columns), warps * LANES
        source, size = text(name, vector), PARAMETERS.size
        return cubin.launch(source, KERNELS[name], device, grid, threads, size)

    def widest(moved: int = 0, added: int = 0) -> int:
        """Return the elements of an access, for such addresses."""
        vector = 2 if few else BYTES // SIZES[dy.dtype]
        while (
            width % vector
            or moved % (vector * SIZES[dy.dtype])
            or added % min(BYTES, vector * SIZES[addend or dy.dtype])
        ):
            vector //= 2
        return vector

    def sources() -> list[str]:
        return [text(name, widest()) for name in KERNELS]

    def run(dy: torch.Tensor, indices: torch.Tensor, *others: torch.Tensor) -> None:
        *added, out = others
        at = dy.data_ptr(), indices.data_ptr(), added[0].data_ptr() if added else 0, out.data_ptr()
        vector = widest(at[0] | at[3], at[2])
        words = torch.empty(entries + starts, dtype=torch.int16, device=dy.device)
        place = words.data_ptr()
        sizes = count, width, rows, each, chunks
        given = PARAMETERS.pack(*at, place, place + 2 * entries, *sizes)
        if chunks:
            kernel("arrange", vector)(given)
        kernel("dx", vector)(given)

    workspace = 2 * (entries + starts)
    return cubin.env(run, sources, device, workspace)


def _added(dy, indices, num_weight, other, begin, end, strides, slice_mode, dtype):
    rows = op.strided_slice(other, begin, end, strides, slice_mode) | other
    return op.add(op.embedding_dx(dy, indices, num_weight), op.astype(rows, dtype) | rows)


@dialect.pattern_op(_added)
@tunable
def embedding_dx_add(
    dy: TensorType, indices: TensorType, other: TensorType, begin: Any, strides: Any,
    result: TensorType, device: Device,
) -> OpEnv:  # fmt: skip
    """Return the launches for the sum, whose addend is the first rows of ``other``."""
    begins, steps = ((v,) if isinstance(v, int) else v or () for v in (begin, strides))
    if any(begins) or any(step != 1 for step in steps):
        raise Unsupported("what is added are not the first rows of an array")
    rows: Any = other.shape[0]
    if other.shape[1:] != result.shape[1:] or not rows >= result.shape[0]:
        raise Unsupported(f"what is added, {other}, has not the rows of {result}")
    return gradient(dy, indices, result, device.ordinal, other.dtype)
