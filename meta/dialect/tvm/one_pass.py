"""One pass over memory for the stages of an update in place: sgd's velocity and parameter, say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import s_tir
from tvm.s_tir.schedule import ScheduleError

from meta.dialect.tvm.access import is_float32, same_place, vector_width
from meta.dialect.tvm.stages import Stage

LANES = 16
"""Width of the vectors of a loop that writes in place: one 512-bit or two 256-bit registers."""


def one_pass(
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
    if len(found) < len(stages):
        return None
    first, *others = found
    for stage in found:
        if not stage.static or stage.reduce or stage.spatial != first.spatial:
            return None
        if not all(same_place(at, stage.axes) for places in stage.loads.values() for at in places):
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
