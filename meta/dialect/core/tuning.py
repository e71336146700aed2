"""Choosing kernels by what was measured of them, and measuring what was not.

Dispatch asks `race_of` and `choice`. META_TUNE says what may be done for it: "off" (nothing),
"cached" (use what is kept) or "on" (measure what is not); `measured` says so for a block. Measuring
is on a higher floor and registers as `MEASURER` (`meta.vm.measure`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace

import torch

from meta.base import config
from meta.base.call_context import overriding
from meta.base.device import BUILT_IN, Device
from meta.base.errors import ArgumentError
from meta.dialect.core.cost_store import find, generation, keep
from meta.dialect.core.costs import Breadth, Cost, Key, Race, bucket_of, choose, key_of
from meta.dialect.core.dialect_op import DialectOp
from meta.dialect.core.preference import Config, current, tuned, tuning
from meta.ir import Function
from meta.op.core.call import CallValues


def how_in_programs(device: Device) -> str:
    """Return how calls of compiled programs are run on a device."""
    return "graph" if device.kind == "cuda" and config.get("META_CUDA_GRAPH") else "eager"


def race_of(subject: CallValues | Function, device: Device, *, eager: bool = False) -> Race | None:
    """Return what was measured of a call or a fused function, measuring it now where that is asked
    for; None where nothing is known, or is to be used.
    """
    if tuning() == "off" or _context.get().races or device.kind not in BUILT_IN:
        return None
    for _ in measure_missing([subject], device, eager=eager):
        pass
    return known(subject, device, eager=eager)


def measure_missing(
    subjects: Sequence[CallValues | Function], device: Device, *, eager: bool = False
) -> Iterator[int]:
    """Measure calls and fused functions of which nothing is known, where that is asked for, until
    the budget is used up. Gives after each how many of them are known by now, or are of no interest
    (`measuring_only`).

    What several of them need is compiled in one go: to ask for them together takes half the time.
    """
    context = _context.get()
    if tuning() != "on" or context.races or device.kind not in BUILT_IN or _is_recording(device):
        return
    how = "eager" if eager else how_in_programs(device)
    missing: dict[Key, CallValues | Function] = {}
    for subject in subjects if MEASURER else ():
        if _is_static(subject) and context.of_interest(subject):
            key = key_of(subject, device, how)
            race = _found(key)
            if race is None or race.breadth < context.breadth:
                missing.setdefault(key, subject)
    done = len(subjects) - len(missing)
    yield done
    if not missing or context.exhausted:
        return
    wanted = list(missing.items())
    begin = time.monotonic()
    found = iter(MEASURER[0]([subject for _, subject in wanted], device, how))
    while True:
        with racing():
            result = next(found, None)
        if result is None:
            return
        place, costs = result
        key, subject = wanted[place]
        if costs:  # else there was no room for it
            bucket = bucket_of(subject, device, how) if isinstance(subject, CallValues) else None
            bucket = None if bucket is None else _here(bucket)
            keep(_here(key), costs, bucket=bucket, breadth=_context.get().breadth)
            if isinstance(subject, CallValues):
                keep_configurations(subject, costs, device, how)
        now = time.monotonic()
        for spent in _context.get().spent:
            spent.races += 1
            spent.seconds += now - begin
        begin, done = now, done + 1
        yield done


def keep_configurations(call: CallValues, costs: Sequence[Cost], device: Device, how: str) -> None:
    """Keep the costs of each implementation that says what its configurations depend on, for all
    calls that agree in that, unless those of another one are kept.
    """
    for one in call.op.aspects.dialect_ops:
        own = [c for c in costs if c.dialect == one.dialect.name]
        if one.depends is not None and own:
            key = _of_configurations(one, call, device, how)
            keep(key, own, bucket=key, breadth=_context.get().breadth)


def configuration(dialect_op: DialectOp, call: CallValues, *, eager: bool = False) -> Config:
    """Return the configuration that was measured to be the fastest of an implementation, in a call
    that agrees in what it depends on; () where nothing is known of one.
    """
    if dialect_op.depends is None or not chooses(call.device) or not _is_static(call):
        return ()
    how = "eager" if eager else how_in_programs(call.device)
    race = find(_of_configurations(dialect_op, call, call.device, how))
    best = None if race is None else choose(race.costs, [dialect_op.dialect.name])
    return () if best is None else best.config


def _of_configurations(dialect_op: DialectOp, call: CallValues, device: Device, how: str) -> Key:
    assert dialect_op.depends is not None
    text = f"configurations for {dialect_op.depends(call)}"
    return replace(key_of(call, device, how), operator=dialect_op.plain.name, call=text)


def _here(key: Key) -> Key:
    """Return the key of a race in which only the dialects take part that the user allows here. What
    is excluded is not run, not even to be timed: it may be for a reason.
    """
    preference = current()
    parts = [key.how]
    if preference.only is not None:
        parts.append(f"only {', '.join(sorted(preference.only))}")
    if preference.excluded:
        parts.append(f"without {', '.join(sorted(preference.excluded))}")
    return key if len(parts) == 1 else replace(key, how="; ".join(parts))


def _is_recording(device: Device) -> bool:
    """Whether somebody records a CUDA graph, during which nothing can be timed."""
    return device.kind == "cuda" and torch.cuda.is_current_stream_capturing()


def chooses(device: Device) -> bool:
    """Whether anything was measured on a device, and choices may be made by it here."""
    usable = device.kind in BUILT_IN and tuning() != "off" and not _context.get().races
    return usable and bool(generation(device))


def choice(race: Race, order: Sequence[str], first: Sequence[str] = ()) -> Cost | None:
    """Return the candidate that runs a call, None where that cannot be said (`costs.choose`).

    order: the dialects as priority has them, those that may not be chosen left out. first: those
    that the user prefers, of which the first that takes the call is chosen, whatever others cost.
    """
    takes = {c.dialect for c in race.costs if not c.refused}
    wanted = next((name for name in order if name in first and name in takes), None)
    return choose(race.costs, order if wanted is None else [wanted])


def _is_static(subject: CallValues | Function) -> bool:
    return isinstance(subject, Function) or all(t.is_static for t in subject.tensors())


def known(subject: CallValues | Function, device: Device, *, eager: bool = False) -> Race | None:
    """Return what was measured of a call or function, or of a call with about its extents."""
    return kept(subject, device, "eager" if eager else how_in_programs(device))


def kept(subject: CallValues | Function, device: Device, how: str) -> Race | None:
    """Return what was measured of a call or function that is run so, or of a call with about its
    extents.
    """
    if not _is_static(subject):
        return None
    race = _found(key_of(subject, device, how))
    if race is None and isinstance(subject, CallValues):
        race = _found(bucket_of(subject, device, how))
    return race


def _found(key: Key) -> Race | None:
    """Return the race of all dialects, or of those allowed here where more configurations took part
    in it.
    """
    races = [race for race in map(find, dict.fromkeys((key, _here(key)))) if race is not None]
    return max(races, key=lambda race: race.breadth, default=None)


Measurer = Callable[
    [Sequence[CallValues | Function], Device, str], Iterable[tuple[int, Sequence[Cost]]]
]
MEASURER: list[Measurer] = []
"""What runs races: of calls and fused functions, a device, and how they are run. It iterates over
the costs, each with the place of what it is of, in an order of its own until the time is up
(`TuneContext.remaining`).
"""


@dataclass(slots=True)
class Spent:
    """What was measured in a block of `measured`: how many calls, and the seconds it took."""

    races: int = 0
    seconds: float = 0.0


def _anything(_: CallValues | Function) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class TuneContext:
    """How kernels are chosen by what was measured of them here, and what may be measured for it.

    Attributes
    ----------
    races: whether kernels are made in order to be measured: nothing is chosen by costs meanwhile.
    compares: whether a program is lowered in order to be compared: rules that follow decide by
    themselves. variants: whether calls may be measured that a program has only if a rule is not
    followed. breadth: whose configurations are measured. of_interest: which calls and fused
    functions are. deadline: when nothing more is, by `time.monotonic`. spent: what counts that, of
    each block of `measured` that is open.
    """

    races: bool = False
    compares: bool = False
    variants: bool = True
    breadth: Breadth = Breadth.ALL
    of_interest: Callable[[CallValues | Function], bool] = _anything
    deadline: float = math.inf
    spent: tuple[Spent, ...] = ()

    def remaining(self) -> float:
        """Return the seconds that are left of the budget of `measured`."""
        return self.deadline - time.monotonic()

    @property
    def exhausted(self) -> bool:
        """Whether the budget of `measured` is used up."""
        return self.remaining() <= 0


_UNCHANGED = TuneContext()
_context: ContextVar[TuneContext] = ContextVar("meta_tune_context", default=_UNCHANGED)


def tune_context() -> TuneContext:
    """Return how kernels are chosen here."""
    return _context.get()


def racing() -> AbstractContextManager[TuneContext]:
    """Let nothing be chosen by costs in a ``with`` block, in which kernels are measured."""
    return overriding(_context, lambda before: replace(before, races=True))


def comparing() -> AbstractContextManager[TuneContext]:
    """Let a program be lowered in a ``with`` block in order to be compared with another one."""
    return overriding(_context, lambda before: replace(before, compares=True))


def rules_alone() -> AbstractContextManager[TuneContext]:
    """Measure the program that rules make, in a ``with`` block, and not what else it could be."""
    return overriding(_context, lambda before: replace(before, variants=False))


def configurations(most: Breadth) -> AbstractContextManager[TuneContext]:
    """Measure no other configurations than these in a ``with`` block: of calls that may become part
    of other kernels, or of a program that is only compared with another. Where they matter after
    all, and are asked for outside of the block, the race is run again.
    """
    return overriding(_context, lambda before: replace(before, breadth=min(most, before.breadth)))


def measuring_only(
    of_interest: Callable[[CallValues | Function], bool],
) -> AbstractContextManager[TuneContext]:
    """Measure nothing else in a ``with`` block: of a program that may turn out to be slower by what
    this takes alone.
    """
    return overriding(_context, lambda before: replace(before, of_interest=of_interest))


@contextmanager
def measured(budget: float | None = None) -> Iterator[Spent]:
    """Let what was never measured be measured, once for all processes, and choose by it: as
    META_TUNE=on, in a ``with`` block. Gives a `Spent`, which says afterwards what that took.

    budget: seconds after which nothing more is measured; races that began are finished.
    """
    if budget is not None and not budget >= 0:
        raise ArgumentError("a budget is seconds", expected="0 or more", found=repr(budget))
    until = math.inf if budget is None else time.monotonic() + budget
    spent = Spent()

    def limited(before: TuneContext) -> TuneContext:
        deadline = min(until, before.deadline)
        return replace(before, deadline=deadline, spent=(*before.spent, spent))

    with overriding(_context, limited), tuned():
        yield spent
