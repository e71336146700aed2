"""How the kernels of convolutions in groups go through images: tiles, thread blocks, registers."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from meta.runtime.gpu_properties import SHARED_MEMORY

CHUNK, WARP = 8, 32
ROWS = 16
"""Of a matrix of tensor cores."""
REGISTERS = 65536
"""Of a multiprocessor."""
FEWEST_REGISTERS = 384
"""Threads of a block that have 168 registers each, which is enough."""
PROCESSOR_MEMORY = 220 << 10
"""Bytes of shared memory of a multiprocessor."""
MOST_WEIGHTS = 26
"""Weights that a thread has in registers, in chunks."""
MOST_SUMS = 24
"""Matrices of sums that a warp has in registers."""
MOST_THREADS, MOST_BLOCKS = 512, 6
OTHERS = 68
"""Registers of a thread besides."""
ACROSS = 64
"""Bytes of a pixel that a thread block reads, at least if it can."""
PRODUCT, ACCESS, ROW = 1.0, 4.0, 24.0
"""Cycles of a multiprocessor for a product, a warp's access of shared memory, and what a warp does
besides for a row of matrices. These and those below are fitted to times of plans on an H100, and
are 9 % off.
"""
COPY, BYTES = 30.0, 12.0
"""Cycles of a warp's copies, of a chunk by each thread; bytes of memory in a cycle."""
OVERLAP = 0.2
"""How much of the shorter one of work and copies shows."""
ROUND, ALONE = 600.0, 900.0
"""Cycles of a tile, whatever it has; those to await copies, if there is one stage."""


BEST = 5
"""Plans of which the first is taken; the others are worth measuring."""


@dataclass(frozen=True, slots=True)
class Windows:
    """What the windows of a convolution, or of a gradient, read of images.

    read: channels of a group in what they read; given: on the other side. base: extents of what is
    cut into tiles, in which a pixel has a window. step: from one window to the next. origin: where
    the first one begins; span: pixels that it covers. steps: of its sum, each of four chunks.
    """

    images: int
    groups: int
    read: int
    given: int
    base: tuple[int, int]
    step: tuple[int, int]
    origin: tuple[int, int]
    span: tuple[int, int]
    steps: int
    over: int = 1


@dataclass(frozen=True, slots=True)
class Plan:
    """Tiles and thread blocks. groups: of a thread block; parts, shares: warps of a group, by
    results and by pixels. stages: tiles in shared memory at a time. blocks: of a multiprocessor.
    grid: thread blocks along the tiles and the groups.
    """

    tile: tuple[int, int]
    patch: tuple[int, int]
    groups: int
    parts: int
    shares: int
    stages: int
    blocks: int
    tiles: tuple[int, int]
    grid: tuple[int, int]

    @property
    def threads(self) -> int:
        """Of a thread block."""
        return WARP * self.groups * self.parts * self.shares


def equal_shares(results: int, most: int) -> int:
    """Return in how many equal parts of up to ``most`` so many matrices fall."""
    return next(n for n in range(1, results + 1) if results % n == 0 and results // n <= most)


def _extents(extent: int, most: int) -> list[int]:
    """Return how long tiles of an axis may be: whole shares of it, and powers of 2."""
    shares = {-(-extent // n) for n in range(1, extent + 1)}
    return sorted(n for n in shares | {4, 8, 16} if n <= most and n <= extent + 7)


def _tiles(windows: Windows, whole: bool) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
    """Yield tiles and what they read; ``whole``: tiles are to fill matrices."""
    for high in _extents(windows.base[0], 32):
        for wide in _extents(windows.base[1], 64):
            if high * wide > 256 or (whole and high * wide % ROWS):
                continue
            by_axis = zip((high, wide), windows.step, windows.span, strict=True)
            patch = [(n - 1) * step + span for n, step, span in by_axis]
            yield (high, wide), (patch[0], patch[1])


@dataclass(frozen=True, slots=True)
class Warps:
    """What a warp of a kernel has and does.

    parts: warps that share what a group sums up for the same pixels. held: registers of a thread
    for weights or sums. pitches: chunks of a pixel in shared memory, as read, and on the other side
    (0: that is not kept there). products: for a row of matrices. accesses: of shared memory for
    one.
    """

    parts: int
    held: int
    pitches: tuple[int, int]
    products: int
    accesses: int


@lru_cache(maxsize=512)
def best(windows: Windows, warps: Warps, processors: int) -> tuple[Plan, ...]:
    """Return the `BEST` plans that should take the least time, in order; none if none fits."""
    found = heapq.nsmallest(BEST, plans(windows, warps, processors), key=lambda one: one[0])
    return tuple(plan for _, plan in found)


def plans(windows: Windows, warps: Warps, processors: int) -> Iterator[tuple[float, Plan]]:
    """Yield plans, and the cycles that they should take."""
    sizes = sorted({n for n in (1, 2, 4, 8) if n < windows.groups} | {windows.groups})
    enough = [n for n in sizes if n * windows.read * 2 >= ACROSS] or sizes[-1:]
    alone = warps.pitches[1] == 0
    for groups in enough[:2]:
        for tile, patch in _tiles(windows, whole=not alone):
            for shares in (1, 2, 4) if alone else (1,):
                found = _plan(windows, warps, processors, groups, tile, patch, shares)
                if found is not None:
                    yield found


def _plan(
    windows: Windows, warps: Warps, processors: int, groups: int, tile: tuple[int, int],
    patch: tuple[int, int], shares: int,
) -> tuple[float, Plan] | None:  # fmt: skip
    """Return a plan and its cycles, or None if it does not fit."""
    pixels, reads = tile[0] * tile[1], patch[0] * patch[1]
    memory = 16 * groups * (reads * warps.pitches[0] + pixels * warps.pitches[1])
    stages = 2 if 2 * memory <= SHARED_MEMORY else 1
    each = groups * warps.parts * shares
    threads = WARP * each
    if memory > SHARED_MEMORY or threads > MOST_THREADS or (shares > 1 and threads > 256):
        return None
    fits = max(REGISTERS // ((warps.held + OTHERS) * threads), int(threads <= FEWEST_REGISTERS))
    fits = min(fits, PROCESSOR_MEMORY // (stages * memory + 1024), MOST_BLOCKS)
    if fits < 1:
        return None
    high, wide = (-(-n // t) for n, t in zip(windows.base, tile, strict=True))
    sets, items = -(-windows.groups // groups), windows.images * high * wide
    along = max(1, min(items, fits * processors // sets))
    rounds = -(-items // along)
    rows = -(-pixels // ROWS // shares) * each
    filled = groups * (reads * windows.read + (pixels * windows.given if warps.pitches[1] else 0))
    work = rows * (warps.products * PRODUCT + warps.accesses * ACCESS + ROW)
    work += filled / CHUNK / WARP * COPY
    moved = 2 * groups * (reads * windows.read + pixels * windows.over * windows.given) / BYTES
    resident = -(-along * sets // processors)  # thread blocks of a multiprocessor
    each_round = resident * (max(work, moved) + OVERLAP * min(work, moved)) + ROUND
    cost = rounds * (each_round + (ALONE / fits if stages == 1 else 0))
    along = -(-items // rounds)
    plan = Plan(tile, patch, groups, warps.parts, shares, stages, fits, (high, wide), (along, sets))
    return cost, plan
