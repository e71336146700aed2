"""Choosing kernels by what was measured of them, and measuring what was not.

A `CostChooser` is what dispatch asks (`meta.dialect.core.chooser`), and what passes go by.
META_TUNE says what may be done: "off" (nothing), "cached" (use what is kept) or "on" (measure what
is not); `measured` says so for a block. Who measures is on a higher floor, and sets the default
chooser (`meta.vm.benchmark.measure`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any, cast

import torch

from meta.base import config
from meta.base.call_context import Default, override_context
from meta.base.device import BUILT_IN, Device
from meta.base.errors import ArgumentError
from meta.cost.record import Breadth, Cost, Key, Race, Subject, bucket_of, choose, key_of
from meta.cost.store import find, generation, save
from meta.dialect.core.chooser import Chooser, current_chooser
from meta.dialect.core.dialect_op import DialectOp
from meta.dialect.core.preference import Config, current
from meta.ir import Function
from meta.op.core.call import CallValues

Measurer = Callable[[Sequence[Subject], Device, str], Iterable[tuple[int, Sequence[Cost]]]]
"""What runs races: of calls and fused functions, a device, and how they are run. It iterates over
the costs, each with the place of what it is of, in an order of its own until the time is up
(`CostChooser.remaining`).
"""


@dataclass(slots=True)
class Spent:
    """What was measured in a block of `measured`: how many calls, and the seconds it took."""

    races: int = 0
    seconds: float = 0.0


def _anything(_: Subject) -> bool:
    return True


@dataclass(frozen=True, slots=True)
class CostChooser(Chooser):
    """How kernels are chosen by what was measured of them, and what may be measured for it.

    Attributes
    ----------
    measurer: runs races. races: whether kernels are made in order to be measured: nothing is chosen
    by costs meanwhile. compares: whether a program is lowered in order to be compared: rules that
    follow decide by themselves. variants: whether calls may be measured that a program has only if
    a rule is not followed. breadth: whose configurations are measured: of calls that may become
    part of other kernels, or of a program that is only compared with another, not those of all;
    where these matter after all, and are asked for later, the race is run again. of_interest: which
    calls and fused functions are measured. deadline: when nothing more is, by `time.monotonic`.
    spent: what counts that, of each block of `measured` that is open.
    """

    measurer: Measurer
    races: bool = False
    compares: bool = False
    variants: bool = True
    breadth: Breadth = Breadth.ALL
    of_interest: Callable[[Subject], bool] = _anything
    deadline: float = math.inf
    spent: tuple[Spent, ...] = ()

    def remaining(self) -> float:
        """Return the seconds that are left of the budget of `measured`."""
        return self.deadline - time.monotonic()

    @property
    def exhausted(self) -> bool:
        """Whether the budget of `measured` is used up."""
        return self.remaining() <= 0

    def uses(self, device: Device) -> bool:
        """Whether choices may be made by costs on a device."""
        return device.kind in BUILT_IN and tuning() != "off" and not self.races

    # What dispatch asks: see `meta.dialect.core.chooser.Chooser`.

    def key(self) -> Hashable:
        return tuning(), self.races

    def known(self, call: CallValues, *, eager: bool) -> Race | None:
        return race_of(call, call.device, eager=eager)

    def choose(self, known: Race, order: Sequence[str], preferred: Sequence[str]) -> Cost | None:
        return choose(known.costs, order, preferred)

    def compiles(self) -> bool:
        return tuning() == "on"

    def configuration(self, dialect_op: DialectOp, call: CallValues, *, eager: bool) -> Config:
        """Return the configuration that was measured to be the fastest of an implementation, in a
        call that agrees in what it depends on; () where nothing is known of one.
        """
        if dialect_op.depends is None or not chooses(call.device) or not _is_static(call):
            return ()
        race = find(_of_configurations(dialect_op, call, how_of(call.device, eager=eager)))
        best = None if race is None else choose(race.costs, [dialect_op.dialect.name])
        return () if best is None else best.config

    def measure(self, call: CallValues) -> list[Cost]:
        ((_, found),) = self.measurer([call], call.device, how_of(call.device))
        return list(found)


def tuning() -> str:
    """Return what may be done to choose kernels by their costs: "off", "cached" or "on"."""
    stated: str = config.get("META_TUNE")
    return stated


def chooser() -> CostChooser:
    """Return how kernels are chosen here."""
    if not isinstance(current_chooser(), CostChooser):
        Default.complete()  # a higher floor says it
    return cast(CostChooser, current_chooser())


def choosing(**changes: Any) -> AbstractContextManager[None]:
    """Change attributes of the chooser in a ``with`` block."""
    return override_context(chooser=replace(chooser(), **changes))


def configurations(most: Breadth) -> AbstractContextManager[None]:
    """Measure no other configurations than these in a ``with`` block; see `CostChooser.breadth`."""
    return choosing(breadth=min(most, chooser().breadth))


def tuned(measures: bool = True) -> AbstractContextManager[None]:
    """Measure what was never measured in a ``with`` block, or do not; as META_TUNE, which may still
    forbid to choose by costs.
    """
    if tuning() == "off":
        return nullcontext()
    return config.override(META_TUNE="on" if measures else "cached")


@contextmanager
def measured(budget: float | None = None) -> Iterator[Spent]:
    """Let what was never measured be measured, once for all processes, and choose by it: as
    META_TUNE=on, in a ``with`` block. Gives a `Spent`, which says afterwards what that took.

    budget: seconds after which nothing more is measured; races that began are finished.
    """
    if budget is not None and not budget >= 0:
        raise ArgumentError("a budget is seconds", expected="0 or more", found=repr(budget))
    until = math.inf if budget is None else time.monotonic() + budget
    here, spent = chooser(), Spent()
    limited = choosing(deadline=min(until, here.deadline), spent=(*here.spent, spent))
    with limited, tuned():
        yield spent


def how_in_programs(device: Device) -> str:
    """Return how calls of compiled programs are run on a device."""
    return "graph" if device.kind == "cuda" and config.get("META_CUDA_GRAPH") else "eager"


def how_of(device: Device, *, eager: bool = False) -> str:
    """Return how a call is run on a device: an eager one, or one of a program."""
    return "eager" if eager else how_in_programs(device)


def race_of(subject: Subject, device: Device, *, eager: bool = False) -> Race | None:
    """Return what was measured of a call or a fused function, measuring it now where that is asked
    for; None where nothing is known, or is to be used.
    """
    if not chooser().uses(device):
        return None
    for _ in measure_missing([subject], device, eager=eager):
        pass
    return known_race(subject, device, how_of(device, eager=eager))


def known_race(subject: Subject, device: Device, how: str) -> Race | None:
    """Return what was measured of a call or function that is run so, or of a call with about its
    extents; None where it is not to be used.
    """
    if tuning() == "off" or not _is_static(subject):
        return None
    race = _stored(key_of(subject, device, how))
    if race is None and isinstance(subject, CallValues):
        race = _stored(bucket_of(subject, device, how))
    return race


def chooses(device: Device) -> bool:
    """Whether anything was measured on a device, and choices may be made by it here."""
    return chooser().uses(device) and bool(generation(device))


def measure_missing(
    subjects: Sequence[Subject], device: Device, *, eager: bool = False
) -> Iterator[int]:
    """Measure calls and fused functions of which nothing is known, where that is asked for, until
    the budget is used up. Gives after each how many of them are known by now, or are of no interest
    (`CostChooser.of_interest`).

    What several of them need is compiled in one go: to ask for them together takes half the time.
    """
    here = chooser()
    if tuning() != "on" or not here.uses(device) or _is_recording(device):
        return
    how = how_of(device, eager=eager)
    missing: dict[Key, Subject] = {}
    for subject in subjects:
        if _is_static(subject) and here.of_interest(subject):
            key = key_of(subject, device, how)
            race = _stored(key)
            if race is None or race.breadth < here.breadth:
                missing.setdefault(key, subject)
    done = len(subjects) - len(missing)
    yield done
    if not missing or here.exhausted:
        return
    wanted = list(missing.items())
    begin = time.monotonic()
    found = iter(here.measurer([subject for _, subject in wanted], device, how))
    while True:
        with choosing(races=True):
            result = next(found, None)
        if result is None:
            return
        place, costs = result
        _store(*wanted[place], costs, how)
        now = time.monotonic()
        for spent in here.spent:
            spent.races += 1
            spent.seconds += now - begin
        begin, done = now, done + 1
        yield done


def _store(key: Key, subject: Subject, costs: Sequence[Cost], how: str) -> None:
    """Keep what was measured, if there was room to measure anything: for the call, for those with
    about its extents, and for its configurations.
    """
    breadth = chooser().breadth
    if not costs:
        return
    if isinstance(subject, Function):
        save(_here(key), costs, breadth=breadth)
        return
    save(_here(key), costs, bucket=_here(bucket_of(subject, key.device, how)), breadth=breadth)
    save_configurations(subject, costs, how)


def save_configurations(call: CallValues, costs: Sequence[Cost], how: str) -> None:
    """Keep the costs of each implementation that says what its configurations depend on, for all
    calls that agree in that, unless those of another one are kept.
    """
    for one in call.op.aspects.dialect_ops:
        own = [c for c in costs if c.dialect == one.dialect.name]
        if one.depends is not None and own:
            shared = _of_configurations(one, call, how)
            save(shared, own, bucket=shared, breadth=chooser().breadth)


def _of_configurations(dialect_op: DialectOp, call: CallValues, how: str) -> Key:
    assert dialect_op.depends is not None
    text = f"configurations for {dialect_op.depends(call)}"
    return replace(key_of(call, call.device, how), operator=dialect_op.plain.name, call=text)


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


def _stored(key: Key) -> Race | None:
    """Return the race of all dialects, or of those allowed here where more configurations took part
    in it.
    """
    races = [race for race in map(find, dict.fromkeys((key, _here(key)))) if race is not None]
    return max(races, key=lambda race: race.breadth, default=None)


def _is_recording(device: Device) -> bool:
    """Whether somebody records a CUDA graph, during which nothing can be timed."""
    return device.kind == "cuda" and torch.cuda.is_current_stream_capturing()


def _is_static(subject: Subject) -> bool:
    return isinstance(subject, Function) or all(t.is_static for t in subject.tensors())
