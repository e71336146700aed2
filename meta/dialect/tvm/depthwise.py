"""Loops of depthwise convolutions and of their two gradients on the CPU: of images whose channels
come last, each channel with a kernel of its own.

oneDNN lays out kernels and images anew for such a call, which costs more than the few products of a
small image: of 4 x 4 places and 192 channels, 4 images, it takes 46 us, and 59 and 69 for the
gradients, these loops 7.6 (one thread of an AMD EPYC, Zen 4, float32); of 14 x 14 places and 576
channels, 16 images, 594, 735 and 1024 us beside 612, 543 and 570.

A stage that `conv.py` annotates with `DEPTHWISE` gets the loops of this file in the place of its
own; other stages of the kernel stay. Taps and channels of the kernel change places first, so that a
vector is one of neighbouring channels. The sums of a tile, some neighbouring places of a row by
some vectors, stay in registers while taps go by. Taps over the edge of an image are left out: of
rows by the bounds of a loop, of columns as those at an edge have code of their own. The gradient of
the image is such a convolution for each remainder of a place by the stride.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

from tvm import s_tir, tirx
from tvm.ir import Range
from tvm.script.ir_builder import IRBuilder
from tvm.script.ir_builder import tirx as T
from tvm.target import Target
from tvm.target.codegen import llvm_get_cpu_features

from meta.base.dtype import bits
from meta.dialect.tvm.lower import with_root
from meta.dialect.tvm.stages import PARALLEL_WORK, Stage, blocks_of, stage_of
from meta.op.core.window import Taps

DEPTHWISE = "meta.depthwise"
"""The annotation: the result (`Y`, `DX` or `DW`), then strides and padding before each axis."""
Y, DX, DW = range(3)
LEAST = 8
"""Channels of which there has to be a multiple."""
SUMS, SUMS_OF_TAPS = 8, 12
"""Vectors of sums of a tile, which hide how long an addition takes; of the gradient of a kernel."""
LAYOUTS = "NHWC", "OHWI", "NHWC"


def annotation(result: int, axes: Sequence[Taps]) -> dict[str, Any]:
    """Return the annotation of a stage."""
    return {DEPTHWISE: [result, *(a.stride for a in axes), *(a.before for a in axes)]}


def serves(
    dtype: str,
    image: Sequence[Any],
    kernel: Sequence[Any],
    axes: Sequence[Taps],
    groups: int,
    layouts: tuple[str, str, str],
) -> bool:
    """Whether a convolution has these loops, of an image and a kernel of these shapes."""
    if layouts != LAYOUTS or dtype not in ("float32", "float64"):
        return False
    extents = list(map(_known, (*image, *kernel)))
    if not all(isinstance(e, int) and e > 0 for e in extents):
        return False
    channels, outputs, inputs = extents[3], extents[4], extents[7]
    if not groups == channels == outputs or inputs != 1 or channels % LEAST:
        return False
    return all(axis.dilation == 1 for axis in axes)


def _known(extent: Any) -> Any:
    return int(extent) if isinstance(extent, tirx.IntImm) else extent


@dataclass(frozen=True)
class _Line:
    """Places along an axis of what is computed, and what each reads: place ``first + i * step``,
    for i below ``count``, reads ``i * pace + start + t`` of ``size`` ones for tap t of ``taps``,
    which is number ``tap + t * turn`` of the kernel.
    """

    count: int
    size: int
    taps: int
    pace: int
    start: int
    first: int = 0
    step: int = 1
    tap: int = 0
    turn: int = 1

    def inside(self, i: int) -> list[int]:
        """Return the taps that are inside for a place."""
        return [t for t in range(self.taps) if 0 <= i * self.pace + self.start + t < self.size]

    def bounds(self, i: Any) -> tuple[Any, Any]:
        """Return the first of these taps, and behind the last, for a place that a loop says."""
        at = i * self.pace + self.start
        if all(len(self.inside(i)) == self.taps for i in range(self.count)):
            return 0, self.taps
        end = tirx.max(tirx.min(tirx.const(self.taps, "int32"), self.size - at), 0)
        return tirx.max(tirx.const(0, "int32"), -at), end

    def parts(self, width: int) -> Iterator[tuple[int, int, int, list[int]]]:
        """Iterate over neighbouring places: the first, how many tiles, how wide, and their taps."""
        i = 0
        while i < self.count:
            taps, end = self.inside(i), i + 1
            while end < self.count and self.inside(end) == taps:
                end += 1
            tiles, left = divmod(end - i, width)
            if tiles:
                yield i, tiles, width, taps
            if left:
                yield i + tiles * width, 1, left, taps
            i = end


def _lines(result: int, out: int, read: int, taps: int, stride: int, before: int) -> list[_Line]:
    """Return the lines of an axis: one of y, for each remainder by the stride one of dx."""
    if result != DX:
        return [_Line(out, read, taps, stride, -before)]
    found = []
    for rest in range(stride):
        first, own = (rest - before) % stride, len(range(rest, taps, stride))
        start, count = (first + before) // stride - own + 1, len(range(first, out, stride))
        turned = rest + stride * (own - 1), -stride
        found.append(_Line(count, read, own, 1, start, first, stride, *turned))
    return [line for line in found if line.count]


def with_loops(sch: s_tir.Schedule, target: Target) -> tirx.PrimFunc | None:
    """Return the function of a schedule in which stages with the annotation have the loops of this
    file; None if there are none.
    """
    found: dict[str, Any] = {}
    for block in blocks_of(sch):
        statement = sch.get(block)
        if DEPTHWISE in statement.annotations:
            stage = stage_of(sch, block)
            if stage is not None and len(stage.loads) == 2:
                numbers = [int(v) for v in statement.annotations[DEPTHWISE]]
                name = str(statement.name_hint)
                found[name] = _Loops(stage, numbers, target).block(name)
    if not found:
        return None
    function = sch.mod["main"]
    root = function.body.block
    nests = root.body.seq if isinstance(root.body, tirx.SeqStmt) else [root.body]
    body = [found.get(_block_name(nest), nest) for nest in nests]
    whole = body[0] if len(body) == 1 else tirx.SeqStmt(body)
    return with_root(function, whole, root.alloc_buffers)


def _block_name(nest: Any) -> str:
    """Return the name of the block in a nest of loops."""
    while isinstance(nest, tirx.For):
        nest = nest.body
    return str(nest.block.name_hint) if isinstance(nest, s_tir.SBlockRealize) else ""


class _Loops:
    """The loops of one stage."""

    def __init__(self, stage: Stage, numbers: list[int], target: Target) -> None:
        self.result, *strides = numbers[:3]
        self.buffers = [*stage.loads, stage.buffer]
        self.first, self.second, self.out = map(T.buffer_proxy, self.buffers)
        shapes = [[int(e) for e in b.shape] for b in self.buffers]
        self.dtype = str(stage.buffer.dtype)
        features = llvm_get_cpu_features(target)
        wide = (64 if "avx512f" in features else 32) * 8 // bits(self.dtype)
        self.images, *_, self.channels = shapes[0]
        self.lanes = gcd(wide, self.channels)
        # Of `Y` and `DX` the image that is read and the one that is made; of `DW` x and dy.
        read, made = (shapes[0], shapes[1 if self.result == DW else 2])
        self.taps = shapes[2 if self.result == DW else 1][1:3]
        axes = zip(made[1:3], read[1:3], self.taps, strides, numbers[3:], strict=True)
        self.rows, self.columns = (_lines(self.result, *axis) for axis in axes)
        self.work = 2 * self.images * self.channels * prod((*made[1:3], *self.taps))

    def _vectors(self, most: int) -> int:
        """Return of how many vectors a tile is, at most."""
        blocks = self.channels // self.lanes
        return max(v for v in range(1, most + 1) if blocks % v == 0)

    def block(self, name: str) -> Any:
        """Return the block that computes the stage."""
        with IRBuilder() as builder, T.seq_scope():
            (self._gradient if self.result == DW else self._convolution)()
        body = builder.get().body  # without the frame, a pragma that LLVM does not know
        *read, written = (
            tirx.BufferRegion(b, [Range(0, e) for e in b.shape]) for b in self.buffers
        )
        block = s_tir.SBlock([], read, [written], name, body)
        return s_tir.SBlockRealize([], True, block)

    @property
    def _parallel(self) -> Any:
        return T.parallel if self.work >= PARALLEL_WORK else T.serial

    def _vector(self) -> Any:
        own = T.buffer_proxy(T.alloc_buffer((self.lanes,), self.dtype))
        with T.vectorized(0, self.lanes) as lane:
            own[lane] = tirx.const(0, self.dtype)
        return own

    def _turned(self) -> Any:
        """Return the kernel with its channels last, as [taps, channels]."""
        height, width = self.taps
        turned = T.buffer_proxy(T.alloc_buffer((height * width, self.channels), self.dtype))
        with T.serial(0, self.channels) as c:
            for p in range(height):
                for q in range(width):
                    turned[p * width + q, c] = self.second[c, p, q, 0]
        return turned

    def _convolution(self) -> None:
        kernel = self._turned()
        for rows in self.rows:
            with self._parallel(0, self.images * rows.count) as number:
                at = number // rows.count, number % rows.count
                for columns in self.columns:
                    for begin, count, wide, taps in columns.parts(SUMS):
                        vectors = self._vectors(max(1, SUMS // wide))
                        chunk = vectors * self.lanes
                        with T.serial(0, count) as j, T.serial(0, self.channels // chunk) as tile:
                            places = [begin + j * wide + k for k in range(wide)]
                            firsts = [tile * chunk + v * self.lanes for v in range(vectors)]
                            self._sums(kernel, at, places, (rows, columns), taps, firsts)

    def _sums(
        self,
        kernel: Any,
        at: tuple[Any, Any],
        places: list[Any],
        lines: tuple[_Line, _Line],
        taps: list[int],
        firsts: list[Any],
    ) -> None:
        """Compute a tile: the sums of some places of a row, of vectors from these channels on."""
        (n, i), (rows, columns) = at, lines
        sums = [(place, first, self._vector()) for place in places for first in firsts]
        with T.serial(*rows.bounds(i)) as p:
            row, number = i * rows.pace + rows.start + p, rows.tap + p * rows.turn
            for q in taps:
                tap = number * self.taps[1] + columns.tap + q * columns.turn
                for place, first, own in sums:
                    column = place * columns.pace + columns.start + q
                    with T.vectorized(0, self.lanes) as lane:
                        c = first + lane
                        own[lane] = own[lane] + self.first[n, row, column, c] * kernel[tap, c]
        for place, first, own in sums:
            row, column = rows.first + i * rows.step, columns.first + place * columns.step
            with T.vectorized(0, self.lanes) as lane:
                self.out[n, row, column, first + lane] = own[lane]

    def _gradient(self) -> None:
        """Compute the gradient of the kernel: sums of rows are added to those of all rows."""
        (rows,), (columns,), (height, width) = self.rows, self.columns, self.taps
        vectors = self._vectors(max(1, SUMS_OF_TAPS // width))
        chunk = vectors * self.lanes
        sums = T.buffer_proxy(T.alloc_buffer((height * width, self.channels), self.dtype))
        with self._parallel(0, self.channels // chunk) as tile:
            firsts = [tile * chunk + v * self.lanes for v in range(vectors)]
            with T.serial(0, height * width) as tap:
                for first in firsts:
                    with T.vectorized(0, self.lanes) as lane:
                        sums[tap, first + lane] = tirx.const(0, self.dtype)
            with T.serial(0, self.images * rows.count) as number:
                n, i = number // rows.count, number % rows.count
                with T.serial(*rows.bounds(i)) as p:
                    self._row(sums, (n, i, p), (rows, columns), firsts)
            with T.serial(0, chunk) as c:
                for p in range(height):
                    for q in range(width):
                        self.out[tile * chunk + c, p, q, 0] = sums[p * width + q, tile * chunk + c]

    def _row(
        self, sums: Any, at: tuple[Any, Any, Any], lines: tuple[_Line, _Line], firsts: list[Any]
    ) -> None:
        """Add what a row of dy and the one of x under it give for the taps of a row."""
        (n, i, p), (rows, columns), width = at, lines, self.taps[1]
        row = i * rows.pace + rows.start + p
        own = [(q, first, self._vector()) for q in range(width) for first in firsts]
        for begin, count, _, taps in columns.parts(1):
            with T.serial(0, count) as j:
                for q, first, total in own:
                    if q in taps:
                        column = (begin + j) * columns.pace + columns.start + q
                        with T.vectorized(0, self.lanes) as lane:
                            c = first + lane
                            factor = self.second[n, i, begin + j, c]
                            total[lane] = total[lane] + self.first[n, row, column, c] * factor
        for q, first, total in own:
            with T.vectorized(0, self.lanes) as lane:
                c = first + lane
                sums[p * width + q, c] = sums[p * width + q, c] + total[lane]
