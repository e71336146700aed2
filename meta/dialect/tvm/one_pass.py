"""One pass over memory for the stages of an update in place: sgd's velocity and parameter, say."""

from __future__ import annotations

from collections.abc import Sequence

from tvm import s_tir
from tvm.s_tir.schedule import ScheduleError

from meta.dialect.tvm.access import same_place
from meta.dialect.tvm.stages import Stage


def one_pass(sch: s_tir.Schedule, stages: Sequence[Stage | None]) -> s_tir.Schedule | None:
    """Return a schedule in which all stages are in the loops of the first; None if they may not be.

    They may if they have one shape and every element depends on those at its own place only: what
    is overwritten is then read by nobody else. Each also has to read what another one computes:
    TVM would run all of an unrelated stage, and of what reads it, for every element.
    """
    first = stages[0]
    if first is None or len(stages) < 2:
        return None
    for stage in stages:
        if stage is None or stage.reduce or stage.spatial != first.spatial:
            return None
        if not all(same_place(at, stage.axes) for places in stage.loads.values() for at in places):
            return None
    computed = {stage.buffer for stage in stages if stage is not None}
    if any(stage is None or not computed & stage.loads.keys() for stage in stages[1:]):
        return None
    trial = sch.copy()
    try:
        innermost = trial.get_loops(first.block)[-1]
        for stage in stages[1:]:
            assert stage is not None
            trial.reverse_compute_at(stage.block, innermost)
    except ScheduleError:
        return None
    return trial
