"""Loops of convolutions of few products, and of their two gradients, on the CPU: of images whose
channels come last, depthwise ones of any size.

oneDNN lays out kernels and images anew for such a call, which takes longer than what it computes.
Microseconds of oneDNN and of these loops, for the result and the gradients of image and kernel, of
3 x 3 taps, 4 images, one thread of an AMD EPYC (Zen 4), float32, 2026-11-30:

    of each of 192 channels, 4 x 4 places       46, 59, 69      8, 8, 8
    16 to 16 channels, 16 x 16 places           121, 98, 108    48, 47, 42
    128 to 128 channels, 2 x 2 places           135, 115, 260   38, 45, 33
    256 to 256 in 16 groups, 2 x 2 places       72, 82, 128     17, 18, 15
    128 to 128 channels, 8 x 8 places           669, 667, 866   833, 664, 554

A stage that `conv.py` annotates with `DIRECT` gets the loops of this file in the place of its own;
other stages of the kernel stay. Sums of a tile, some neighbouring places of a row by some vectors
of channels, stay in registers while taps and channels go by. A vector is one of channels that are
made: each number that is read is multiplied by a vector of the kernel, which is laid out anew
before, but for the gradient of the image. Where that would take longer than the sums (`_dots`), a
vector is one of channels that are read, and its lanes are added up at last.

Taps over the edge of an image are left out: of rows by the bounds of a loop, of columns as those at
an edge have code of their own. The gradient of the image is a convolution for each remainder of a
place by the stride.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
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
from meta.op.small_conv import DTYPES, LAYOUTS, is_depthwise, is_direct

DIRECT = "meta.direct_conv"
"""The annotation: the result (`Y`, `DX` or `DW`), then strides and padding before each axis."""
Y, DX, DW = range(3)
SUMS, SUMS_OF_TAPS = 8, 12
"""Vectors of sums of a tile, which hide how long an addition takes; of the gradient of a kernel."""
HIGH, DOTS = 4, 4
"""Results of a place that have one tile of dots; how much more it takes to add up lanes."""


def annotation(result: int, axes: Sequence[Taps], groups: int) -> dict[str, Any]:
    """Return the annotation of a stage."""
    strides, before = (a.stride for a in axes), (a.before for a in axes)
    return {DIRECT: [result, groups, *strides, *before]}


def serves(
    result: int,
    dtype: str,
    image: Sequence[Any],
    kernel: Sequence[Any],
    axes: Sequence[Taps],
    groups: int,
    layouts: tuple[str, str, str],
) -> bool:
    """Whether a convolution has these loops, of an image and a kernel of these shapes."""
    if layouts != LAYOUTS or dtype not in DTYPES or any(axis.dilation > 1 for axis in axes):
        return False
    extents = [_known(image[0]), *(axis.out for axis in axes)]
    pixels = prod(extents) if all(isinstance(e, int) for e in extents) else None
    outputs, height, width, inputs = map(_known, kernel)
    kept = "O" if result == Y else "I"
    return is_direct((outputs, inputs, height, width), groups, pixels, kept)


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

    def reading(self, tap: Any) -> tuple[Any, Any]:
        """Return the first place for which a tap of a loop is inside, and behind the last."""
        low, high = -(self.start + tap), self.size - self.start - tap
        begin = tirx.max(tirx.floordiv(low + self.pace - 1, self.pace), 0)
        end = tirx.min(tirx.floordiv(high + self.pace - 1, self.pace), self.count)
        return begin, tirx.max(begin, end)

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
        if DIRECT in statement.annotations:
            stage = stage_of(sch, block)
            if stage is not None and len(stage.loads) == 2:
                numbers = [int(v) for v in statement.annotations[DIRECT]]
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


def _loop(extent: int) -> Any:
    return nullcontext(0) if extent == 1 else T.serial(0, extent)


class _Loops:
    """The loops of one stage."""

    def __init__(self, stage: Stage, numbers: list[int], target: Target) -> None:
        self.result, self.groups, *strides = numbers[:4]
        self.buffers = [*stage.loads, stage.buffer]
        self.first, self.second, self.out = map(T.buffer_proxy, self.buffers)
        shapes = [[int(e) for e in b.shape] for b in self.buffers]
        self.dtype = str(stage.buffer.dtype)
        # Of `Y` and `DX` the image that is read and the one that is made; of `DW` x and dy.
        read, made = (shapes[0], shapes[1 if self.result == DW else 2])
        outputs, *self.taps, inputs = shapes[2 if self.result == DW else 1]
        self.images, self.places = read[0], made[1:3]
        self.depthwise = is_depthwise(inputs * self.groups, outputs, self.groups)
        # Channels of a group that are read, and that are made next to each other.
        per_group = outputs // self.groups
        self.read, self.made = (inputs, per_group) if self.result == Y else (per_group, inputs)
        self.channels = made[3] if self.result != DW else outputs
        self.kept = self.channels if self.depthwise else self.made
        features = llvm_get_cpu_features(target)
        wide = (64 if "avx512f" in features else 32) * 8 // bits(self.dtype)
        self.lanes = gcd(wide, self.kept)
        axes = zip(made[1:3], read[1:3], self.taps, strides, numbers[4:], strict=True)
        self.rows, self.columns = (_lines(self.result, *axis) for axis in axes)
        self.work = 2 * self.images * outputs * inputs * prod((*self.places, *self.taps))

    def _vectors(self, most: int) -> int:
        """Return of how many vectors a tile is, at most."""
        blocks = self.kept // self.lanes
        return max(v for v in range(1, most + 1) if blocks % v == 0)

    def block(self, name: str) -> Any:
        """Return the block that computes the stage."""
        with IRBuilder() as builder, T.seq_scope():
            if self._by_dots:
                self._dots()
            elif self.result != DW:
                self._convolution()
            elif self.depthwise:
                self._gradient_of_channels()
            else:
                self._gradient()
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

    def _kernel(self) -> Callable[[Any, Any, Any], Any]:
        """Return what reads the kernel at a tap, a channel of a group that is read, and a vector of
        channels that are made; lay it out anew before where these are no neighbours.
        """
        height, width = self.taps
        if self.result == DX and not self.depthwise:
            return lambda tap, r, c: self.second[
                c // self.made * self.read + r, tap // width, tap % width, c % self.made
            ]
        shape = height * width, self.read if self.result == Y else 1, self.channels
        turned = T.buffer_proxy(T.alloc_buffer(shape, self.dtype))
        with T.serial(0, self.channels) as c:
            for p in range(height):
                with _loop(width) as q, _loop(shape[1]) as r:
                    turned[p * width + q, r, c] = self.second[c, p, q, r]
        return lambda tap, r, c: turned[tap, r, c]

    @property
    def _by_dots(self) -> bool:
        """Whether to lay a large kernel out anew takes longer than to add up lanes of results."""
        if self.result != Y or self.depthwise or self.read % self.lanes:
            return False
        return self.read * prod(self.taps) > DOTS * self.images * prod(self.places)

    def _dots(self) -> None:
        """Compute y as sums of vectors of channels that are read, whose lanes are added up."""
        (rows,), (columns,) = self.rows, self.columns
        high = max(h for h in range(1, HIGH + 1) if self.made % h == 0)
        with self._parallel(0, self.channels // high) as tile:
            outputs = [tile * high + o for o in range(high)]
            with T.serial(0, self.images) as n, T.serial(0, rows.count) as i:
                for begin, count, wide, taps in columns.parts(SUMS // high):
                    with T.serial(0, count) as j:
                        places = [begin + j * wide + k for k in range(wide)]
                        self._dots_of(outputs, (n, i), places, taps)

    def _dots_of(
        self, outputs: list[Any], at: tuple[Any, Any], places: list[Any], taps: list[int]
    ) -> None:
        """Compute a tile of these."""
        (rows,), (columns,), (n, i) = self.rows, self.columns, at
        group = 0 if self.groups == 1 else outputs[0] // self.made
        sums = [(place, o, self._vector()) for place in places for o in outputs]
        with T.serial(*rows.bounds(i)) as p:
            row = i * rows.pace + rows.start + p
            for q in taps:
                with T.serial(0, self.read // self.lanes) as block:
                    for place, o, own in sums:
                        column = place * columns.pace + columns.start + q
                        with T.vectorized(0, self.lanes) as lane:
                            r = block * self.lanes + lane
                            x = self.first[n, row, column, group * self.read + r]
                            own[lane] = own[lane] + x * self.second[o, p, q, r]
        for place, o, own in sums:
            half = self.lanes
            while half > 1:
                half //= 2
                with T.vectorized(0, half) as lane:
                    own[lane] = own[lane] + own[lane + half]
            self.out[n, i, place, o] = own[0]

    def _convolution(self) -> None:
        kernel = self._kernel()
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
        kernel: Callable[[Any, Any, Any], Any],
        at: tuple[Any, Any],
        places: list[Any],
        lines: tuple[_Line, _Line],
        taps: list[int],
        firsts: list[Any],
    ) -> None:
        """Compute a tile: the sums of some places of a row, of vectors from these channels on."""
        (n, i), (rows, columns) = at, lines
        sums = [(place, first, self._vector()) for place in places for first in firsts]
        group = 0 if self.groups == 1 else firsts[0] // self.made
        with T.serial(*rows.bounds(i)) as p:
            row, number = i * rows.pace + rows.start + p, rows.tap + p * rows.turn
            for q in taps:
                tap = number * self.taps[1] + columns.tap + q * columns.turn
                with _loop(1 if self.depthwise else self.read) as r:
                    for place, first, own in sums:
                        column = place * columns.pace + columns.start + q
                        with T.vectorized(0, self.lanes) as lane:
                            c = first + lane
                            channel = c if self.depthwise else group * self.read + r
                            factor = kernel(tap, r, c)
                            own[lane] = own[lane] + self.first[n, row, column, channel] * factor
        for place, first, own in sums:
            row, column = rows.first + i * rows.step, columns.first + place * columns.step
            with T.vectorized(0, self.lanes) as lane:
                self.out[n, row, column, first + lane] = own[lane]

    def _gradient(self) -> None:
        """Compute the gradient of the kernel: for some channels that are made and a vector of those
        that are read, sums over all places; those of an image are added to those of all.
        """
        (rows,), (columns,), (height, width) = self.rows, self.columns, self.taps
        per_group = self.read
        high = max(h for h in range(1, SUMS + 1) if per_group % h == 0)
        blocks = self.made // self.lanes
        with self._parallel(0, self.channels // high) as tile:
            firsts = [tile * high + o for o in range(high)]
            group = 0 if self.groups == 1 else tile * high // per_group
            with T.serial(0, height) as p, _loop(width) as q, _loop(blocks) as block:
                total = [self._vector() for _ in firsts]
                with T.serial(0, self.images) as n:
                    own = [self._vector() for _ in firsts]
                    with (
                        T.serial(*rows.reading(p)) as i,
                        T.serial(*columns.reading(q)) as j,
                    ):
                        row = i * rows.pace + rows.start + p
                        column = j * columns.pace + columns.start + q
                        for o, vector in zip(firsts, own, strict=True):
                            with T.vectorized(0, self.lanes) as lane:
                                c = group * self.made + block * self.lanes + lane
                                x = self.first[n, row, column, c]
                                vector[lane] = vector[lane] + x * self.second[n, i, j, o]
                    for vector, whole in zip(own, total, strict=True):
                        with T.vectorized(0, self.lanes) as lane:
                            whole[lane] = whole[lane] + vector[lane]
                for o, whole in zip(firsts, total, strict=True):
                    with T.vectorized(0, self.lanes) as lane:
                        self.out[o, p, q, block * self.lanes + lane] = whole[lane]

    def _gradient_of_channels(self) -> None:
        """Compute that of a depthwise one: sums of rows are added to those of all rows."""
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
