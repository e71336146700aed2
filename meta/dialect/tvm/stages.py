"""What a schedule needs to know of the blocks of a PrimFunc: extents, accesses, cost.

A `Stage` is a block that has one store, to the element that its spatial axes name: what
`te.compute` makes, reductions included. Other blocks (extern, sort, tuple reductions) have no
`Stage`, and rules that want one leave them alone.

Inlining of cheap stages of a PrimFunc into those that read them: where schedules begin.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import tvm
import tvm_ffi
from tvm import s_tir, tirx
from tvm.s_tir.schedule import ScheduleError

from meta.dialect.tvm.integers import WRAPPING
from meta.dialect.tvm.lower import no_alias
from meta.dialect.tvm.vector_math import FUNCTIONS

PARALLEL_WORK = 1 << 16
"""Arithmetic operations from which a loop is worth the 5 to 10 µs of waking the thread pool."""
BRANCHES, NAMED, BFLOAT16 = "branches", "named", "bfloat16"
DIVIDES, BACKWARDS = "divides", "backwards"
SPATIAL, REDUCE = tirx.IterVar.DataPar, tirx.IterVar.CommReduce
_CONDITIONS = frozenset(("prim.if_then_else", "prim.likely"))
# Calls that cost about as much as one arithmetic operation, or nothing.
_CHEAP_CALLS = frozenset(
    f"tirx.{name}"
    for name in ("fabs", "floor", "isnan", "nearbyint", "reinterpret", "round", "sqrt", "trunc")
) | {"prim.ceil", *_CONDITIONS, *WRAPPING}
_HEAVY = 16
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)
_realize = tvm.get_global_func("s_tir.schedule.GetSBlockRealize")


@dataclass(slots=True)
class Stage:
    """One block: its axes in loop order, where it reads, what an element costs.

    ``spatial`` and ``reduce`` hold extents, None for a dynamic one; ``rows`` those of spatial axes,
    an expression for a dynamic one. ``loads`` maps a buffer to
    the index tuples it is read at. ``cost`` is in units of one arithmetic operation.
    ``traits``: what its value has in it: `BRANCHES`; names, also those that it will have as a call
    of `vector_math.FUNCTIONS` (`NAMED`); numbers of `BFLOAT16`; an index that is divided
    (`DIVIDES`) or goes along an axis backwards (`BACKWARDS`). ``arguments``: the buffers that are
    read in an argument of such a call; ``bound``: those that are read in what a name stands for.
    """

    block: Any
    buffer: tirx.Var
    axes: list[tirx.Var]
    spatial: list[int | None]
    reduce: list[int | None]
    rows: list[Any] = field(default_factory=list)
    loads: dict[tirx.Var, list[list[Any]]] = field(default_factory=dict)
    cost: int = 1
    traits: set[str] = field(default_factory=set)
    arguments: set[tirx.Var] = field(default_factory=set)
    bound: set[tirx.Var] = field(default_factory=set)

    @property
    def static(self) -> bool:
        """Whether all extents are known."""
        return None not in self.spatial and None not in self.reduce

    @property
    def volume(self) -> int:
        """How many times the body runs (dynamic extents counted as one)."""
        return math.prod(e for e in (*self.spatial, *self.reduce) if e is not None)

    @property
    def work(self) -> int:
        """The cost of the whole block."""
        return self.volume * self.cost


def root_of(schedule: s_tir.Schedule) -> Any:
    """Return the outermost block: a frame around the others, or the only one of a te.extern."""
    return schedule.get_sblock(schedule.mod["main"].body.block.name_hint)


def blocks_of(schedule: s_tir.Schedule) -> list[Any]:
    """Return the blocks to schedule, in order of execution; none if the root is opaque itself."""
    return list(schedule.get_child_blocks(root_of(schedule)))


def stage_of(schedule: s_tir.Schedule, block: Any) -> Stage | None:
    """Return the block's `Stage`, or None if it is not of that form."""
    statement = schedule.get(block)
    store = statement.body
    if not isinstance(store, tirx.BufferStore) or len(statement.writes) != 1:
        return None
    kinds = [axis.iter_type for axis in statement.iter_vars]
    variables = [axis.var for axis in statement.iter_vars]
    n = kinds.count(SPATIAL)
    if kinds != [SPATIAL] * n + [REDUCE] * (len(kinds) - n):
        return None
    if len(schedule.get_loops(block)) != len(kinds):
        return None
    indices = list(store.indices)
    if n == 0 and all(isinstance(i, tirx.IntImm) for i in indices):
        pass  # a 0-d result: stored at a constant index
    elif not at_axes(indices, variables[:n]):
        return None
    dims = [axis.dom.extent for axis in statement.iter_vars]
    extents = list(map(_static, dims))
    rows = [d if e is None else e for d, e in zip(dims[:n], extents, strict=False)]
    stage = Stage(block, store.buffer, variables, extents[:n], extents[n:], rows)
    _inspect(store.value, stage)
    stage.loads.pop(stage.buffer, None)
    return stage


def at_axes(indices: Sequence[Any], axes: Sequence[Any]) -> bool:
    """Whether an access is at the element that the axes name."""
    return len(indices) == len(axes) and all(
        i.same_as(a) for i, a in zip(indices, axes, strict=True)
    )


def _static(extent: Any) -> int | None:
    return extent.value if isinstance(extent, tirx.IntImm) else None


def _inspect(value: Any, stage: Stage) -> None:
    def load(node: Any) -> None:
        stage.loads.setdefault(node.source, []).append(list(node.indices))
        stage.cost += 1
        if str(node.ty.dtype) == "bfloat16":
            stage.traits.add(BFLOAT16)
        for index in node.indices:
            tvm_ffi.structural_walk(index, [((tirx.Sub, tirx.Mul), down), (_DIVISIONS, divided)])

    def down(node: Any) -> None:  # i - 1 is none; 5 - i and i * -1 are
        fixed = isinstance(node.b, tirx.IntImm)
        downwards = node.b.value < 0 if fixed else isinstance(node, tirx.Sub)
        if downwards:
            stage.traits.add(BACKWARDS)

    def divided(_: Any) -> None:
        stage.traits.add(DIVIDES)

    def argument(node: Any) -> None:
        stage.arguments.add(node.source)

    def call(node: Any) -> None:
        if node.op.name in _CONDITIONS:
            stage.traits.add(BRANCHES)
        stage.cost += 1 if node.op.name in _CHEAP_CALLS else _HEAVY
        if node.op.name in FUNCTIONS:
            stage.traits.add(NAMED)
            for given in node.args:
                tvm_ffi.structural_walk(given, (tvm.ir.TensorLoad, argument))

    def bound(node: Any) -> None:
        stage.bound.add(node.source)

    def let(node: Any) -> None:
        stage.traits.add(NAMED)
        tvm_ffi.structural_walk(node.value, (tvm.ir.TensorLoad, bound))

    tvm_ffi.structural_walk(
        value, [(tvm.ir.TensorLoad, load), (tvm.ir.Call, call), (tirx.Let, let)]
    )


def axes_of_loops(schedule: s_tir.Schedule, block: Any) -> list[tuple[Any, list[int]]]:
    """Return each loop around a block with the positions of the axes that it drives."""
    values = _realize(schedule, block).iter_values
    result = []
    for loop in schedule.get_loops(block):
        variable = schedule.get(loop).loop_var
        result.append((loop, [i for i, value in enumerate(values) if uses(value, variable)]))
    return result


def predicate_of(schedule: s_tir.Schedule, block: Any) -> Any:
    """Return under which condition a block runs in its loops."""
    return _realize(schedule, block).predicate


def uses(expression: Any, variable: tirx.Var) -> bool:
    """Whether ``variable`` occurs in ``expression``."""

    def found(node: Any) -> Any:
        return tvm_ffi.VisitInterrupt(None) if node.same_as(variable) else None

    return tvm_ffi.structural_walk(expression, (tvm.ir.Var, found)) is not None


INLINE_COST = 10
"""A producer that is read several times is recomputed for each if it costs no more than this."""
REPEATED_COST = 64
"""A producer that is read several times at one place is written out for each if all of them cost no
more than this: LLVM computes them once."""


def inline(sch: s_tir.Schedule, function: tirx.PrimFunc, tiled: str = "") -> None:
    """Inline every elementwise stage whose recomputation is free or cheap. Behind a stage with the
    annotation ``tiled`` one that is read in several places is named instead: its value is in a
    register, and expressions of many such stages would grow by powers.
    """
    blocks = blocks_of(sch)
    if len(blocks) == 1:
        return
    stages = [stage_of(sch, block) for block in blocks]
    sums = [s for s in stages if s is not None and tiled in sch.get(s.block).annotations]
    named = {s.buffer for s in sums}
    parameters = set(function.params)
    outputs = [i for i, s in enumerate(stages) if s is None or s.buffer in parameters]
    for i, stage in enumerate(stages):
        if stage is None or stage.reduce or stage.buffer in parameters:
            continue
        readers = {j: s for j, s in enumerate(stages) if s and stage.buffer in s.loads}
        behind = not named.isdisjoint(stage.loads) and stage.spatial == sums[0].spatial
        if behind and sum(len(reader.loads[stage.buffer]) for reader in readers.values()) > 1:
            named.add(stage.buffer)
            continue
        if not readers or not _worth_inlining(stage, list(readers.values())):
            continue
        if NAMED in stage.traits and any(_repeats(r, stage.buffer) for r in readers.values()):
            continue
        if BFLOAT16 in stage.traits and any(stage.buffer in r.bound for r in readers.values()):
            continue  # TVM 0.27 leaves a bfloat16 as it is in what a name stands for
        if DIVIDES in stage.traits and any(BACKWARDS in r.traits for r in readers.values()):
            continue  # TVM 0.27 makes i // -2 + 36 of (73 - i) // 2
        if not no_alias(function) and any(i < o < j for o in outputs for j in readers):
            continue  # an input that it reads may be overwritten by then
        try:
            sch.compute_inline(stage.block)
        except ScheduleError:
            continue
        for reader in readers.values():
            times = len(reader.loads.pop(stage.buffer))
            reader.traits |= stage.traits
            reader.arguments |= stage.arguments
            reader.bound |= stage.bound
            for kind in (reader.arguments, reader.bound):
                if stage.buffer in kind:
                    kind |= stage.loads.keys()
            reader.cost += times * stage.cost
            for buffer, indices in stage.loads.items():
                reader.loads.setdefault(buffer, []).extend(indices * times)


def _repeats(reader: Stage, buffer: tirx.Var) -> bool:
    """Whether what is inlined for a buffer comes to stand in several places of one expression.

    TVM refuses a name that is bound twice, to values which its simplifier makes differ. A function
    repeats its arguments, and the simplifier puts what a name stands for in its place: functions of
    functions also take exponential time to compile.
    """
    return buffer in reader.arguments | reader.bound or len(reader.loads[buffer]) > 1


def _worth_inlining(stage: Stage, readers: list[Stage]) -> bool:
    evaluations = sum(len(r.loads[stage.buffer]) * r.volume for r in readers)
    if evaluations <= stage.volume:
        return True
    if _read_at_same_index(stage, readers):
        return True
    if BRANCHES in stage.traits and any(r.reduce and r.volume > 2 * stage.volume for r in readers):
        return False  # padding: a branch in the inner loop of a convolution
    return stage.cost <= INLINE_COST


def _read_at_same_index(stage: Stage, readers: list[Stage]) -> bool:
    """Whether a stage has one reader, which reads its element at the reader's own place only."""
    if len(readers) > 1 or readers[0].reduce or readers[0].volume > stage.volume:
        return False
    (reader,) = readers
    places = reader.loads[stage.buffer]
    if stage.cost * len(places) > REPEATED_COST or BRANCHES in stage.traits:
        return False
    # Along an axis of one element the place is 0.
    walked = [i for i, extent in enumerate(stage.spatial) if extent != 1]
    if len(reader.axes) != len(stage.spatial):
        return False
    axes = [reader.axes[i] for i in walked]
    return all(at_axes([place[i] for i in walked], axes) for place in places)
