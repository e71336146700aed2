"""Loops of products and convolutions with packed weights on the CPU, by tiles in registers.

A stage that `packed.py` annotates with `WINDOW` is a sum over the channels of x, and the taps of a
window, for each element [..., channel] of the result. A tile is a few neighbouring rows (places of
an image) by a few vectors of channels. Its sums stay in registers while channels and taps go by:
each step reads the vectors of the weight once, and a number of each row, which all lanes multiply.
Of 8 bits it reads four neighbours of a row as one number, and an instruction of x86's VNNI adds
their products with four numbers of each lane. Elementwise stages behind the sum are computed where
the sums are, before anything is stored.

Windows that reach over the edge of an image leave out the taps there: of rows by the bounds of a
loop, of columns because a tile at an edge has loops of its own. So nothing is padded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from copy import copy
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.target import Target
from tvm.target.codegen import llvm_get_cpu_features

from meta.dialect.tvm import llvm_code
from meta.dialect.tvm.broadcast import cast
from meta.dialect.tvm.lower import SCHEDULED, with_root
from meta.dialect.tvm.stages import PARALLEL_WORK, Stage, at_axes, blocks_of, stage_of
from meta.op.packed import FOUR

WINDOW, LAYOUT = "meta.window", "meta.layout"
"""The annotations: strides, padding before each axis, dilations, groups, none of a product; and the
axes of images."""
CACHED_WEIGHT = 1 << 19
"""Bytes of a weight that stays in the second cache while all rows go by."""
CACHED_ROWS = 1 << 14
"""Bytes of x that stay in the first cache while all vectors of a weight go by."""
REGISTERS = {64: 20, 32: 12}
"""Vectors of sums, at most, by the bytes of a vector: others are read meanwhile, and where LLVM has
too few registers, a step takes twice as long."""
MOST_VECTORS = 8
FEW_ROWS = 5
"""Rows, at most, for which a product of any number of them has loops of their own."""
LINE, WAYS, SETS = 64, 8, 64
"""The first cache: bytes of a line, and where one at an address may be."""
NARROW = 4
"""Columns, at most, of images of which tiles lie along the other axis, if that is longer."""
MOST_EDGES = 24
"""Loops over channels, at most, for the tiles at the edges of a row."""
SHORT = 4
"""Channels whose loop is unrolled."""


def _dot(most: int) -> str:
    """Return the operator of sums of products of bytes, by instructions of so many lanes."""

    def definition(symbol: str, dtype: str, lanes: int) -> str:
        """The first number plus the products of the four bytes of the others: of x, which have no
        sign, and of the weight.
        """
        each = min(lanes, most)
        one, part = (llvm_code.typed("i32", n) for n in (lanes, each))
        call = f"call {part} @llvm.x86.avx512.vpdpbusd.{32 * each}"
        if each == lanes:
            steps = [f"%y = {call}({one} %sum, {one} %x, {one} %w)"]
        else:
            steps = []
            for i in range(2):
                lane = ", ".join(f"i32 {i * each + lane}" for lane in range(each))
                steps += [
                    f"%{v}{i} = shufflevector {one} %{v}, {one} poison, <{each} x i32> <{lane}>"
                    for v in ("sum", "x", "w")
                ]
                steps.append(f"%y{i} = {call}({part} %sum{i}, {part} %x{i}, {part} %w{i})")
            whole = ", ".join(f"i32 {lane}" for lane in range(lanes))
            steps.append(f"%y = shufflevector {part} %y0, {part} %y1, <{lanes} x i32> <{whole}>")
        body = "\n  ".join(steps)
        return f"""
declare {part} @llvm.x86.avx512.vpdpbusd.{32 * each}({part}, {part}, {part})
define {one} @{symbol}({one} %sum, {one} %x, {one} %w) nounwind memory(none) {{
  {body}
  ret {one} %y
}}"""

    return llvm_code.function(f"dot_of_fours_{most}", 3, definition)


_DOTS = {64: _dot(16), 32: _dot(8)}
"""By the bytes of a vector."""


def multiplies(dtype: str, target: Target) -> bool:
    """Whether there are tiles for x of a dtype: of uint8 if the machine has VNNI."""
    if dtype == "uint8":
        return bool({"avx512vnni", "avxvnni"} & set(llvm_get_cpu_features(target)))
    return dtype == "float32"


@dataclass(frozen=True)
class Axis:
    """One axis of an image: place ``o`` of the result reads ``o * stride - before + tap *
    dilation`` for each tap, of ``size`` places.
    """

    out: Any
    size: Any
    taps: int
    stride: int
    before: int
    dilation: int

    def at(self, o: Any, tap: Any) -> Any:
        return o * self.stride - self.before + tap * self.dilation

    def inside(self, o: int, tap: int) -> bool:
        return bool(0 <= self.at(o, tap) < self.size)

    @property
    def is_plain(self) -> bool:
        """Whether places are those of x: one tap, at the place itself."""
        return (self.taps, self.stride, self.before) == (1, 1, 0) and _same(self.out, self.size)

    def bounds(self, o: Any) -> tuple[Any, Any]:
        """Return the first tap that is inside for a place, and the one behind the last."""
        low, high = 0, self.taps
        if self.taps == 1 and self.before == 0:
            return low, high
        if self.before:
            low = tirx.max((self.before - o * self.stride + self.dilation - 1) // self.dilation, 0)
        if not isinstance(self.out, int) or not self.inside(self.out - 1, self.taps - 1):
            last = (self.size + self.before - o * self.stride + self.dilation - 1) // self.dilation
            high = tirx.min(last, self.taps)
        return low, high


def _same(a: Any, b: Any) -> bool:
    """Whether two extents are the same number, or the same name."""
    known = isinstance(a, int) and isinstance(b, int)
    return bool(a == b) if known else a is b


def _number(extent: Any) -> Any:
    return int(extent) if isinstance(extent, tirx.IntImm) else extent


def scheduled(sch: s_tir.Schedule, function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    """Return the function of a schedule with loops by tiles; None if it has no stage for them, or
    another form.
    """
    blocks = blocks_of(sch)
    if not blocks or WINDOW not in sch.get(blocks[0]).annotations:
        return None
    stages = [stage_of(sch, block) for block in blocks]
    sums, epilogue = stages[0], [stage for stage in stages[1:] if stage is not None]
    if sums is None or len(sums.loads) != 2 or len(epilogue) < len(stages) - 1:
        return None
    if not _is_elementwise(sums, epilogue):
        return None
    x, weight = sums.loads  # in the order of the product
    dtypes = [str(b.dtype) for b in (x, weight, sums.buffer)]
    known = ["float32"] * 3, ["uint8", "int8", "int32"]
    if dtypes not in known or not multiplies(dtypes[0], target):
        return None
    notes = sch.get(blocks[0]).annotations
    window, layout = [int(v) for v in notes[WINDOW]], str(notes.get(LAYOUT, ""))
    shapes = [[_number(e) for e in buffer.shape] for buffer in (x, weight, sums.buffer)]
    tiles = tiles_of(shapes[0], shapes[1], shapes[2], window, layout, target)
    if tiles is None:
        return None
    outputs = frozenset(function.params)
    stores = [(stage, sch.get(stage.block).body.value) for stage in epilogue]
    with IRBuilder() as builder:
        read = [_in_fours(buffer) if tiles.fours else buffer for buffer in (x, weight)]
        tiles.loops(read[0], read[1], _Results(sums.buffer, outputs, stores))
        body = builder.get()
    if tiles.fours:
        named = [tirx.DeclBuffer(a, data=b.data) for a, b in zip(read, (x, weight), strict=True)]
        body = tirx.SeqStmt([*named, body])
    root = sch.mod["main"].body.block
    gone = {stage.buffer for stage in (sums, *epilogue)}
    left = [b for b in root.alloc_buffers if b not in gone]
    return with_root(sch.mod["main"], body, left).with_attr(SCHEDULED, 1)


def _in_fours(buffer: Any) -> Any:
    """Return a buffer of bytes as one of words; of a weight, whose last axis is one."""
    *shape, last = buffer.shape
    shape += [] if int(last) == FOUR and buffer.dtype == "int8" else [int(last) // FOUR]
    return tirx.decl_buffer(shape, "int32", buffer.name)


def _is_elementwise(first: Stage, rest: Sequence[Stage]) -> bool:
    """Whether other stages are of the shape of the first, and read it and one another in place."""
    own = {stage.buffer for stage in (first, *rest)}
    extents = [str(e) for e in first.buffer.shape]
    # Along an axis of one element the place is 0.
    walked = [i for i, extent in enumerate(extents) if extent != "1"]

    def in_place(stage: Stage, place: Sequence[Any]) -> bool:
        return at_axes([place[i] for i in walked], [stage.axes[i] for i in walked])

    return all(
        not s.reduce
        and [str(e) for e in s.buffer.shape] == extents
        and all(in_place(s, place) for b in own & s.loads.keys() for place in s.loads[b])
        for s in rest
    )


@dataclass(frozen=True)
class _Results:
    """What is computed of sums, by elementwise stages, and stored, if it is among ``outputs``."""

    sums: Any
    outputs: frozenset[Any]
    stages: Sequence[tuple[Stage, Any]]

    def store(self, vector: Any, front: Sequence[Any], channel: Any, lanes: int) -> None:
        """Store what is made of a vector of sums, those of some channels of a place."""
        known = {self.sums: vector}
        if self.sums in self.outputs:
            with T.vectorized(0, lanes) as lane:
                T.buffer_proxy(self.sums)[(*front, channel + lane)] = vector[lane]
        for i, (stage, value) in enumerate(self.stages):
            if any(stage.buffer in later.loads for later, _ in self.stages[i + 1 :]):
                own = T.buffer_proxy(T.alloc_buffer((lanes,), str(stage.buffer.dtype)))
                with T.vectorized(0, lanes) as lane:
                    index = (*front, channel + lane)
                    own[lane] = self._value(stage, value, index, known, lane)
                known[stage.buffer] = own
            if stage.buffer in self.outputs:
                with T.vectorized(0, lanes) as lane:
                    index, own = (*front, channel + lane), known.get(stage.buffer)
                    found = (
                        self._value(stage, value, index, known, lane) if own is None else own[lane]
                    )
                    T.buffer_proxy(stage.buffer)[index] = found

    def _value(
        self, stage: Stage, value: Any, index: Sequence[Any], known: Mapping[Any, Any], lane: Any
    ) -> Any:
        pairs = zip(stage.axes, index, strict=True)
        places = {axis: cast(tirx.convert(i), str(axis.ty.dtype)) for axis, i in pairs}

        def load(node: Any) -> Any:
            return known[node.source][lane] if node.source in known else node

        computed = tvm_ffi.structural_map(value, [(tvm.ir.TensorLoad, load)], order="post")
        return tvm_ffi.structural_map(computed, (tvm.ir.Var, lambda var: places.get(var, var)))


@dataclass(frozen=True)
class Tile:
    """Rows and vectors of channels whose sums stay in registers."""

    rows: int
    vectors: int


class Tiles:
    """The loops of one product or convolution.

    outer: extents of the axes in front of ``axes``: of the images those of rows and columns, of a
    product the last two that have several places. layout: the axes of images. shape: of the weight.
    own: how many of the two axes x has. unit: axes of one place behind them. turned: whether the
    columns of an image are taken for its rows, and its rows for columns. fours: whether each four
    channels of bytes are one of words.
    """

    def __init__(
        self,
        outer: Sequence[Any],
        axes: tuple[Axis, Axis],
        groups: int,
        layout: str,
        shape: Sequence[int],
        target: Target,
        own: int = 2,
        unit: int = 0,
        turned: bool = False,
        fours: bool = False,
    ) -> None:
        self.own, self.unit, self.turned, self.fours = own, unit, turned, fours
        self.outer, (self.rows, self.columns), self.layout = list(outer), axes, layout
        self.groups = groups
        self.blocks, *_, self.channels, self.lanes = shape
        self.depthwise = groups > 1 and self.channels == 1 and groups == self.blocks * self.lanes
        self.bytes = prod(shape) * 4
        vector = 64 if "avx512f" in llvm_get_cpu_features(target) else 32
        self._dot = _DOTS[vector]
        self._registers = -(-self.lanes * 4 // vector)
        self._most = REGISTERS[vector]
        # Places follow one another in `count` rows of `length`.
        self.count, self.length = self.rows.out, self.columns.out
        self._flatten()
        self.tile = self._best(self.length)

    def _flatten(self) -> None:
        """Join, or divide, rows of an image, or of a product, that are read as they are."""
        plain = self.rows.is_plain and self.columns.is_plain
        if not plain or not isinstance(self.length, int):
            return
        known = isinstance(self.count, int)
        total = self.count * self.length if known else self.length

        def cost(length: int) -> tuple[float, int]:
            return total // length * self._cost(length, self._best(length)), length

        def fits(length: int) -> bool:
            return 4 * length * self.channels <= CACHED_ROWS or length in (self.length, self._most)

        lengths = [d for d in range(1, total + 1) if total % d == 0 and fits(d)]
        self.length = min(lengths, key=cost)
        parts = total // self.length
        self.count = parts if known else self.count * parts

    @property
    def _blocks_of_group(self) -> int:
        return self.blocks if self.depthwise else self.blocks // self.groups

    def _best(self, length: Any) -> Tile:
        """Return the tile that takes the fewest cycles for a row of places."""
        most, blocks = self._most // self._registers, self._blocks_of_group
        high = self._rows_in_cache()
        tiles = [
            Tile(rows, vectors)
            for vectors in range(1, min(blocks, MOST_VECTORS) + 1)
            if blocks % vectors == 0
            for rows in range(1, min(most // vectors, high) + 1)
            if not isinstance(length, int) or rows <= length
        ]
        return min(tiles, key=lambda tile: self._cost(length, tile))

    def _rows_in_cache(self) -> int:
        """Return how many rows stay in the first cache while their channels go by: those that lie a
        power of two apart have few places there, some of which the weight takes.
        """
        apart = self.columns.stride * self.groups * self.channels * 4
        apart *= self.rows.size if self.turned else 1
        if apart % LINE or self.layout == "NCHW":
            return self._most
        places = WAYS * SETS // math.gcd(apart // LINE, SETS)
        return max(places * 5 // 8, 1)

    def _cost(self, length: Any, tile: Tile) -> float:
        """Return about how many cycles a step takes, for one vector of channels of a row of places:
        a sum in a cycle, and a third more loads; a sum is there four cycles later.
        """

        def of(rows: int) -> float:
            vectors = tile.vectors * self._registers
            return max(rows * vectors, 0.75 * (rows + vectors), 4) + 0.5

        if not isinstance(length, int):
            return of(tile.rows) / tile.rows / tile.vectors
        whole, left = divmod(length, tile.rows)
        return (whole * of(tile.rows) + (of(left) if left else 0)) / tile.vectors

    @property
    def fits(self) -> bool:
        """Whether there are loops: of windows sizes must be known, and few tiles at edges."""
        if self.rows.is_plain and self.columns.is_plain:
            return True
        extents = (*(a.out for a in self.axes), *(a.size for a in self.axes))
        if not all(isinstance(e, int) and e > 0 for e in extents):
            return False
        return sum(s.edge for s in self._segments()) * self.columns.taps <= MOST_EDGES

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Rows and columns of an image."""
        return self.rows, self.columns

    @property
    def _work(self) -> int:
        """Products, of one image where their number is not known."""
        axes = (axis.out for axis in self.axes)
        known = [e for e in (*self.outer, *axes) if isinstance(e, int)]
        return prod(known) * self.bytes // 4

    # Loops ----------------------------------------------------------------------------------------

    def loops(self, x: Any, weight: Any, results: _Results) -> None:
        """Write the loops on buffers."""
        tensors = _Tensors(T.buffer_proxy(x), T.buffer_proxy(weight), results)
        if isinstance(self.length, int):
            self._nest(tensors)
            return
        self._nests(tensors, 1)

    def _nests(self, tensors: _Tensors, few: int) -> None:
        """Write the loops for a number of rows that a call says: each of a few has its own, with as
        many vectors as there is room for.
        """
        if few > FEW_ROWS:
            self._nest(tensors)
            return
        with T.If(self.length == few):
            with T.Then():
                own = copy(self)
                own.length, own.columns = few, replace(self.columns, out=few, size=few)
                own.tile = own._best(few)
                own._nest(tensors)
            with T.Else():
                self._nests(tensors, few + 1)

    def _nest(self, tensors: _Tensors) -> None:
        slices, images = self.blocks // self.tile.vectors, prod(self.outer) if self.outer else 1
        parallel = T.parallel if self._work >= PARALLEL_WORK else T.serial
        if self.bytes <= CACHED_WEIGHT and isinstance(self.length, int):
            with parallel(0, images * self.count) as row:
                self._row(tensors, row // self.count, row % self.count, None)
        else:
            with parallel(0, slices) as part, _loop(images) as image, _loop(self.count) as row:
                self._row(tensors, image, row, part)

    def _row(self, tensors: _Tensors, image: Any, row: Any, part: Any | None) -> None:
        """Write the tiles of a row, of a part of the channels or, place by place, of all of them:
        memory is written line behind line then.
        """
        at, rows = [*self._front(image), row], self.tile.rows
        slices = self.blocks // self.tile.vectors if part is None else 1
        if isinstance(self.length, int):
            for segment in self._segments():
                with _loop(segment.count) as i, _loop(slices) as own:
                    first = (own if part is None else part) * self.tile.vectors
                    begin = segment.begin + i * segment.rows
                    self._sums(tensors, at, begin, segment.rows, first, segment.edge)
            return
        assert part is not None
        first = part * self.tile.vectors
        with T.serial(0, self.length // rows) as i:
            self._sums(tensors, at, i * rows, rows, first, False)
        left = self.length % rows
        for few in range(1, rows):
            with T.If(left == few), T.Then():
                self._sums(tensors, at, self.length - left, few, first, False)

    def _segments(self) -> list[_Segment]:
        """Return the tiles of a row."""
        found: list[_Segment] = []
        for begin in range(0, self.length, self.tile.rows):
            rows = min(self.tile.rows, self.length - begin)
            corners = product((begin, begin + rows - 1), (0, self.columns.taps - 1))
            edge = not self.columns.is_plain and not all(self.columns.inside(*c) for c in corners)
            last = found[-1] if found else None
            if last is not None and not edge and not last.edge and last.rows == rows:
                found[-1] = replace(last, count=last.count + 1)
            else:
                found.append(_Segment(begin, 1, rows, edge))
        return found

    def _front(self, image: Any) -> list[Any]:
        """Return the place along each of the axes in front."""
        found: list[Any] = []
        for extent in reversed(self.outer[1:]):
            found.append(image % extent)
            image = image // extent
        return [image, *reversed(found)][: len(self.outer)]

    def _place(self, row: Any, column: Any) -> tuple[Any, Any]:
        """Return the row and the column of an image, of those of the loops."""
        width = self.columns.out
        if _same(self.length, width):
            return row, column
        flat = row * self.length + column
        return flat // width, flat % width

    def _sums(
        self, tensors: _Tensors, at: Sequence[Any], begin: Any, rows: int, first: Any, edge: bool
    ) -> None:
        """Compute one tile."""
        *front, row = at
        places = [self._place(row, begin + i) for i in range(rows)]
        keys = product(range(rows), range(self.tile.vectors))
        dtype = str(tensors.results.sums.dtype)
        sums = {key: T.buffer_proxy(T.alloc_buffer((self.lanes,), dtype)) for key in keys}
        for vector in sums.values():
            with T.vectorized(0, self.lanes) as lane:
                vector[lane] = tirx.const(0, dtype)
        tile = _Sums(tensors, front, places, first, sums)
        with _between(*self.rows.bounds(places[0][0])) as down:
            if edge or self.depthwise:
                for tap in range(self.columns.taps):
                    inside = (i for i in range(rows) if self.columns.inside(begin + i, tap))
                    self._step(tile, down, tap, list(inside) if edge else range(rows))
            else:
                with _loop(self.columns.taps) as tap:
                    self._step(tile, down, tap, range(rows))
        for (i, v), vector in sums.items():
            channel = (first + v) * self.lanes
            tensors.results.store(vector, self._index(front, places[i]), channel, self.lanes)

    def _step(self, tile: _Sums, down: Any, tap: Any, rows: Sequence[int]) -> None:
        """Add the products of one tap, for the rows where it is inside."""
        if not rows:
            return
        group = 0 if self.groups == 1 else tile.first // max(self.blocks // self.groups, 1)
        taps = self._turn((down, tap)) if self.layout else ()

        def channel(c: Any) -> None:
            for (i, v), own in tile.sums.items():
                if i not in rows:
                    continue
                with T.vectorized(0, self.lanes) as lane:
                    number = group * self.channels + c
                    if self.depthwise:
                        number = (tile.first + v) * self.lanes + lane
                    read = tile.tensors.x[self._read(tile, i, down, tap, number)]
                    factor = tile.tensors.weight[(tile.first + v, *taps, c, lane)]
                    if self.fours:
                        own[lane] = llvm_code.call(self._dot, own[lane], read, factor)
                    else:
                        dtype = str(own[lane].ty.dtype)
                        own[lane] = own[lane] + cast(read, dtype) * cast(factor, dtype)

        if self.channels <= SHORT:
            for c in range(self.channels):
                channel(c)
        else:
            with T.serial(0, self.channels) as c:
                channel(c)

    def _index(self, front: Sequence[Any], place: Sequence[Any]) -> list[Any]:
        """Return the index of a place, in front of the channel."""
        return [*front, *self._turn(place)[2 - self.own :], *(0 for _ in range(self.unit))]

    def _turn(self, pair: Sequence[Any]) -> Sequence[Any]:
        """Return what is of rows and columns in the order of the image's axes."""
        return pair[::-1] if self.turned else pair

    def _read(self, tile: _Sums, i: int, down: Any, tap: Any, channel: Any) -> tuple[Any, ...]:
        """Return the index of x for a row of a tile."""
        row, column = tile.places[i]
        if not self.layout:
            return (*self._index(tile.front, tile.places[i]), channel)
        height, width = self._turn((self.rows.at(row, down), self.columns.at(column, tap)))
        at = {"N": tile.front[0], "H": height, "W": width, "C": channel}
        return tuple(at[letter] for letter in self.layout)


@dataclass(frozen=True)
class _Tensors:
    x: Any
    weight: Any
    results: _Results


@dataclass(frozen=True)
class _Segment:
    """Tiles one behind the other: ``count`` of so many rows. edge: whether taps are outside."""

    begin: int
    count: int
    rows: int
    edge: bool


@dataclass(frozen=True)
class _Sums:
    """A tile: the places of its rows behind those in front, its first block, and its vectors."""

    tensors: _Tensors
    front: Sequence[Any]
    places: Sequence[tuple[Any, Any]]
    first: Any
    sums: Mapping[tuple[int, int], Any]


def _between(low: Any, high: Any) -> Any:
    """Return a loop; of one step, known, its only value."""
    one = isinstance(low, int) and isinstance(high, int) and high - low == 1
    return nullcontext(low) if one else T.serial(low, high)


def _loop(extent: Any) -> Any:
    return _between(0, extent)


def tiles_of(
    x: Sequence[Any],
    weight: Sequence[int],
    result: Sequence[Any],
    window: Sequence[int],
    layout: str,
    target: Target,
) -> Tiles | None:
    """Return the tiles for tensors of these shapes; None if there are none. window: as `WINDOW`
    has it; without one it is a product.
    """
    groups = window[-1] if window else 1
    fours = len(weight) == (6 if window else 4)
    if fours:
        inputs = x[layout.index("C")] // groups if window else x[-1]
        if inputs % FOUR or layout not in ("", "NHWC"):
            return None
        weight = weight[:-1]
    blocks, *_, channels, lanes = weight
    depthwise = groups > 1 and channels == 1 and blocks * lanes == groups
    extents = (*weight, *(e for e in result if isinstance(e, int)))
    if 0 in extents or not (depthwise or blocks % groups == 0):
        return None
    if window:
        numbers = window[:-1]
        size = {letter: x[layout.index(letter)] for letter in layout}
        axes = [Axis(result[1 + i], size["HW"[i]], weight[1 + i], *numbers[i::2]) for i in range(2)]
        height, width = result[1:3]
        narrow = isinstance(height, int) and isinstance(width, int) and width <= NARROW
        turned = narrow and width < height and not all(a.is_plain for a in axes)
        if turned:
            axes.reverse()
        pair = axes[0], axes[1]
        images = [size["N"]]
        tiles = Tiles(images, pair, groups, layout, weight, target, turned=turned, fours=fours)
    else:
        outer = list(x[:-1])
        while outer and isinstance(outer[-1], int) and outer[-1] == 1:
            del outer[-1]
        last = outer[-2:]
        rows, columns = (Axis(e, e, 1, 1, 0, 1) for e in [1, 1, *last][-2:])
        unit = len(x) - 1 - len(outer)
        pair, own = (rows, columns), len(last)
        tiles = Tiles(outer[:-2], pair, 1, "", weight, target, own, unit, fours=fours)
    return tiles if tiles.fits else None
