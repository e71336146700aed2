"""Kernels of elements that are read along another axis than they are written: transposes.

A thread block takes a tile of both axes. It reads along the one, transposes squares of a few
elements' side in registers, and puts them into shared memory, from which they are read along the
other axis; so both sides of global memory see whole lines. What else the elements need is read and
computed as in `injective`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tvm import tirx

from meta.dialect.core.knobs import ask
from meta.dialect.tvm.schedule_cuda.emit import (
    ACCESS_BYTES,
    aligned,
    copy,
    divided,
    element,
    itemsize,
    per_lane,
    power_of_two_in,
    sequence,
    store,
    synchronize,
)
from meta.dialect.tvm.schedule_cuda.injective import THREADS, Injective, alike
from meta.dialect.tvm.schedule_cuda.walk import Access, KernelBlock, KernelResult, read_outside
from meta.runtime.gpu_properties import SHARED_MEMORY

SIDE = 4
"""Of the squares that are transposed in registers, where lines are cut into vectors; else 1."""
TILE = 4096
"""Elements of a tile."""
LINE = 64
"""Elements along each of its sides, where the axes are long enough."""
OTHER_LINES = 16, 32
LEAST = 16
"""Shorter axes are left to the cache."""
ALIGNMENT = 64
"""Bytes to which TVM aligns an array in shared memory."""


class Transposes(Injective):
    """One kernel of stages that read some arrays along the axis ``across``."""

    def __init__(self, parts: Sequence[KernelBlock], outside: set[Any]) -> None:
        super().__init__(parts, outside)
        self.across, self.turned = self._turned()
        while self._shared_bytes(LEAST, LEAST) > SHARED_MEMORY:
            self.turned.popitem()  # left to the cache, as those with short axes are
        lines = self.merged[self.across], self.merged[-1]
        self.side = SIDE if all(line % SIDE == 0 for line in lines) else 1
        # Where lines are not cut into vectors, small elements of neighbouring lines still go to
        # shared memory together: two halves, or four bytes.
        widest_element = max((itemsize(one.buffer) for one in self.turned), default=4)
        self.down = self.side if self.side > 1 else max(1, 4 // widest_element)

    def _turned(self) -> tuple[int, dict[Access, Access]]:
        """Return the axis along which most is read that is not the last, and those reads."""
        best: tuple[int, dict[Access, Access]] = (0, {})
        for axis in range(len(self.merged) - 1):
            found = {
                one: walked
                for one, walked in self.others.items()
                if walked.strides[axis] == 1 and walked.strides[-1] > 1
            }
            if len(found) > len(best[1]) and min(self.merged[axis], self.merged[-1]) >= LEAST:
                best = axis, found
        return best

    def _extents(self, rows: int, columns: int) -> tuple[int, int]:
        """Return the extents of a tile: as large as those of all arrays have shared memory for."""
        line = ask("tile", LINE, OTHER_LINES)
        high = min(line, 1 << (rows - 1).bit_length())
        wide = min(TILE // high, 1 << (columns - 1).bit_length(), line)
        while self._shared_bytes(high, wide) > SHARED_MEMORY:
            high, wide = (high, wide // 2) if wide >= high else (high // 2, wide)
        return high, wide

    def _shared_bytes(self, high: int, wide: int) -> int:
        """Return what tiles of these extents take of shared memory, of all arrays together."""
        elements = high * (wide + SIDE)
        sizes = (itemsize(self.k.in_memory(one.buffer)) for one in self.turned)
        return sum(-(-elements * size // ALIGNMENT) * ALIGNMENT for size in sizes)

    def emit(self) -> Any:
        """Return the statement of the kernel."""
        k, across, last = self.k, self.across, len(self.merged) - 1
        rows, columns = self.merged[across], self.merged[last]
        high, wide = self._extents(rows, columns)
        tiles = divided(rows, high), divided(columns, wide)
        values: list[Any] = [None] * (last + 1)
        block, across_last = k.parted(k.wide(k.block), tiles[1])
        block, down_first = k.parted(block, tiles[0])
        column, row = across_last * k.number(wide), down_first * k.number(high)
        others = [axis for axis in range(last) if axis != across]
        for axis in reversed(others):
            block, values[axis] = k.parted(block, self.merged[axis])
        body: list[Any] = []
        shared = {}
        for one, walked in self.turned.items():
            buffer = k.shared(str(k.in_memory(one.buffer).dtype), high * (wide + self.down))
            shared[one] = buffer
            body += self._read(one, walked, buffer, values, (row, column), (high, wide))
        body.append(synchronize())
        widest_vector = ACCESS_BYTES // max(itemsize(stage.buffer) for stage in self.stages)
        width = power_of_two_in(columns, min(self.side, widest_vector))
        # Of wide elements a vector is less than a side: all the same a thread writes one of a line,
        # beside that of its neighbour.
        together = width if self.side > 1 else self.down
        vectors = high * wide // together

        def write(i: Any) -> Any:
            number = i * THREADS + k.thread
            r = tirx.floordiv(number, wide // together)
            c = tirx.floormod(number, wide // together) * together
            begin: list[Any] = []
            lines = {}
            for one, buffer in shared.items():
                registers = k.registers(str(buffer.dtype), together)
                at = self._shelf(r, high) * (wide + self.down) + c
                lanes = min(together, ACCESS_BYTES // itemsize(buffer))
                begin += copy(together, lanes, registers, tirx.const(0, "int32"), buffer, at)
                lines[one] = registers
            made = []
            for part in range(0, together, width):
                here = list(values)
                here[across], here[last] = row + k.wide(r), column + k.wide(c + part)
                held = {}
                for one, registers in lines.items():
                    own = registers if width == together else k.registers(registers.dtype, width)
                    if own is not registers:
                        made += copy(width, 1, own, tirx.const(0, "int32"), registers, part)
                    held[one] = (own, 1)
                place = k.offset(0, here, self.line.strides)
                first, end = self._vector(place, width, here, held)
                whole = sequence([*first, *end])
                if rows % high or columns % wide:
                    inside = tirx.all(here[across] < k.number(rows), here[last] < k.number(columns))
                    whole = tirx.IfThenElse(inside, whole, None)
                made.append(whole)
            return sequence([*begin, *made])

        count = divided(vectors, THREADS)
        written = per_lane(count, write)
        if vectors % THREADS:
            written = tirx.IfThenElse(k.thread < vectors, written, None)
        body.append(written)
        blocks = tiles[0] * tiles[1] * math.prod(self.merged[axis] for axis in others)
        return k.launch(body, blocks, THREADS)

    def _shelf(self, row: Any, high: int) -> Any:
        """Return where a row of the tile lies: rows of neighbouring threads one after the other."""
        side = self.side
        return tirx.floormod(row, side) * (high // side) + tirx.floordiv(row, side)

    def _read(
        self,
        one: Access,
        walked: Access,
        shared: Any,
        values: list[Any],
        origin: tuple[Any, Any],
        extents: tuple[int, int],
    ) -> list[Any]:
        """Return what reads a tile along its rows and puts its squares into shared memory."""
        k, across = self.k, self.across
        (row, column), (high, wide) = origin, extents
        rows, columns = self.merged[across], self.merged[-1]
        vector = power_of_two_in(rows, min(self.side, ACCESS_BYTES // itemsize(one.buffer)))
        others = (stride for axis, stride in enumerate(walked.strides) if axis != across)
        vector = aligned(vector, (*others, walked.start))
        side, down = self.side, self.down
        source = k.in_memory(one.buffer)
        dtype = str(source.dtype)
        squares = high // side * (wide // down)
        count = divided(squares, THREADS)
        # Registers for each square: what is not read must not wait for what was there before.
        given = k.registers(dtype, count * side * down)
        turned = k.registers(dtype, side * down)
        zero = tirx.const(0, "int32")

        def place(i: Any) -> tuple[Any, Any]:
            number = i * THREADS + k.thread
            r = tirx.floormod(number, high // side) * side
            return r, tirx.floordiv(number, high // side) * down

        def read(i: Any) -> Any:
            r, c = place(i)
            reads = []
            for j in range(down):
                here = list(values)
                here[across], here[-1] = row + k.wide(r), column + k.wide(c + j)
                for part in range(0, side, vector):
                    at = k.offset(walked.start + part, here, walked.strides)
                    to = (i * down + j) * side + part + zero
                    found = sequence(copy(vector, vector, given, to, source, at))
                    if rows % high or columns % wide:
                        inside = tirx.all(
                            here[across] + part < k.number(rows), here[-1] < k.number(columns)
                        )
                        found = tirx.IfThenElse(inside, found, None)
                    reads.append(found)
            return sequence(reads)

        def turn(i: Any) -> Any:
            r, c = place(i)
            turns = [
                store(turned, element(given, (i * down + j) * side + v), v * down + j)
                for v in range(side)
                for j in range(down)
            ]
            writes = []
            for v in range(side):
                at = self._shelf(r + v, high) * (wide + down) + c
                lanes = min(down, ACCESS_BYTES // itemsize(shared))
                writes += copy(down, lanes, shared, at, turned, v * down + zero)
            return sequence([*turns, *writes])

        made = [per_lane(count, read), per_lane(count, turn)]
        if squares % THREADS == 0:
            return made
        return [tirx.IfThenElse(k.thread < squares, statement, None) for statement in made]


def kernel(parts: Sequence[KernelBlock], inner: set[Any]) -> KernelResult | None:
    """Return the first stages without reductions, if they read across, and their kernel."""
    taken = alike(parts)
    if not taken or any(part.stage.reduce for part in taken):
        return None
    made = Transposes(taken, read_outside(taken, parts, inner))
    return (taken, [made.emit()], []) if made.turned else None
