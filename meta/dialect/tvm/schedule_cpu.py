"""Our default schedule of a PrimFunc on the CPU.

In order: inline cheap producers; let float reductions over the contiguous axis keep a vector of
partial results (LLVM may not reorder float additions itself); bring stages that share their
outer axes (softmax, layer norm) under one loop over rows; run big loops on the thread pool.
Products and convolutions with packed weights have loops of their own (`register_tiles`), and
small and depthwise convolutions (`direct_conv`).
Innermost loops stay plain contiguous loops, which LLVM vectorises, tails included.

Every step is a checked schedule primitive, so a step that does not apply is refused by TVM and
leaves the function as it was: correct, only slower. To add a rule, add a function of the
schedule and call it in `schedule`.

Knobs (`ask`): ``parallel``, whether loops run on the thread pool, where it is a close decision;
``chunks``, the pieces of a parallel loop; ``lanes``, the partial results of a sum; ``tile``, the
side of the squares in which a transpose goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, tirx
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

from meta.base.dtype import is_float
from meta.dialect.core.knobs import Knobs, ask, deciding, forget
from meta.dialect.tvm import direct_conv, register_tiles
from meta.dialect.tvm.access import (
    TILES,
    along_last,
    contiguous,
    flat_axes,
    is_flat,
    is_float32,
    same_address,
    transposed,
    vector_width,
)
from meta.dialect.tvm.configs import knobs_of
from meta.dialect.tvm.lower import element_aligned, no_alias
from meta.dialect.tvm.stages import (
    PARALLEL_WORK,
    REDUCE,
    SPATIAL,
    Stage,
    axes_of_loops,
    blocks_of,
    inline,
    stage_of,
)

DOUBTFUL = PARALLEL_WORK >> 4, PARALLEL_WORK << 6
"""Between these the other decision may be the better one."""
CHUNKS = 64
"""Pieces into which a big flat loop is cut: a multiple of most core counts."""
PIECES = 16, 256
"""Other numbers of them."""
LANE_BYTES = 256
"""Size of the vector of partial results: four 512-bit registers hide the latency of an add."""
FOLDS = (16, 4)
"""Widths to which a vector of partial results is folded, before those are added one by one."""
FEW = 4
"""Rows from which a loop over rows is worth more than parallel loops inside of each."""
MANY = 1 << 10
"""Elements from which a sum keeps partial results whatever the extent: one number to which all are
added, one by one, is off by more and more."""
LANES = 16
"""Width of the vectors of a loop that writes in place: one 512-bit or two 256-bit registers."""
SHORT = 64
"""Elements of a row whose loops LLVM unrolls."""
COLUMNS = 64
"""Least columns of one chunk of a reduction over rows: whole cache lines, and neighbours."""


@dataclass(slots=True)
class Piece:
    """A block on its way through the schedule.

    ``rows`` are the extents of the outer loops, in which it may run under a loop shared with
    other pieces; ``work`` is its cost in arithmetic operations. ``inner`` is the position among
    its axes of the spatial one to keep innermost, where a reduction is not. ``stage`` is None
    for a part of a reduction and for a block of another form. ``lanes``: the width of the vectors
    in which such a part may go, 0 if it may not.
    """

    block: Any
    rows: list[Any]
    work: int = 0
    stage: Stage | None = None
    inner: int | None = None
    lanes: int = 0


def schedule(function: tirx.PrimFunc, target: Target, knobs: Knobs | None = None) -> tirx.PrimFunc:
    """Return ``function`` scheduled for a CPU; what it computes is unchanged.

    ``knobs``: in the place of those of the function's configuration.
    """
    with deciding(knobs or knobs_of(function)):
        try:
            return element_aligned(_schedule(function, target))
        except tvm.error.InternalError:
            # A fault in TVM, such as its rfactor had with blocks that are in no loop. The
            # function itself is right, so it runs as it is.
            forget()
            return element_aligned(function)


def _schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    sch = s_tir.Schedule(function, error_render_level="none")
    by_hand = direct_conv.with_loops(sch, target)
    if by_hand is not None:
        sch = s_tir.Schedule(by_hand, error_render_level="none")
    in_place = not no_alias(function)
    inline(sch, function, register_tiles.WINDOW)
    tiled = register_tiles.scheduled(sch, function, target)
    if tiled is not None:
        return tiled
    stages = [(block, stage_of(sch, block)) for block in blocks_of(sch)]
    if any(stage is not None and stage.volume == 0 for _, stage in stages):
        for block, stage in stages:  # initial values only: TVM divides by the extents of loops
            _alone(sch, Piece(block, [], 0, stage))
        return sch.mod["main"]
    for block, _ in stages:
        if not sch.get_loops(block):
            sch.add_unit_loop(block)  # rfactor fails in a function with a block that has no loop
    pieces: list[Piece] = []
    for block, stage in stages:
        if stage is None:
            pieces.append(Piece(block, []))
        else:
            pieces.extend(_partial_results(sch, stage))
    if not in_place and len(pieces) > 1:
        grouped = _share_rows(sch, pieces)
        if grouped is not None:
            return grouped.mod["main"]
    joined = None if not in_place else _single_sweep(sch, [stage for _, stage in stages])
    if joined is not None:
        sch, loop = joined
        if _is_big(sum(piece.work for piece in pieces)):
            _parallel(sch, pieces[-1].block, [loop])
        return sch.mod["main"]
    for piece in pieces:
        _alone(sch, piece, in_place)
    return sch.mod["main"]


def _is_big(work: int) -> bool:
    """Whether a loop of so many operations runs on the thread pool."""
    big = work >= PARALLEL_WORK
    least, most = DOUBTFUL
    return bool(ask("parallel", int(big), (0, 1))) if least <= work < most else big


# Reductions ---------------------------------------------------------------------------------


def _partial_results(sch: s_tir.Schedule, stage: Stage) -> list[Piece]:
    """Cut a float reduction over the contiguous axis into lanes, each reduced on its own.

    A big reduction to few elements is first cut into chunks, for the thread pool.
    """
    n = len(stage.spatial)
    whole = Piece(stage.block, stage.rows, stage.work, stage)
    if not stage.reduce:
        return [whole]
    if n and stage.spatial[-1] != 1 and contiguous(stage, stage.axes[n - 1]):
        whole.inner = n - 1
        return [whole]
    if None in stage.reduce or not contiguous(stage, stage.axes[-1]):
        return [whole]
    pieces = [whole]
    loop = sch.fuse(*sch.get_loops(stage.block)[n:])
    extent = math.prod(e for e in stage.reduce if e is not None)
    few = stage.static and math.prod(e for e in stage.spatial if e is not None) < FEW
    if few and extent % CHUNKS == 0 and _is_big(stage.work):
        extent //= CHUNKS
        chunk, _ = sch.split(loop, [CHUNKS, extent])
        try:
            part = sch.rfactor(chunk, n)
        except ScheduleError:
            return pieces
        pieces.insert(0, Piece(part, [*stage.spatial, CHUNKS], stage.work))
        loop = sch.get_loops(part)[-1]
    if not is_float(str(stage.buffer.dtype)):
        return pieces  # LLVM vectorises sums of integers itself
    wish = LANE_BYTES // max(4, stage.buffer.dtype.bits // 8)
    wish = ask("lanes", wish, (wish // 4, wish // 2, 2 * wish))
    lanes = _lanes(extent, wish)
    if lanes is None and few and extent >= MANY:
        lanes = wish
    if lanes is None:
        return pieces
    whole, *others = pieces
    parts: list[Piece] = []
    for width in (lanes, *(w for w in FOLDS if lanes % w == 0 and lanes > w)):
        _, lane = sch.split(loop, [None, width])
        try:
            part = sch.rfactor(lane, len(whole.rows))
        except ScheduleError:
            break
        vector = width if is_float32(stage) and width & (width - 1) == 0 else 0
        parts.append(Piece(part, whole.rows, whole.work, inner=0, lanes=min(vector, LANES)))
        whole.work = whole.work * width // extent
        extent, loop = width, sch.get_loops(whole.block)[-1]
    return [*parts, whole, *others]


def _lanes(extent: int, wish: int) -> int | None:
    """The divisor of ``extent`` that makes the best vector of about ``wish`` partial results.

    Where rows are shared only divisors will do: `compute_at` in TVM 0.27 forgets the guard of a
    loop that is split unevenly and then reads out of bounds.
    """
    divisors = [d for d in range(wish // 4, 2 * wish + 1) if extent % d == 0 and extent >= 4 * d]
    few = next((d for d in (16, 8, 4) if extent % d == 0 and extent >= max(2 * d, 12)), None)
    return max(divisors, key=lambda d: (min(d, wish) + wish * (d % 16 == 0), -d), default=few)


def _reduction_order(
    sch: s_tir.Schedule, piece: Piece, shared: int = 0
) -> tuple[list[Any], list[Any]]:
    """Reorder a block's own loops to spatial, reduce, inner; return the first two groups.

    ``shared`` outer loops are not its own.
    """
    statement = sch.get(piece.block)
    groups: dict[str, list[Any]] = {"spatial": [], "reduce": [], "inner": []}
    for loop, bound in axes_of_loops(sch, piece.block)[shared:]:
        kinds = {statement.iter_vars[i].iter_type for i in bound}
        if kinds == {REDUCE}:
            groups["reduce"].append(loop)
        elif kinds <= {SPATIAL}:
            groups["inner" if bound == [piece.inner] else "spatial"].append(loop)
        else:
            return [], []
    if groups["reduce"]:
        if groups["inner"] and not shared and not groups["spatial"] and _is_big(piece.work):
            for cut in [_cut(sch, loop, least=COLUMNS) for loop in groups["inner"]]:
                if cut is not None:
                    groups["spatial"], groups["inner"] = [cut[0]], [cut[1]]
        sch.reorder(*groups["spatial"], *groups["reduce"], *groups["inner"])
    return groups["spatial"], groups["reduce"]


def _initialise_before(sch: s_tir.Schedule, piece: Piece, loops: list[Any]) -> None:
    """Take the initial store out of the reduction ``loops``, which may have no iteration.

    It comes last: the two blocks that it makes are no longer one reduction to the other checks.
    """
    if loops and sch.get(piece.block).init is not None:
        sch.decompose_reduction(piece.block, loops[0])


# Stages that share rows -----------------------------------------------------------------------


def _share_rows(sch: s_tir.Schedule, pieces: list[Piece]) -> s_tir.Schedule | None:
    """Return a schedule with all pieces under one loop over their common rows, if there is one."""
    # The axis that a whole reduction keeps innermost, to be vectorised, is no row.
    inner = [p.inner for p in pieces if p.stage is not None and p.inner is not None]
    common = min([_common_rows(pieces), *inner])
    extents = pieces[-1].rows[:common]
    # Of a number of rows that a call says, there may be many.
    if common == 0 or math.prod(e if isinstance(e, int) else FEW for e in extents) < FEW:
        return None
    for bring_together, linked, rest in (
        (_under_last, sch.get_consumers, pieces[:-1]),
        (_under_first, sch.get_producers, pieces[1:]),
    ):
        if not all(len(linked(piece.block)) for piece in rest):
            continue  # TVM would run all of an unrelated piece (of a split, say) for every row
        trial = sch.copy()
        try:
            row = bring_together(trial, pieces, common)
            reductions = [_reduction_order(trial, piece, shared=1)[1] for piece in pieces]
            if _is_big(sum(piece.work for piece in pieces)):
                trial.parallel(row)
            for piece, loops in zip(pieces, reductions, strict=True):
                _vectorize_short(trial, piece)
                _initialise_before(trial, piece, loops)
        except (ScheduleError, ValueError):  # the latter of regions that TVM cannot take apart
            continue
        return trial
    return None


def _vectorize_short(sch: s_tir.Schedule, piece: Piece) -> None:
    """Make the innermost loop of a short row one of vectors: LLVM would unroll it before it sees
    that, and then computes number by number.
    """
    loop = sch.get_loops(piece.block)[-1]
    extent = sch.get(loop).extent
    if not isinstance(extent, tirx.IntImm) or not 1 < extent.value <= SHORT:
        return
    if piece.stage is None:
        lanes = piece.lanes
    else:
        stage = piece.stage
        lanes = LANES if not stage.reduce and is_float32(stage) and along_last(stage, LANES) else 0
    if lanes and extent.value % lanes == 0:
        sch.vectorize(loop if extent.value == lanes else sch.split(loop, [None, lanes])[1])


def _under_last(sch: s_tir.Schedule, pieces: list[Piece], common: int) -> Any:
    row = sch.fuse(*sch.get_loops(pieces[-1].block)[:common])
    for piece in reversed(pieces[:-1]):
        sch.compute_at(piece.block, row)
    return row


def _under_first(sch: s_tir.Schedule, pieces: list[Piece], common: int) -> Any:
    """As `_under_last`, for functions in which earlier pieces are outputs, too."""
    row = sch.fuse(*sch.get_loops(pieces[0].block)[:common])
    for piece in pieces[1:]:
        sch.reverse_compute_at(piece.block, row)
    return row


def _is_same(a: Any, b: Any) -> bool:
    """Whether two extents are equal, as numbers or as names."""
    if isinstance(a, int) or isinstance(b, int):
        return bool(isinstance(a, int) and isinstance(b, int) and a == b)
    return bool(a.same_as(b))


def _common_rows(pieces: list[Piece]) -> int:
    """How many outer axes all pieces have in common, such that rows do not depend on others."""
    common = min(len(piece.rows) for piece in pieces)
    written = {piece.stage.buffer for piece in pieces if piece.stage is not None}
    for piece in pieces:
        limit = 0
        while limit < common:
            if not _is_same(piece.rows[limit], pieces[0].rows[limit]):
                break
            limit += 1
        common = limit
        if piece.stage is None:
            continue
        for buffer in written & piece.stage.loads.keys():
            for indices in piece.stage.loads[buffer]:
                same = 0
                for index, axis in zip(indices, piece.stage.axes, strict=False):
                    if not index.same_as(axis):
                        break
                    same += 1
                common = min(common, same)
    if all(len(p.rows) == common and p.stage and not p.stage.reduce for p in pieces):
        common -= 1  # elementwise throughout: leave the innermost loop to be vectorised
    return max(common, 0)


# Updates in place: one pass over memory for sgd's velocity and parameter, say ------------------


def _single_sweep(
    sch: s_tir.Schedule, stages: Sequence[Stage | None]
) -> tuple[s_tir.Schedule, Any] | None:
    """Return a schedule in which all stages share one outer loop, and that loop; None if they may
    not.

    They may if they have one shape and every element depends on those at its own place only: what
    is overwritten is then read by nobody else. Each also has to read what another one computes:
    TVM would run all of an unrelated stage, and of what reads it, for every element.

    LLVM finds that the buffers overlap and would leave the loop scalar, so each stage is a loop
    over the lanes of a vector of its own. TVM 0.27 leaves a buffer that is allocated inside of a
    vectorised loop as large as one lane needs it: what one stage hands to the next has to lie
    outside of the lanes.
    """
    found = [stage for stage in stages if stage is not None]
    if not found or len(found) < len(stages):
        return None
    first, *others = found
    for stage in found:
        if not stage.static or stage.reduce or stage.spatial != first.spatial:
            return None
        if not all(
            same_address(at, stage.axes) for places in stage.loads.values() for at in places
        ):
            return None
    computed = {stage.buffer for stage in found}
    if any(not computed & stage.loads.keys() for stage in others):
        return None
    width = vector_width(first, LANES) if all(map(is_float32, found)) else None
    trial = sch.copy()
    loops = []
    try:
        for stage in found:
            loop = trial.fuse(*trial.get_loops(stage.block))
            if width is not None:
                loop, lanes = trial.split(loop, [None, width])
                trial.vectorize(lanes)
            loops.append(loop)
        return trial, trial.merge(*loops) if others else loops[0]
    except ScheduleError:
        return None


# Stages on their own --------------------------------------------------------------------------


def _alone(sch: s_tir.Schedule, piece: Piece, in_place: bool = False) -> None:
    kinds = {axis.iter_type for axis in sch.get(piece.block).iter_vars}
    if not kinds <= {SPATIAL, REDUCE}:
        return  # loops built by hand
    try:
        reduction: list[Any] = []
        if REDUCE in kinds:
            outer, reduction = _reduction_order(sch, piece)
        elif piece.stage is not None and piece.stage.volume > 0:
            outer = _injective(sch, piece.stage, in_place)
        else:
            return
        if outer and _is_big(piece.work):
            _parallel(sch, piece.block, outer)
        _initialise_before(sch, piece, reduction)
    except ScheduleError:
        return  # TVM refuses a step before it changes anything, so what was done stands


def _injective(sch: s_tir.Schedule, stage: Stage, in_place: bool) -> list[Any]:
    """Arrange the loops of an elementwise stage; return those that may run in parallel."""
    loops: list[Any] = sch.get_loops(stage.block)
    if len(loops) < 2:
        return loops
    if is_flat(stage):
        return [sch.fuse(*loops)]
    if in_place and is_float32(stage) and along_last(stage, LANES):
        _, lanes = sch.split(loops[-1], [None, LANES])
        sch.vectorize(lanes)
        return loops[:-1]
    flat = flat_axes(stage)
    if flat > 1:
        plane = sch.fuse(*loops[-flat:])
        if in_place and is_float32(stage) and _elements(stage.spatial[-flat:]) % LANES == 0:
            # LLVM, to which all memory may be one, would divide the number of a plane anew for each
            # element, one by one.
            _, lanes = sch.split(plane, [None, LANES])
            sch.vectorize(lanes)
        return loops[:-flat]
    across = transposed(stage)
    if across is not None and None not in (stage.spatial[across[0]], stage.spatial[-1]):
        axis, tile = across
        extents = stage.spatial[axis], stage.spatial[-1]
        tile = ask("tile", tile, [t for t in TILES if all((e or 1) % t == 0 for e in extents)])
        others = [loop for i, loop in enumerate(loops[:-1]) if i != axis]
        row, row_in = sch.split(loops[axis], [None, tile])
        column, column_in = sch.split(loops[-1], [None, tile])
        sch.reorder(*others, row, column, column_in, row_in)  # read along the lines, not write
        return [*others, row]
    if is_float32(stage) and along_last(stage, LANES):
        # LLVM unrolls a short loop before it would vectorise it, and of a choice it makes branches.
        _, lanes = sch.split(loops[-1], [None, LANES])
        sch.vectorize(lanes)
    return loops[:-1]


def _elements(extents: Sequence[int | None]) -> int:
    """Return how many elements axes have; -1 if that is not known."""
    return -1 if None in extents else math.prod(e for e in extents if e is not None)


def _parallel(sch: s_tir.Schedule, block: Any, loops: list[Any]) -> None:
    """Run the loops on the thread pool, each thread a range of their iterations."""
    if len(loops) > 1:
        loops = _outermost(sch, loops)
    innermost = len(loops) == len(sch.get_loops(block))
    loop = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    cut = _cut(sch, loop) if innermost else None  # something must be left to vectorise
    sch.parallel(loop if cut is None else cut[0])


def _outermost(sch: s_tir.Schedule, loops: list[Any]) -> list[Any]:
    """Return the outermost of loops, of `CHUNKS` iterations or more; the last may be split for it.

    In a loop that is fused of all, each row's place is found by divisions: a transpose of rows of
    32 elements took 11 us, and 5 without.
    """
    count, chunks = 1, ask("chunks", CHUNKS, PIECES)
    for i, loop in enumerate(loops):
        extent = sch.get(loop).extent
        if not isinstance(extent, tirx.IntImm):
            return loops
        if count * extent.value < chunks:
            count *= extent.value
            continue
        n, least = extent.value, -(-chunks // count)
        part = next(d for d in range(least, n + 1) if n % d == 0)
        return [*loops[:i], loop if part == n else sch.split(loop, [part, n // part])[0]]
    return loops


def _cut(sch: s_tir.Schedule, loop: Any, least: int = 1) -> tuple[Any, Any] | None:
    """Split a loop into at most CHUNKS equal chunks of ``least`` or more iterations."""
    extent = sch.get(loop).extent
    if not isinstance(extent, tirx.IntImm):
        return None
    n, most = extent.value, ask("chunks", CHUNKS, PIECES)
    chunks = next((c for c in range(most, 1, -1) if n % c == 0 and n // c >= least), None)
    return None if chunks is None else tuple(sch.split(loop, [chunks, n // chunks]))
