"""Inlining of cheap stages of a PrimFunc into those that read them: where schedules begin."""

from __future__ import annotations

from tvm import s_tir, tirx
from tvm.s_tir.schedule import ScheduleError

from meta.dialect.tvm.lower import no_alias
from meta.dialect.tvm.stages import (
    BACKWARDS,
    BFLOAT16,
    BRANCHES,
    DIVIDES,
    NAMED,
    Stage,
    at_axes,
    blocks_of,
    stage_of,
)

INLINE_COST = 10
"""A producer that is read several times is recomputed for each if it costs no more than this."""
REPEATED_COST = 64
"""A producer that is read several times at one place is written out for each if all of them cost no
more than this: LLVM computes them once."""


def inline(sch: s_tir.Schedule, function: tirx.PrimFunc) -> None:
    """Inline every elementwise stage whose recomputation is free or cheap."""
    blocks = blocks_of(sch)
    if len(blocks) == 1:
        return
    stages = [stage_of(sch, block) for block in blocks]
    parameters = set(function.params)
    outputs = [i for i, s in enumerate(stages) if s is None or s.buffer in parameters]
    for i, stage in enumerate(stages):
        if stage is None or stage.reduce or stage.buffer in parameters:
            continue
        readers = {j: s for j, s in enumerate(stages) if s and stage.buffer in s.loads}
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
    if _read_at_one_place(stage, readers):
        return True
    if BRANCHES in stage.traits and any(r.reduce and r.volume > 2 * stage.volume for r in readers):
        return False  # padding: a branch in the inner loop of a convolution
    return stage.cost <= INLINE_COST


def _read_at_one_place(stage: Stage, readers: list[Stage]) -> bool:
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
