"""Patterns of dialects whose calls are faster one by one: the pass `split_patterns`."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import replace

from meta.base.device import Device
from meta.cost.chooser import chooses, configurations, race_of, tuning
from meta.cost.flops import work_of
from meta.cost.record import MARGIN, Breadth, Cost, choose
from meta.dialect.core import FUSED, KERNEL
from meta.dialect.core.dispatch import choice
from meta.dialect.core.preference import Preference, current
from meta.ir import Call, Function, Module, Type, bindings
from meta.op.core import CallValues, Op, View
from meta.passes.dead_code import dead_code
from meta.passes.dispatch import declared_call
from meta.passes.inline import inline
from meta.passes.tune import measure


def split_patterns(module: Module, *, device: Device) -> Module:
    """Undo what `fuse_dialect` did where the kernels of the calls by themselves were measured to
    take less than the one of the pattern: by more than `MARGIN`, and with a lower 20th percentile.

    Both have to be measured; where that is asked for (META_TUNE=on, or within
    `meta.cost.measured`), what is not is measured now, after the calls that the program makes
    (`tune`). What the calls save when they fuse with others is not counted, so that the choice is
    right with it, too. A pattern of a dialect that the user prefers stays.

    >>> from meta.base.device import CPU
    >>> from meta.ir import parse
    >>> program = parse("func @main(%x: float32[2]) -> float32[2] {\\n  return %x\\n}")
    >>> split_patterns(program, device=CPU) is program
    True
    """
    if not chooses(device) and tuning() != "on":
        return module
    questions = {
        name: _is_slower(function, device, current())
        for name, function in module.functions.items()
        if KERNEL in function.attrs
    }
    with configurations(Breadth.UNFUSED):
        answers = _answered(questions, device)
    slower = {
        n: replace(module.functions[n], attrs={}) for n, is_slower in answers.items() if is_slower
    }
    return (
        dead_code(inline(module.with_functions({**module.functions, **slower})))
        if slower
        else module
    )


Question = Generator[CallValues | Function, None, bool]
"""Gives what has to be measured before it goes on."""


def _answered(questions: Mapping[str, Question], device: Device) -> dict[str, bool]:
    """Return the answers to questions, for which what is not known is measured together."""
    answers: dict[str, bool] = {}
    while len(answers) < len(questions):
        wanted = []
        for name, question in questions.items():
            if name not in answers:
                try:
                    wanted.append(next(question))
                except StopIteration as done:
                    answers[name] = done.value
        measure(wanted, device)
    return answers


def _is_slower(function: Function, device: Device, preference: Preference) -> Question:
    """Whether the kernel of a pattern is known to take longer than those of its calls."""
    dialect = str(function.attrs[FUSED])
    if dialect in preference.first:
        return False
    yield function
    race = race_of(function, device)
    together = None if race is None else choose(race.costs, [dialect])
    if together is None:
        return False
    median = p20 = 0.0
    for call in _calls(function, device):
        if call is not None:
            yield call
        cost = None if call is None else choice(call, preference)[1]
        if not isinstance(cost, Cost):
            return False
        median, p20 = median + cost.median, p20 + cost.p20
        if median >= (1 - MARGIN) * together.median:
            return False  # before any other is measured
    return p20 < together.p20


def _calls(function: Function, device: Device) -> list[CallValues | None]:
    """Return the calls of a pattern that run a kernel, those that seem to take longest first; None
    for what is no call of an operator.
    """
    found: list[tuple[float, CallValues | None]] = []
    for binding in bindings(function):
        value = binding.value
        if not isinstance(value, Call) or not isinstance(value.callee, Op):
            return [None]
        call = declared_call(value.callee, value, device)
        if call.callee is not None and not isinstance(call.out, View):
            found.append((work_of(value).time, call if isinstance(call.out, Type) else None))
    return [call for _, call in sorted(found, key=lambda pair: -pair[0])]
