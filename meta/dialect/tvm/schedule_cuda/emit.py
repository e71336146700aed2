"""The statements that CUDA kernels are made of: launches, vector accesses, registers, reductions.

An array is addressed by the offset of an element, as ``x[0, ..., 0, offset]``: lowering makes of
it the offset alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx

ACCESS_BYTES = 16
"""The widest access of a thread."""
WARP = 32
TINY = 4096
"""Elements below which a launch takes longer than what it does: no other size is worth a try."""
Load = Callable[[Any], Any]


class Kernel:
    """The body of one kernel under construction.

    block, thread, row: the indices of the thread block and of a thread in it, along x and y.
    dtype: of offsets.
    """

    def __init__(self, dtype: str) -> None:
        self.dtype = dtype
        self.block = tirx.Var("block", "int32")
        self.thread = tirx.Var("thread", "int32")
        self.row = tirx.Var("row", "int32")
        self.buffers: list[Any] = []
        self._bytes: dict[Any, Any] = {}
        self._names = 0

    def number(self, value: int) -> Any:
        """Return a constant offset."""
        return tirx.const(value, self.dtype)

    def offset(self, start: int | Any, values: Sequence[Any], strides: Sequence[int]) -> Any:
        """Return an offset: ``start`` plus each value times its stride."""
        offset = self.number(start) if isinstance(start, int) else start
        for value, stride in zip(values, strides, strict=True):
            if stride:
                offset = offset + value * self.number(stride)
        return offset

    def parted(self, index: Any, extent: int) -> tuple[Any, Any]:
        """Return quotient and remainder of an index by an extent."""
        by = self.number(extent)
        return tirx.floordiv(index, by), tirx.floormod(index, by)

    def unflat(self, position: Any, extents: Sequence[int]) -> list[Any]:
        """Return the values of axes of these extents at a row-major position."""
        values, rest = [], position
        for extent in reversed(extents[1:]):
            rest, value = self.parted(rest, extent)
            values.append(value)
        return [rest, *reversed(values)]

    def wide(self, index: Any) -> Any:
        """Return an index of a thread or a block as an offset."""
        return index if self.dtype == "int32" else tirx.Cast(self.dtype, index)

    def registers(self, dtype: str, count: int) -> Any:
        """Return an array of ``count`` elements that each thread has for itself."""
        return self._allocated((count,), dtype, "local")

    def shared(self, dtype: str, *shape: int) -> Any:
        """Return an array of the thread block."""
        return self._allocated(shape, dtype, "shared")

    def in_memory(self, buffer: Any) -> Any:
        """Return an array as vectors access it: of bytes for bool, of which CUDA has no vectors."""
        if str(buffer.dtype) != "bool":
            return buffer
        if buffer not in self._bytes:
            shape, name = buffer.ty.shape, f"{buffer.name}_bytes"
            self._bytes[buffer] = tirx.decl_buffer(shape, "uint8", name)
        return self._bytes[buffer]

    def _allocated(self, shape: tuple[int, ...], dtype: str, scope: str) -> Any:
        self._names += 1
        buffer = tirx.decl_buffer(shape, dtype, f"{scope}{self._names}", scope=scope)
        self.buffers.append(buffer)
        return buffer

    def launch(self, body: Sequence[Any], blocks: int, threads: int, rows: int = 1) -> Any:
        """Return the statement that runs ``body`` in ``blocks`` of ``threads`` by ``rows``."""
        seen_as = [
            tirx.DeclBuffer(as_bytes, data=tirx.buffer.buffer_data(buffer))
            for buffer, as_bytes in self._bytes.items()
        ]
        whole = sequence([*seen_as, *body])
        inner = s_tir.SBlock([], [], [], "kernel", whole, None, self.buffers, [], {})
        statement = s_tir.SBlockRealize([], True, inner)
        # Loops are unrolled by the CUDA compiler, which is told to: TVM's passes see less code.
        statement = tirx.AttrStmt(
            tirx.const(0, "int32"), "pragma_unroll_explicit", tirx.const(0, "int32"), statement
        )
        statement = threaded("threadIdx.x", self.thread, threads, statement)
        if rows > 1:
            statement = threaded("threadIdx.y", self.row, rows, statement)
        else:
            zero = tirx.const(0, "int32")
            statement = tvm_ffi.structural_map(
                statement, (tvm.ir.Var, lambda v: zero if v.same_as(self.row) else v)
            )
        return threaded("blockIdx.x", self.block, blocks, statement)


def threaded(name: str, variable: Any, extent: Any, body: Any) -> Any:
    """Return a loop whose iterations are the threads or blocks of an axis."""
    axis = tirx.IterVar(None, tirx.Var(name, variable.ty), 1, name)
    zero = tirx.const(0, variable.ty.dtype)
    count = tirx.const(extent, variable.ty.dtype) if isinstance(extent, int) else extent
    return tirx.For(variable, zero, count, tirx.ForKind.THREAD_BINDING, body, axis)


def sequence(statements: Sequence[Any]) -> Any:
    """Return statements as one."""
    return statements[0] if len(statements) == 1 else tirx.SeqStmt(list(statements))


def element(buffer: Any, offset: Any) -> Any:
    """Return the element of an array at an offset."""
    return tirx.BufferLoad(buffer, _indices(buffer, offset))


def store(buffer: Any, value: Any, offset: Any) -> Any:
    """Return the statement that writes an element."""
    return tirx.BufferStore(buffer, value, _indices(buffer, offset))


def _indices(buffer: Any, offset: Any) -> list[Any]:
    rank = len(buffer.ty.shape)
    if rank == 0:
        return []
    zero = tirx.const(0, "int32")
    return [*[zero] * (rank - 1), offset]


def unrolled(variable: Any, count: int, body: Any, kind: Any, first: int = 0) -> Any:
    """Return the loop of a statement for ``count`` values of a variable."""
    begin, extent = (tirx.const(n, variable.ty.dtype) for n in (first, count))
    return tirx.For(variable, begin, extent, kind, body)


def per_lane(count: int, body: Callable[[Any], Any], kind: Any = tirx.ForKind.UNROLLED) -> Any:
    """Return ``body(i)`` for each i below ``count``."""
    if count == 1:
        return body(tirx.const(0, "int32"))
    i = tirx.Var("i", "int32")
    return unrolled(i, count, body(i), kind)


def loop(name: str, count: int, body: Callable[[Any], Any], first: int = 0) -> Any:
    """Return the serial loop of ``body(i)`` for ``count`` values of i."""
    i = tirx.Var(name, "int32")
    return unrolled(i, count, body(i), tirx.ForKind.SERIAL, first)


def copy(count: int, width: int, target: Any, to: Any, source: Any, at: Any) -> list[Any]:
    """Return the copy of ``count`` elements in accesses of ``width``.

    ``target`` from the offset ``to``, ``source`` from ``at``.
    """

    def access(part: int) -> Any:
        def one(v: Any) -> Any:
            return store(target, element(source, at + (part + v)), to + part + v)

        return per_lane(width, one, tirx.ForKind.VECTORIZED)

    return [access(part) for part in range(0, count, width)]


def substituted(value: Any, axes: Mapping[Any, Any], load: Load | None = None) -> Any:
    """Return an expression with other values of its axes, and other values for what it reads.

    ``load`` is given each read as it was written and returns what replaces it, or None.
    """

    def read(node: Any) -> Any:
        found = None if load is None else load(node)
        return node if found is None else found

    # A name is bound once in a function, but an expression is substituted several times.
    names: dict[Any, Any] = {}
    tvm_ffi.structural_walk(
        value, (tirx.Let, lambda let: names.update({let.var: tirx.Var(let.var.name, let.var.ty)}))
    )
    variables = {**axes, **names}
    return tvm_ffi.structural_map(
        value, [(tvm.ir.TensorLoad, read), (tvm.ir.Var, lambda v: variables.get(v, v))], order="pre"
    )


def synchronize() -> Any:
    """Return the barrier of a thread block."""
    return tirx.Evaluate(tirx.call_intrin("void", "tirx.tvm_storage_sync", "shared"))


def across_threads(
    k: Kernel, total: Any, combine: Callable[[Any, Any], Any], threads: int, rows: int
) -> list[Any]:
    """Return what combines the totals of ``threads`` threads, for each of ``rows`` rows of them.

    ``total`` is a register; afterwards all threads of a row have the same in it. ``threads`` is a
    power of two, and all threads of the block take part.
    """
    mine = element(total, 0)

    def shuffled(width: int) -> list[Any]:
        mask, name = tirx.const(0xFFFFFFFF, "uint32"), "tirx.tvm_warp_shuffle_xor"
        made = []
        for distance in (1 << i for i in reversed(range(width.bit_length() - 1))):
            other = tirx.call_intrin(total.dtype, name, mask, mine, distance, WARP, WARP)
            made.append(store(total, combine(mine, other), 0))
        return made

    made = shuffled(min(threads, WARP))
    warps = threads // WARP
    if warps > 1:
        shared = k.shared(str(total.dtype), rows * warps)
        first = k.row * warps
        write = store(shared, mine, first + tirx.floordiv(k.thread, WARP))
        made.append(tirx.IfThenElse(tirx.floormod(k.thread, WARP) == 0, write, None))
        made.append(synchronize())
        made.append(store(total, element(shared, first + tirx.floormod(k.thread, warps)), 0))
        made += shuffled(warps)
    return made


def itemsize(buffer: Any) -> int:
    """Return the bytes of an element in memory."""
    return max(1, int(buffer.dtype.bits) // 8)


def widest(buffer: Any) -> int:
    """Return the most elements of one access."""
    if str(buffer.dtype) == "bool":
        return 1  # CUDA has no vectors of bool
    size = itemsize(buffer)
    return min(4, ACCESS_BYTES // size) if size == 1 else ACCESS_BYTES // size


def power_of_two_in(number: int, limit: int) -> int:
    """Return the largest power of two up to ``limit`` that divides a number."""
    return math.gcd(number, limit) if number else limit


def aligned(width: int, numbers: Iterable[int]) -> int:
    """Return the largest power of two up to ``width`` that divides all numbers."""
    for number in numbers:
        width = power_of_two_in(abs(number), width)
    return width


def divided(total: int, by: int) -> int:
    """Return a quotient rounded up."""
    return -(-total // by)
