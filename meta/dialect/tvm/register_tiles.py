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

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
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
from meta.dialect.tvm.tile_choice import Tiles, same, tiles_of
from meta.op.packed import FOUR

WINDOW, LAYOUT = "meta.window", "meta.layout"
"""The annotations: strides, padding before each axis, dilations, groups, none of a product; and the
axes of images."""
CACHED_WEIGHT = 1 << 19
"""Bytes of a weight that stays in the second cache while all rows go by."""
FEW_ROWS = 5
"""Rows, at most, for which a product of any number of them has loops of their own."""
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
        results = _Results(sums.buffer, outputs, stores)
        _Loops(tiles, T.buffer_proxy(read[0]), T.buffer_proxy(read[1]), results).write()
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
class _Loops:
    """The loops of tiles, on buffers."""

    tiles: Tiles
    x: Any
    weight: Any
    results: _Results

    def write(self, few: int = 1) -> None:
        """Write them. Of a number of rows that a call says, each of a few, from one on, has its
        own, with as many vectors as there is room for.
        """
        tiles = self.tiles
        if isinstance(tiles.length, int) or few > FEW_ROWS:
            self._nest()
            return
        with T.If(tiles.length == few):
            with T.Then():
                replace(self, tiles=tiles.of_length(few))._nest()
            with T.Else():
                self.write(few + 1)

    def _nest(self) -> None:
        tiles = self.tiles
        slices = tiles.blocks // tiles.tile.vectors
        images = prod(tiles.outer) if tiles.outer else 1
        parallel = T.parallel if tiles.work >= PARALLEL_WORK else T.serial
        if tiles.bytes <= CACHED_WEIGHT and isinstance(tiles.length, int):
            with parallel(0, images * tiles.count) as row:
                self._row(row // tiles.count, row % tiles.count, None)
        else:
            with parallel(0, slices) as part, _loop(images) as image, _loop(tiles.count) as row:
                self._row(image, row, part)

    def _row(self, image: Any, row: Any, part: Any | None) -> None:
        """Write the tiles of a row, of a part of the channels or, place by place, of all of them:
        memory is written line behind line then.
        """
        tiles = self.tiles
        at, rows = [*self._front(image), row], tiles.tile.rows
        slices = tiles.blocks // tiles.tile.vectors if part is None else 1
        if isinstance(tiles.length, int):
            for segment in tiles.segments():
                with _loop(segment.count) as i, _loop(slices) as own:
                    first = (own if part is None else part) * tiles.tile.vectors
                    begin = segment.begin + i * segment.rows
                    self._sums(at, begin, segment.rows, first, segment.edge)
            return
        assert part is not None
        first = part * tiles.tile.vectors
        with T.serial(0, tiles.length // rows) as i:
            self._sums(at, i * rows, rows, first, False)
        left = tiles.length % rows
        for few in range(1, rows):
            with T.If(left == few), T.Then():
                self._sums(at, tiles.length - left, few, first, False)

    def _front(self, image: Any) -> list[Any]:
        """Return the place along each of the axes in front."""
        found: list[Any] = []
        for extent in reversed(self.tiles.outer[1:]):
            found.append(image % extent)
            image = image // extent
        return [image, *reversed(found)][: len(self.tiles.outer)]

    def _place(self, row: Any, column: Any) -> tuple[Any, Any]:
        """Return the row and the column of an image, of those of the loops."""
        tiles = self.tiles
        width = tiles.columns.out
        if same(tiles.length, width):
            return row, column
        flat = row * tiles.length + column
        return flat // width, flat % width

    def _sums(self, at: Sequence[Any], begin: Any, rows: int, first: Any, edge: bool) -> None:
        """Compute one tile."""
        tiles = self.tiles
        *front, row = at
        places = [self._place(row, begin + i) for i in range(rows)]
        keys = product(range(rows), range(tiles.tile.vectors))
        dtype = str(self.results.sums.dtype)
        sums = {key: T.buffer_proxy(T.alloc_buffer((tiles.lanes,), dtype)) for key in keys}
        for vector in sums.values():
            with T.vectorized(0, tiles.lanes) as lane:
                vector[lane] = tirx.const(0, dtype)
        tile = _Sums(front, places, first, sums)
        with _between(*tiles.rows.bounds(places[0][0])) as down:
            if edge or tiles.depthwise:
                for tap in range(tiles.columns.taps):
                    inside = (i for i in range(rows) if tiles.columns.inside(begin + i, tap))
                    self._step(tile, down, tap, list(inside) if edge else range(rows))
            else:
                with _loop(tiles.columns.taps) as tap:
                    self._step(tile, down, tap, range(rows))
        for (i, v), vector in sums.items():
            channel = (first + v) * tiles.lanes
            self.results.store(vector, self._index(front, places[i]), channel, tiles.lanes)

    def _step(self, tile: _Sums, down: Any, tap: Any, rows: Sequence[int]) -> None:
        """Add the products of one tap, for the rows where it is inside."""
        tiles = self.tiles
        if not rows:
            return
        group = 0 if tiles.groups == 1 else tile.first // max(tiles.blocks // tiles.groups, 1)
        taps = self._turn((down, tap)) if tiles.layout else ()

        def channel(c: Any) -> None:
            for (i, v), own in tile.sums.items():
                if i not in rows:
                    continue
                with T.vectorized(0, tiles.lanes) as lane:
                    number = group * tiles.channels + c
                    if tiles.depthwise:
                        number = (tile.first + v) * tiles.lanes + lane
                    read = self.x[self._read(tile, i, down, tap, number)]
                    factor = self.weight[(tile.first + v, *taps, c, lane)]
                    if tiles.fours:
                        own[lane] = llvm_code.call(_DOTS[tiles.vector], own[lane], read, factor)
                    else:
                        dtype = str(own[lane].ty.dtype)
                        own[lane] = own[lane] + cast(read, dtype) * cast(factor, dtype)

        if tiles.channels <= SHORT:
            for c in range(tiles.channels):
                channel(c)
        else:
            with T.serial(0, tiles.channels) as c:
                channel(c)

    def _index(self, front: Sequence[Any], place: Sequence[Any]) -> list[Any]:
        """Return the index of a place, in front of the channel."""
        return [
            *front,
            *self._turn(place)[2 - self.tiles.own :],
            *(0 for _ in range(self.tiles.unit)),
        ]

    def _turn(self, pair: Sequence[Any]) -> Sequence[Any]:
        """Return what is of rows and columns in the order of the image's axes."""
        return pair[::-1] if self.tiles.turned else pair

    def _read(self, tile: _Sums, i: int, down: Any, tap: Any, channel: Any) -> tuple[Any, ...]:
        """Return the index of x for a row of a tile."""
        tiles = self.tiles
        row, column = tile.places[i]
        if not tiles.layout:
            return (*self._index(tile.front, tile.places[i]), channel)
        height, width = self._turn((tiles.rows.at(row, down), tiles.columns.at(column, tap)))
        at = {"N": tile.front[0], "H": height, "W": width, "C": channel}
        return tuple(at[letter] for letter in tiles.layout)


@dataclass(frozen=True)
class _Sums:
    """A tile: the places of its rows behind those in front, its first block, and its vectors."""

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
