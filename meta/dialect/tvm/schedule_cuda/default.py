"""What becomes of a PrimFunc on NVIDIA GPUs that no rule of our own covers.

TVM's `dlight` rules are tried from the most special to the most general; a function that none of
them can take has each of its blocks bound to threads on its own.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir import dlight
from tvm.s_tir.dlight.gpu import matmul as dlight_matmul
from tvm.s_tir.schedule import ScheduleError
from tvm.target import Target

from meta.dialect.core.knobs import ask
from meta.dialect.tvm.lower import no_alias
from meta.dialect.tvm.schedule_cuda.emit import TINY, threaded
from meta.dialect.tvm.stages import (
    DIVIDES,
    REDUCE,
    SPATIAL,
    Stage,
    axes_of_loops,
    blocks_of,
    inline,
    predicate_of,
    root_of,
    stage_of,
    uses,
)

THREADS = 256
"""Threads of a block for independent results: they fill any GPU and leave many registers each."""
OTHER_THREADS = 64, 128, 512
EACH, MANY = 4, 1 << 20
"""Results for each thread of a big elementwise kernel, to have several loads under way."""
SHARING_THREADS = 1024
"""Threads that share one reduction."""
SLICES = 512
"""Thread blocks among which few long reductions are spread."""
FEW_RESULTS = 256
"""A reduction to fewer results gets a whole thread block for each."""
LONG, LONG_PER_RESULT = 128, 1 / 64
"""So does one of at least so many elements, in all and for each of the results (a convolution has
more results, and threads enough)."""

EXCHANGED_BITS = 16
"""Of the smallest type that TVM lets the lanes of a warp exchange."""

LANES = 4
"""The most truth values of a vector in registers."""
_TRUTHS = tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or, tirx.Not

_THREAD_REDUCTIONS = s_tir.transform.LowerCrossThreadReduction()

# dlight tries steps and goes on where TVM refuses one. TVM 0.27 ends the process while it writes
# the program into the text of some of these errors, which nobody reads.
s_tir.Schedule.__init__.__wrapped__.__kwdefaults__["error_render_level"] = "none"


class NoTensorCores:
    """What dlight asks in the place of its rules for tensor cores: they take no product."""

    def apply(self, *_: Any) -> None:
        """Return None, so that dlight goes on."""


# TVM 0.27 ends the process where it looks whether a product of float16 suits tensor cores, and
# imports what it asks for half a minute before. Libraries run such products.
dlight_matmul.MatmulTensorization = NoTensorCores
dlight_matmul.MatmulInt8Tensorization = NoTensorCores
MATMUL = dlight.gpu.Matmul()
RULES = (
    MATMUL,
    dlight.gpu.GEMV(),
    dlight.gpu.Reduction(),
    dlight.gpu.GeneralReduction(),
    dlight.gpu.Transpose(),
)


def schedule(function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc:
    """Return ``function`` with every block bound to threads; what it computes is unchanged."""
    if no_alias(function) and not _beyond_dlight(
        function
    ):  # dlight inlines past the store over an input
        moved = _moved(function)
        with target:
            for rule in RULES:
                if rule is MATMUL and moved:
                    continue
                scheduled = _try(rule, function, target)
                if scheduled is not None:
                    return scheduled
    return _bind_stages(function)


def _try(rule: Any, function: tirx.PrimFunc, target: Target) -> tirx.PrimFunc | None:
    try:
        sch = rule.apply(function, target, False)
        if sch is not None:
            _THREAD_REDUCTIONS(sch.mod)  # of a grouped convolution dlight makes what does not lower
    except Exception:  # dlight gives up on forms that it does not know by any exception
        return None
    if sch is None or not all(_bound(sch, block) for block in blocks_of(sch)):
        return None
    if not all(_shares_safely(sch, block) for block in blocks_of(sch)):
        return None
    return sch.mod["main"]


def _shares_safely(sch: s_tir.Schedule, block: Any) -> bool:
    """Whether threads that share a reduction are lowered to what is right on a GPU.

    TVM stores the result without asking whether the thread has one, and adds up types that warps
    do not exchange through shared memory without barriers.
    """
    statement = sch.get(block)
    kinds = [axis.iter_type for axis in statement.iter_vars]
    loops = axes_of_loops(sch, block)
    shared = [
        loop
        for loop, driven in loops
        if sch.get(loop).thread_binding is not None and any(kinds[i] == REDUCE for i in driven)
    ]
    if not shared:
        return True
    if any(written.source.dtype.bits < EXCHANGED_BITS for written in statement.writes):
        return False
    predicate = predicate_of(sch, block)
    return not any(
        uses(predicate, sch.get(loop).loop_var)
        for loop, driven in loops
        if any(kinds[i] == SPATIAL for i in driven)
    )


def _beyond_dlight(function: tirx.PrimFunc) -> bool:
    """Whether dlight has no right or no good kernel.

    For what has no element it launches an empty grid; of a reduction of much to little, one thread
    block each is too few; and where one reads at quotients of an axis, as grouped convolutions do,
    a thread reads what another one keeps in registers.
    """
    sch = s_tir.Schedule(function, error_render_level="none")
    stages = [stage_of(sch, block) for block in blocks_of(sch)]
    return any(
        s is not None
        and (s.volume == 0 or _slices(s) is not None or (s.reduce and DIVIDES in s.traits))
        for s in stages
    )


def _moved(function: tirx.PrimFunc) -> bool:
    """Whether what a reduction computes is not read at its own place by everything behind it:
    `tile` and a sum with a wider array read an element several times, a slice reads not all.

    dlight stores each element of a product at one place of the function's result.
    """
    sch = s_tir.Schedule(function, error_render_level="none")
    computed: dict[Any, Counter[int | None]] = {}
    for stage in (stage_of(sch, block) for block in blocks_of(sch)):
        if stage is None:
            return True
        extents = Counter(extent for extent in stage.spatial if extent != 1)
        read = [buffer for buffer in stage.loads if buffer in computed]
        if stage.reduce or read:
            computed[stage.buffer] = extents
        for buffer in read:
            if not stage.reduce and extents != computed[buffer]:
                return True
            for indices in stage.loads[buffer]:
                walked = [i for i in indices if not isinstance(i, tirx.IntImm)]
                if not all(any(i.same_as(a) for a in stage.axes) for i in walked):
                    return True
    return False


def _slices(stage: Stage) -> int | None:
    """Into how many thread blocks to cut each of few long reductions, if it is worth it."""
    extent = math.prod(e for e in stage.reduce if e is not None)
    results = _results(stage)
    if not stage.static or not stage.reduce or results == 0 or results >= SLICES // 4:
        return None
    if stage.buffer.dtype.bits < EXCHANGED_BITS:
        return None
    wish = SLICES // results
    fitting = [n for n in range(wish // 4, 2 * wish) if n and extent % n == 0]
    if extent < SHARING_THREADS * wish // 4 or not fitting:
        return None
    return min(fitting, key=lambda n: abs(n - wish))


def _bound(sch: s_tir.Schedule, block: Any) -> bool:
    """Whether a block runs under a thread axis, around or inside of it, in a single launch.

    Of a reduction to a scalar dlight binds a loop that it adds inside of the others, and each
    iteration of those is then a launch.
    """
    for loop in map(sch.get, sch.get_loops(block)):
        if loop.thread_binding is not None:
            return True
        if not isinstance(loop.extent, tirx.IntImm) or loop.extent.value != 1:
            return False
    if sch.get(block).iter_vars:
        return False
    text = str(sch.get(block))
    return "blockIdx" in text or "threadIdx" in text


def _bind_stages(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Inline as on the CPU, then one kernel for each block."""
    sch = s_tir.Schedule(_launch_opaque(function), error_render_level="none")
    inline(sch, function)
    for block in blocks_of(sch):
        if not sch.get_loops(block) and sch.get(block).iter_vars:
            sch.add_unit_loop(block)  # rfactor fails in a function with a block that has no loop
    for block in blocks_of(sch):
        stage = stage_of(sch, block)
        slices = None if stage is None else _slices(stage)
        if slices is not None:
            _slice(sch, block, slices)
    for block in blocks_of(sch):
        if _bound(sch, block):
            continue
        stage = stage_of(sch, block)
        if stage is not None and 0 in stage.spatial:
            continue  # its loops have no iteration, and lowering removes them
        if stage is not None and _is_shared(stage):
            _reduce_with_threads(sch, block, len(stage.spatial))
        else:
            _bind(sch, block)
    return sch.mod["main"]


def _is_shared(stage: Stage) -> bool:
    """Whether a thread block computes each result of a reduction, not a thread."""
    if not stage.static or not stage.reduce or stage.volume == 0:
        return False
    if stage.buffer.dtype.bits < EXCHANGED_BITS:
        return False
    results = _results(stage)
    extent = stage.volume // results
    return results < FEW_RESULTS or extent >= max(LONG, results * LONG_PER_RESULT)


def _results(stage: Stage) -> int:
    return math.prod(extent for extent in stage.spatial if extent is not None)


def _bind(sch: s_tir.Schedule, block: Any) -> None:
    """One thread for each spatial iteration."""
    kinds = [axis.iter_type for axis in sch.get(block).iter_vars]
    groups: dict[str, list[Any]] = {"spatial": [], "reduce": [], "other": []}
    for loop, driven in axes_of_loops(sch, block):
        found = {kinds[i] for i in driven}
        name = "spatial" if found <= {SPATIAL} else "reduce" if found == {REDUCE} else "other"
        groups[name].append(loop)
    spatial, reduce, other = groups.values()
    if not spatial:
        outermost = (sch.get_loops(block) or [block])[0]
        spatial = [sch.add_unit_loop(outermost)]
    sch.reorder(*spatial, *reduce, *other)
    flat = sch.fuse(*spatial)
    extent = sch.get(flat).extent
    tiny = isinstance(extent, tirx.IntImm) and extent.value < TINY and not reduce
    threads = ask("threads", THREADS, () if tiny else OTHER_THREADS)
    if isinstance(extent, tirx.IntImm) and extent.value >= MANY and not reduce and not other:
        x, each, thread = sch.split(flat, [None, EACH, threads])
        sch.unroll(each)
    else:
        x, thread = sch.split(flat, [None, threads])
    sch.bind(x, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")
    if reduce and sch.get(block).init is not None:
        sch.decompose_reduction(block, reduce[0])


def _slice(sch: s_tir.Schedule, block: Any, slices: int) -> None:
    """Cut a reduction in two: into slices, each for a thread block, and over their results."""
    spatial = [axis.iter_type for axis in sch.get(block).iter_vars].count(SPATIAL)
    reduced = sch.fuse(*sch.get_loops(block)[spatial:])
    outer, _ = sch.split(reduced, [slices, None])
    try:
        part = sch.rfactor(outer, spatial)
    except ScheduleError:
        return  # not a reduction that TVM knows to be associative: as it was
    loops = sch.get_loops(part)
    _share(sch, sch.fuse(*loops[:-1]), loops[-1])


def _reduce_with_threads(sch: s_tir.Schedule, block: Any, spatial: int) -> None:
    """A thread block for each of few results: its threads share the reduction."""
    loops = sch.get_loops(block)
    rows = sch.fuse(*loops[:spatial]) if spatial else sch.add_unit_loop(loops[0])
    _share(sch, rows, sch.fuse(*sch.get_loops(block)[1:]))


def _share(sch: s_tir.Schedule, rows: Any, reduced: Any) -> None:
    extent = sch.get(reduced).extent
    threads = min(SHARING_THREADS, max(32, 1 << (int(extent) - 1).bit_length()))
    _, thread = sch.split(reduced, [None, threads])
    sch.bind(rows, "blockIdx.x")
    sch.bind(thread, "threadIdx.x")


def _launch_opaque(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Launch blocks of hand-built loops, which schedule primitives do not take.

    An outermost parallel loop becomes the grid; a serial block runs in one thread.
    """
    sch = s_tir.Schedule(function, error_render_level="none")
    opaque = [
        sch.get(block)
        for block in blocks_of(sch) or [root_of(sch)]
        if not sch.get(block).iter_vars and not isinstance(sch.get(block).body, tirx.BufferStore)
        if not _bound(sch, block)
    ]
    if not opaque:
        return function

    def launch(block: s_tir.SBlock) -> s_tir.SBlock:
        if not any(block.same_as(other) for other in opaque):
            return block
        body = tvm_ffi.structural_map(block.body, (tirx.For, _serial))
        if isinstance(block.body, tirx.For) and block.body.kind == tirx.ForKind.PARALLEL:
            body = threaded("blockIdx.x", body.loop_var, body.extent, body.body)
        else:
            body = threaded("blockIdx.x", tirx.Var("only", "int32"), 1, body)
        return s_tir.SBlock(
            [], block.reads, block.writes, block.name_hint, body, block.init,
            block.alloc_buffers, block.match_buffers, block.annotations,
        )  # fmt: skip

    return tvm_ffi.structural_map(function, (s_tir.SBlock, launch), order="pre")


def _serial(loop: tirx.For) -> tirx.For:
    if loop.kind != tirx.ForKind.PARALLEL:
        return loop
    return tirx.For(loop.loop_var, loop.min, loop.extent, tirx.ForKind.SERIAL, loop.body)


def without_bool(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function whose loops over vectors of bool, which CUDA lacks, are unrolled.

    TVM stands for two to four truth values by a vector of 16-bit numbers. That is right in
    registers; in memory, where each is a byte, it reads and writes beside the array, and the sides
    of a selection by what was read are not of its type. More than four it does not translate at
    all. The other arrays of such a loop are then accessed element by element, too.
    """

    def loop(found: tirx.For) -> tirx.For:
        if found.kind != tirx.ForKind.VECTORIZED or not _has_bool(found):
            return found
        unrolled = tirx.ForKind.UNROLLED
        return tirx.For(found.loop_var, found.min, found.extent, unrolled, found.body)

    return tvm_ffi.structural_map(function, (tirx.For, loop))


def _has_bool(loop: tirx.For) -> bool:
    """Whether a loop's lanes are truth values in memory, or too many for registers."""
    found: list[Any] = []

    def access(node: Any) -> None:
        buffer = node.buffer if isinstance(node, tirx.BufferStore) else node.source
        if str(buffer.dtype) == "bool":
            found.append(node)

    handlers: list[tuple[Any, Callable[[Any], None]]]
    handlers = [(tirx.BufferStore, access), (tvm.ir.TensorLoad, access)]
    if int(loop.extent) > LANES:
        handlers += [(kind, found.append) for kind in _TRUTHS]
    tvm_ffi.structural_walk(loop.body, handlers)
    return bool(found)
