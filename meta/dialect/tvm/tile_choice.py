"""Which tile the loops of a product or convolution with packed weights have on the CPU.

A tile is a few neighbouring rows (places of an image) by a few vectors of channels, whose sums stay
in registers (`register_tiles`). Where places are read as they are, those of an image, or rows of a
product, are one sequence, which is divided so that what is read stays in the caches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

from tvm import tirx
from tvm.target import Target
from tvm.target.codegen import llvm_get_cpu_features

from meta.op.packed import FOUR

CACHED_ROWS = 1 << 14
"""Bytes of x that stay in the first cache while all vectors of a weight go by."""
REGISTERS = {64: 20, 32: 12}
"""Vectors of sums, at most, by the bytes of a vector: others are read meanwhile, and where LLVM has
too few registers, a step takes twice as long."""
MOST_VECTORS = 8
LINE, WAYS, SETS = 64, 8, 64
"""The first cache: bytes of a line, and where one at an address may be."""
NARROW = 4
"""Columns, at most, of images of which tiles lie along the other axis, if that is longer."""
MOST_EDGES = 24
"""Loops over channels, at most, for the tiles at the edges of a row."""


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
        return (self.taps, self.stride, self.before) == (1, 1, 0) and same(self.out, self.size)

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


def same(a: Any, b: Any) -> bool:
    """Whether two extents are the same number, or the same name."""
    known = isinstance(a, int) and isinstance(b, int)
    return bool(a == b) if known else a is b


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
        # Bytes of a vector.
        self.vector = 64 if "avx512f" in llvm_get_cpu_features(target) else 32
        self._registers = -(-self.lanes * 4 // self.vector)
        self._most = REGISTERS[self.vector]
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
        return sum(s.edge for s in self.segments()) * self.columns.taps <= MOST_EDGES

    @property
    def axes(self) -> tuple[Axis, Axis]:
        """Rows and columns of an image."""
        return self.rows, self.columns

    @property
    def work(self) -> int:
        """Products, of one image where their number is not known."""
        axes = (axis.out for axis in self.axes)
        known = [e for e in (*self.outer, *axes) if isinstance(e, int)]
        return prod(known) * self.bytes // 4

    def segments(self) -> list[Segment]:
        """Return the tiles of a row."""
        found: list[Segment] = []
        for begin in range(0, self.length, self.tile.rows):
            rows = min(self.tile.rows, self.length - begin)
            corners = product((begin, begin + rows - 1), (0, self.columns.taps - 1))
            edge = not self.columns.is_plain and not all(self.columns.inside(*c) for c in corners)
            last = found[-1] if found else None
            if last is not None and not edge and not last.edge and last.rows == rows:
                found[-1] = replace(last, count=last.count + 1)
            else:
                found.append(Segment(begin, 1, rows, edge))
        return found

    def of_length(self, length: int) -> Tiles:
        """Return the same for so many places, of a number that only a call says."""
        own = copy(self)
        own.length, own.columns = length, replace(self.columns, out=length, size=length)
        own.tile = own._best(length)
        return own


@dataclass(frozen=True)
class Segment:
    """Tiles one behind the other: ``count`` of so many rows. edge: whether taps are outside."""

    begin: int
    count: int
    rows: int
    edge: bool


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
