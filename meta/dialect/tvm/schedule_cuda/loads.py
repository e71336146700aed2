"""What the windows of a thread read of the arrays: each element once, in vectors; see `windows`."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

from meta.dialect.tvm.schedule_cuda.emit import (
    Kernel,
    copy,
    element,
    itemsize,
    power_of_two_in,
    sequence,
    widest,
)


@dataclass
class Line:
    """Reads along one line of an array: of elements ``offsets`` from that of ``indices``."""

    buffer: Any
    indices: list[Any]
    offsets: set[int] = field(default_factory=set)


@dataclass
class VectorLoad:
    """What is read at once: ``width`` elements, ``at`` from that of the line's indices.

    access: elements of an access. registers: that hold it.
    """

    line: Line
    at: int
    width: int
    access: int
    registers: Any = None


class Loads:
    """The reads of a thread's terms: all are to be added before anything else is asked.

    lane: the variable of the element of a vector along the last axis of the results. lanes: how
    many there are; 1: the thread's results are next to each other, and what they read are lines.
    """

    def __init__(self, analyzer: Any, lane: Any, lanes: int) -> None:
        self.analyzer, self.lane, self.lanes = analyzer, lane, lanes
        self.lines: list[Line] = []
        self.regular = True

    def add(self, node: Any) -> None:
        """Note a read; ``regular`` says whether it is one along a line."""
        shape = node.source.ty.shape
        known = node.indices and all(isinstance(extent, tirx.IntImm) for extent in shape)
        if not known or self._steps(node.indices) is None:
            self.regular = False
        elif (found := self._find(node)) is None:
            self.lines.append(Line(node.source, list(node.indices), {0}))
        else:
            found[0].offsets.add(found[1])

    def _steps(self, indices: Any) -> int | None:
        """Return how far what neighbouring lanes read is apart along the last axis, 0 or 1; None if
        it is something else, as where the lanes go on along another axis.
        """
        first = [self._at(i, self._number(0)) for i in indices]
        steps: int | None = 0
        for lane in range(1, max(2, self.lanes)):
            there = [self._at(i, self._number(lane)) for i in indices]
            moved = [self._difference(a, b) for a, b in zip(there, first, strict=True)]
            steps = moved[-1] if lane == 1 else steps
            if steps not in (0, 1) or any(f != 0 for f in moved[:-1]) or moved[-1] != lane * steps:
                return None
        return steps

    def _number(self, value: int) -> Any:
        return tirx.const(value, self.lane.ty.dtype)

    def _at(self, index: Any, lane: Any) -> Any:
        return tvm_ffi.structural_map(
            index, (tvm.ir.Var, lambda v: lane if v.same_as(self.lane) else v)
        )

    def _difference(self, a: Any, b: Any) -> int | None:
        found = self.analyzer.simplify(a - b)
        return found.value if isinstance(found, tirx.IntImm) else None

    def _find(self, node: Any) -> tuple[Line, int] | None:
        """Return the line of a read and its place in it."""
        for line in self.lines:
            if not line.buffer.same_as(node.source):
                continue
            found = [
                self._difference(a, b) for a, b in zip(node.indices, line.indices, strict=True)
            ]
            together = self.lanes == 1 and found[-1] is not None
            if not any(f != 0 for f in found[:-1]) and (together or found[-1] == 0):
                return line, found[-1] or 0
        return None

    @cached_property
    def pieces(self) -> list[VectorLoad]:
        """What is read at once."""
        return [piece for line in self.lines for piece in self._pieces(line)]

    @property
    def accesses(self) -> int:
        """How many there are."""
        return sum(piece.width // piece.access for piece in self.pieces)

    @property
    def bytes(self) -> int:
        """Of what is read."""
        return sum(piece.width * itemsize(piece.line.buffer) for piece in self.pieces)

    def _pieces(self, line: Line) -> list[VectorLoad]:
        """Return the accesses of a line: what lies between reads is read, too."""
        limit, base = self._alignment(line)
        if self.lanes > 1:
            count = self.lanes if self._steps(line.indices) else 1
            return [VectorLoad(line, 0, count, min(power_of_two_in(base, limit), count))]
        pieces, at, end = [], min(line.offsets), max(line.offsets) + 1
        while at < end:
            width = power_of_two_in((base + at) % limit, limit)
            while at + width > end:
                width //= 2
            pieces.append(VectorLoad(line, at, width, width))
            at += width
        return pieces

    def _alignment(self, line: Line) -> tuple[int, int]:
        """Return the widest access of a line, and where its element lies to multiples of that."""
        found = self.analyzer.modular_set(self.analyzer.simplify(self._offset(line)))
        limit = power_of_two_in(line.buffer.ty.shape[-1].value, widest(line.buffer))
        limit = power_of_two_in(found.coeff, limit)
        return limit, found.base % limit

    def _offset(self, line: Line) -> Any:
        """Return where the line's element lies in the array, of the first lane."""
        offset = self._number(0)
        for index, extent in zip(line.indices, line.buffer.ty.shape, strict=True):
            offset = offset * extent + index
        return self._at(offset, self._number(0))

    def allocate(self, k: Kernel, steps: int) -> None:
        """Allocate the registers for ``steps`` times what is read."""
        for piece in self.pieces:
            piece.registers = k.registers(str(piece.line.buffer.dtype), steps * piece.width)

    def read(self, step: Any) -> list[Any]:
        """Return what reads all, for the ``step``-th time."""
        return [self._read(piece, step) for piece in self.pieces]

    def _read(self, piece: VectorLoad, step: Any) -> Any:
        line, width = piece.line, piece.width
        offset = self._offset(line) + piece.at
        to = step * width
        whole = sequence(copy(width, piece.access, piece.registers, to, line.buffer, offset))
        inside = []
        for position, (index, extent) in enumerate(
            zip(line.indices, line.buffer.ty.shape, strict=True)
        ):
            start = end = self._at(index, self._number(0))
            if position == len(line.indices) - 1:
                start, end = start + piece.at, start + (piece.at + width - 1)
            inside += [start >= 0, end < extent]
        conditions = [self.analyzer.simplify(condition) for condition in inside]
        kept = [c for c in conditions if not (isinstance(c, tirx.IntImm) and c.value)]
        return tirx.IfThenElse(tirx.all(*kept), whole, None) if kept else whole

    def load(self, node: Any, step: Any, lane: Any) -> Any:
        """Return the register of a read."""
        found = self._find(node)
        assert found is not None
        line, offset = found
        own = [piece for piece in self.pieces if piece.line is line]
        if self.lanes == 1:
            piece = next(p for p in own if p.at <= offset < p.at + p.width)
            return element(piece.registers, step * piece.width + (offset - piece.at))
        (piece,) = own
        return element(piece.registers, step * piece.width + (lane if piece.width > 1 else 0))
