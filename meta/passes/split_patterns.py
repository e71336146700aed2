"""Patterns of dialects whose calls are faster one by one: the pass `split_patterns`."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from meta.base.device import Device
from meta.dialect.core import FUSED, KERNEL, Cost
from meta.dialect.core.costs import MARGIN
from meta.dialect.core.dispatch import cheapest
from meta.dialect.core.preference import Preference, current, tuning
from meta.dialect.core.tuning import choice, chooses, race_of
from meta.ir import Call, Function, Module, Type, bindings
from meta.op.core import Op, View
from meta.passes.dead_code import dead_code
from meta.passes.dispatch import prepared
from meta.passes.inline import inline


def split_patterns(module: Module, *, device: Device) -> Module:
    """Undo what `fuse_dialect` did where the kernels of the calls by themselves were measured to
    take less than the one of the pattern: by more than `MARGIN`, and with a lower 20th percentile.

    Both have to be measured; where that is asked for (META_TUNE=on, or within
    `meta.dialect.measured`), what is not is measured now, after the calls that the program makes
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
    preference = current()
    slower = {
        name: replace(function, attrs={})
        for name, function in module.functions.items()
        if KERNEL in function.attrs and _is_slower(function, device, preference)
    }
    return (
        dead_code(inline(module.with_functions({**module.functions, **slower})))
        if slower
        else module
    )


def _is_slower(function: Function, device: Device, preference: Preference) -> bool:
    """Whether the kernel of a pattern is known to take longer than those of its calls."""
    dialect = str(function.attrs[FUSED])
    if dialect in preference.first:
        return False
    race = race_of(function, device)
    together = None if race is None else choice(race, [dialect])
    if together is None or together.forward is None:
        return False
    apart = _apart(function, device, preference)
    if apart is None:
        return False
    median, p20 = _sum(apart)
    return median < (1 - MARGIN) * together.forward.median and p20 < together.forward.p20


def _apart(function: Function, device: Device, preference: Preference) -> list[Cost] | None:
    """Return what the calls of a pattern take by themselves; None unless all of that is known."""
    found = []
    for binding in bindings(function):
        value = binding.value
        if not isinstance(value, Call) or not isinstance(value.callee, Op):
            return None
        call = prepared(value.callee, value, device)
        if call.callee is None or isinstance(call.out, View) or not isinstance(call.out, Type):
            continue  # it takes no time
        cost = cheapest(call, preference)
        if cost is None or cost.forward is None:
            return None
        found.append(cost)
    return found


def _sum(costs: Iterable[Cost]) -> tuple[float, float]:
    times = [cost.forward for cost in costs if cost.forward is not None]
    return sum(time.median for time in times), sum(time.p20 for time in times)
