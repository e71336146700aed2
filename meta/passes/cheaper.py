"""A rule that rewrites a program decides by what was measured, where it was: `cheaper`.

Such a rule (`channels_last`, `align_products`, `join_products`) knows on what devices it pays in
general. Where the calls of the program with and without it were all measured, their times decide.
"""

from __future__ import annotations

from collections import Counter
from contextvars import ContextVar

from meta.base.device import Device
from meta.base.errors import ArgumentError
from meta.dialect.core import compiling
from meta.dialect.core.costs import MARGIN, Breadth
from meta.dialect.core.tuning import chooses, configurations, exhausted, measures_variants
from meta.ir import Module, structural_equal
from meta.passes.manager import Pass
from meta.passes.predict import Launch, Predictor

_comparing: ContextVar[bool] = ContextVar("meta_comparing_programs", default=False)
"""Whether a program is lowered in order to be compared: rules that follow decide by themselves."""


def compares(device: Device, lower: Pass | None) -> bool:
    """Whether `cheaper` looks at costs: there are some, and it is not asked on behalf of another
    rule, before this one in the pipeline, nor while the program that rules make is measured, nor
    when the time to measure is used up: each comparison lowers the whole program.
    """
    if lower is None or _comparing.get() or not measures_variants() or exhausted():
        return False
    return chooses(device)


def cheaper(changed: Module, *others: Module, device: Device, lower: Pass | None) -> Module:
    """Return what a rule made of a program, or one of the others if it is faster: the program as it
    was given, or changed in another way.

    All are lowered by the passes that follow, ``lower`` (None: the rule decides), and the kernels
    in which another one differs from the rule's are compared. The rule is right unless all of these
    were measured, and those of the other one take more than `MARGIN` less; of several the one that
    gains the most is taken.
    """
    if lower is None or not compares(device, lower):
        return changed
    best, most = changed, 0.0
    ruled: Counter[Launch] | None = None
    lowered: list[Module] = [changed]
    for other in others:
        if any(structural_equal(other, one) for one in lowered):
            continue
        lowered.append(other)
        ruled = _launches(changed, device, lower) if ruled is None else ruled
        found = _launches(other, device, lower)
        if ruled is None or found is None:
            continue
        instead, kept = found - ruled, ruled - found
        if any(launch.time.estimated for launch in (*instead, *kept)):
            continue
        gain = _sum(kept) - _sum(instead)
        if gain > MARGIN * _sum(kept) and gain > most:
            best, most = other, gain
    return best


def _launches(module: Module, device: Device, lower: Pass) -> Counter[Launch] | None:
    """Return the kernels of a program once it is lowered; None if it does not fit the memory budget
    that it is lowered for.
    """
    token = _comparing.set(True)
    try:
        with compiling(False), configurations(Breadth.LIBRARIES):
            return Counter(Predictor(lower(module), device).launches())
    except ArgumentError:
        return None
    finally:
        _comparing.reset(token)


def _sum(launches: Counter[Launch]) -> float:
    return sum(count * launch.time.measured for launch, count in launches.items())
