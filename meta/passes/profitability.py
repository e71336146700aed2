"""A rule that rewrites a program decides by what was measured, where it was: `cheaper`.

Such a rule (`channels_last`, `align_products`, `join_products`) knows on what devices it pays in
general. Where the calls of the program with and without it were all measured, their times decide.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from meta.base.device import Device
from meta.base.errors import ArgumentError
from meta.cost.chooser import chooser, chooses, choosing, configurations, measured, tuning
from meta.cost.flops import is_of_products
from meta.cost.predict import Launch, Predictor
from meta.cost.record import MARGIN, Breadth
from meta.cost.roofline import peaks_of
from meta.dialect.core import compiling
from meta.ir import Module, structural_equal
from meta.passes.call_graph import PREPARED_BY
from meta.passes.manager import Pass


def compares(device: Device, lower: Pass | None) -> bool:
    """Whether `cheaper` looks at costs: there are some, and it is not asked on behalf of another
    rule, before this one in the pipeline, nor while the program that rules make is measured, nor
    when the time to measure is used up: each comparison lowers the whole program.
    """
    context = chooser()
    if lower is None or context.compares or not context.variants or context.exhausted:
        return False
    return chooses(device)


def cheaper(
    changed: Module, others: Iterable[Module], *, device: Device, lower: Pass | None
) -> Module:
    """Return what a rule made of a program, or one of the others if it is faster: the program as it
    was given, or changed in another way. One is asked for when those before it were measured.

    All are lowered by the passes that follow, ``lower`` (None: the rule decides), and the kernels
    in which another one differs from the rule's are compared. The rule is right unless all of these
    were measured, and those of the other one take more than `MARGIN` less; of several the one that
    gains the most is taken.

    Where kernels are measured now, the products of another program come first (convolutions and
    attention are some), in their default configurations. If these, and the least that the device
    takes for the rest by its measured `Peaks`, take too long already, nothing else is measured.
    """
    if lower is None or not compares(device, lower):
        return changed
    best, most = changed, 0.0
    ruled: Counter[Launch] | None = None
    lowered: list[Module] = [changed]
    for other in others:
        if chooser().exhausted:
            break
        if any(structural_equal(other, one) for one in lowered):
            continue
        lowered.append(other)
        ruled = _launches(changed, device, lower) if ruled is None else ruled
        if ruled is None:
            continue
        gain = _compared(ruled, other, most, device, lower)
        if gain.is_measured and gain.at_most > most:
            best, most = other, gain.at_most
    return best


TUNED = 0.9
"""The share of the time of libraries' default kernels that their fastest are expected to take, all
kernels of a program together. Single products have gained more (0.75, cuBLASLt in TF32).
"""


@dataclass(frozen=True, slots=True)
class Gain:
    """Microseconds that a program takes less than another one: at most so many, exactly so many if
    all that they differ in was measured.
    """

    at_most: float
    is_measured: bool = False


NONE = Gain(0.0)


def _compared(
    ruled: Counter[Launch], other: Module, most: float, device: Device, lower: Pass
) -> Gain:
    """Return what another program gains, or that it is no more than ``most``."""
    if tuning() == "on":
        with measured() as spent, choosing(of_interest=is_of_products):
            found = _launches(other, device, lower, Breadth.DEFAULTS)
        gain = _gain(ruled, found, device, TUNED if spent.races else 1.0)
        if gain.at_most <= most or (gain.is_measured and not spent.races):
            return gain
    return _gain(ruled, _launches(other, device, lower), device)


def _gain(
    ruled: Counter[Launch], found: Counter[Launch] | None, device: Device, share: float = 1.0
) -> Gain:
    """Return what is gained by the kernels that were found for a program instead of the rule's, if
    those that were measured may take this share of their time.
    """
    if found is None:
        return NONE
    instead, kept = found - ruled, ruled - found
    if any(launch.time.estimated for launch in kept):
        return NONE
    estimated = sum(count * launch.time.estimated for launch, count in instead.items())
    least = share * _sum(instead) + (estimated if peaks_of(device).measured else 0.0)
    at_most = _sum(kept) - least
    return Gain(at_most, not estimated) if at_most > MARGIN * _sum(kept) else NONE


def _launches(
    module: Module, device: Device, lower: Pass, most: Breadth = Breadth.LIBRARIES
) -> Counter[Launch] | None:
    """Return the kernels of a program once it is lowered, where configurations are measured as far
    as ``most``; None if it does not fit the memory budget that it is lowered for.
    """
    try:
        with choosing(compares=True), compiling(False), configurations(most):
            lowered = lower(module)
            once = lowered.main.attrs.get(PREPARED_BY)  # it does not count
            return Counter(Predictor(lowered, device).launches(without=once))
    except ArgumentError:
        return None


def _sum(launches: Counter[Launch]) -> float:
    return sum(count * launch.time.measured for launch, count in launches.items())
