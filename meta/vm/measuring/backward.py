"""The race of the gradient's programs: one for each dialect that takes part in the forward race."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch

from meta.cost.record import Timing
from meta.op.core.call import CallValues
from meta.vm.executable import Executable
from meta.vm.measuring.arguments import copies_of, gradients_like
from meta.vm.measuring.clocks import Call, Clock
from meta.vm.measuring.contender import Contender, reason_of
from meta.vm.measuring.gradients import GradientProgram, gradient_program
from meta.vm.measuring.racing import Lane, calls_in_batch, race
from meta.vm.measuring.reference import Reference
from meta.vm.measuring.results import difference
from meta.vm.measuring.subject import Subject

SLACK = 10.0
"""How many times the tolerance of its dtype a gradient may differ: what is summed may cancel."""


@dataclass(frozen=True, slots=True)
class Backward:
    """What the programs of the gradient take: microseconds by dialect, and bytes of gradients."""

    timings: dict[str, Timing]
    bytes: int


def backward(
    subject: Subject,
    reference: Reference,
    contenders: Sequence[Contender],
    clock: Clock,
    *,
    rounds: int | None,
    deadline: float | None,
) -> Backward:
    """Compile, run and time the program of the gradient on the dialects of the contenders.

    A dialect whose program cannot be made or run, or computes other gradients than the first one
    that does, is refused with all of its contenders. ``rounds`` 0: nothing is timed.
    """
    if not isinstance(subject.what, CallValues):
        return Backward({}, 0)
    results = reference.expected[: len(subject.outputs)]
    program = gradient_program(subject.what, reference.values, results, gradients_like(results))
    if program is None:
        return Backward({}, 0)
    lanes: dict[str, Lane] = {}
    first, expected = "", None
    copies = _copies(program, subject)
    for dialect in dict.fromkeys(c.dialect for c in contenders if c.env is not None):
        try:
            executable = program.compiled(dialect, str(subject.device))
            found = [t.clone() for t in executable.on_tensors(list(copies[0]))]
            apart = None if expected is None else difference(found, expected, SLACK)
            wrong = None if apart is None else f"is wrong, if {first} is right: {apart}"
            if wrong is None and rounds != 0:
                lanes[dialect] = _lane(executable, copies, clock)
        except Exception as error:
            wrong = f"fails: {reason_of(error)}"
        if wrong is None:
            first, expected = (dialect, found) if expected is None else (first, expected)
            continue
        for contender in contenders:
            if contender.dialect == dialect:
                contender.refuse(f"the gradient {wrong}")
    race(list(lanes.values()), clock, rounds=rounds, deadline=deadline)
    return Backward({d: lane.timing() for d, lane in lanes.items()}, program.bytes)


def _copies(program: GradientProgram, subject: Subject) -> list[list[torch.Tensor]]:
    size = sum(t.nbytes for t in program.inputs) + program.bytes
    count = copies_of(size, subject.device, writes=False)
    return [[t.clone() for t in program.inputs] for _ in range(count)]


def _lane(executable: Executable, copies: Sequence[list[torch.Tensor]], clock: Clock) -> Lane:
    def call_on(place: int) -> Call:
        return partial(executable.on_tensors, copies[place % len(copies)])

    clock.once(call_on(0))
    count = calls_in_batch(clock.once(call_on(0)), len(copies), writes=False)
    recordable = not any(env.not_capturable for env in executable.program.kernels)
    lane = Lane(clock.batch(list(map(call_on, range(count))), recordable), count)
    lane.batch()
    return lane
