"""Learning-rate schedules: functions of the step number.

A schedule maps the number of a step, 0 for the first, to the factor by which the optimizer's
learning rate is multiplied in it. The learning rate is an array that the training step reads, so a
change neither traces nor compiles anything:

    rate = linear_warmup(100).then(cosine(900))
    for i, (x, y) in enumerate(batches):
        step.lr.update(1e-3 * rate(i))
        step(dy, x, y)

`meta.train.fit` does the same with ``schedule=``. Any function of the step number will do there;
add one here if others would want it.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Sequence
from numbers import Integral

from meta.base.errors import ArgumentError


class Schedule:
    """A schedule; called with a step number, an int of at least 0, it returns a factor.

    ``first.then(second)`` runs one behind the other, ``a * b`` multiplies their factors.

    Parameters
    ----------
    factor: from the step number to the factor.
    steps: after how many steps it has done its work, and ``then`` goes on with another; None for
        never.
    text: how it is printed.

    >>> halves = meta.optim.schedule.Schedule(lambda step: 0.5**step, steps=3, text="halves")
    >>> then = halves.then(meta.optim.schedule.constant())
    >>> [then(step) for step in (0, 1, 2, 3)], halves
    ([1.0, 0.5, 0.25, 1.0], halves)
    """

    def __init__(self, factor: Callable[[int], float], steps: int | None, text: str) -> None:
        self._factor, self.steps, self._text = factor, steps, text

    def __call__(self, step: int) -> float:
        if not isinstance(step, Integral) or step < 0:
            raise ArgumentError("a schedule is called with a step number", found=repr(step))
        return float(self._factor(int(step)))

    def then(self, following: Schedule) -> Schedule:
        """Return this schedule followed by another one, which begins at its own step 0.

        ArgumentError if this one has no end.
        """
        length = self.steps
        if length is None:
            raise ArgumentError(
                f"{self} has no end, so nothing can follow it",
                found=following,
                hint="constant(steps=100) has one; a * b is for schedules side by side",
            )

        def factor(step: int) -> float:
            return self(step) if step < length else following(step - length)

        total = None if following.steps is None else length + following.steps
        return Schedule(factor, total, f"{self}.then({following})")

    def __mul__(self, other: Schedule) -> Schedule:
        if not isinstance(other, Schedule):
            return NotImplemented
        ends = (self.steps, other.steps)
        steps = None if None in ends else max(s for s in ends if s is not None)
        return Schedule(lambda step: self(step) * other(step), steps, f"{self} * {other}")

    def __repr__(self) -> str:
        return self._text


def constant(factor: float = 1.0, steps: int | None = None) -> Schedule:
    """Return a schedule of one factor, for ``steps`` steps if it is to be followed by another.

    >>> meta.optim.schedule.constant()(100)
    1.0
    """
    _require_factor("factor", factor)
    if steps is not None:
        _require_count("steps", steps)
    return Schedule(lambda _: factor, steps, f"constant({factor}, steps={steps})")


def linear_warmup(steps: int, start: float = 0.0) -> Schedule:
    """Return ``start`` to 1 along a straight line over ``steps`` steps, then 1.

    >>> meta.optim.schedule.linear_warmup(10)(5)
    0.5
    """
    return _ramp("linear_warmup", steps, "start", start, lambda done: start + (1 - start) * done)


def linear_decay(steps: int, end: float = 0.0) -> Schedule:
    """Return 1 to ``end`` along a straight line over ``steps`` steps, then ``end``.

    >>> meta.optim.schedule.linear_decay(10)(5)
    0.5
    """
    return _ramp("linear_decay", steps, "end", end, lambda done: 1 + (end - 1) * done)


def cosine(steps: int, end: float = 0.0) -> Schedule:
    """Return 1 to ``end`` along half a cosine over ``steps`` steps, then ``end``.

    ``end + (1 - end) * (1 + cos(pi * step / steps)) / 2`` (Loshchilov and Hutter, "SGDR: stochastic
    gradient descent with warm restarts", ICLR 2017, without restarts).

    >>> rate = meta.optim.schedule.linear_warmup(10).then(meta.optim.schedule.cosine(90))
    >>> [round(rate(step), 2) for step in (0, 5, 10, 55, 100)]
    [0.0, 0.5, 1.0, 0.5, 0.0]
    """

    def factor(done: float) -> float:
        return end + (1 - end) * (1 + math.cos(math.pi * done)) / 2

    return _ramp("cosine", steps, "end", end, factor)


def _ramp(
    name: str, steps: int, bound: str, value: float, factor: Callable[[float], float]
) -> Schedule:
    """Return a schedule of ``factor`` of the share of the steps that is done."""
    _require_count("steps", steps)
    _require_factor(bound, value)
    text = f"{name}({steps}, {bound}={value})"
    return Schedule(lambda step: factor(min(step / steps, 1.0)), steps, text)


def step_decay(every: int, gamma: float = 0.1) -> Schedule:
    """Return 1, multiplied by ``gamma`` after every ``every`` steps; it has no end.

    >>> meta.optim.schedule.step_decay(3, 0.5)(6)
    0.25
    """
    _require_count("every", every)
    _require_factor("gamma", gamma)
    return Schedule(
        lambda step: gamma ** (step // every), None, f"step_decay({every}, gamma={gamma})"
    )


def multi_step_decay(milestones: Sequence[int], gamma: float = 0.1) -> Schedule:
    """Return 1, multiplied by ``gamma`` at each of ``milestones``, ascending numbers of steps; it
    has no end. As torch.optim.lr_scheduler.MultiStepLR.

    >>> [meta.optim.schedule.multi_step_decay([3, 6], 0.5)(step) for step in (0, 3, 6)]
    [1.0, 0.5, 0.25]
    """
    for milestone in milestones:
        _require_count("a milestone", milestone)
    if list(milestones) != sorted(milestones):
        raise ArgumentError("milestones are in ascending order", found=list(milestones))
    _require_factor("gamma", gamma)
    at = tuple(milestones)
    text = f"multi_step_decay({list(at)}, gamma={gamma})"
    return Schedule(lambda step: gamma ** bisect_right(at, step), None, text)


def exponential_decay(gamma: float) -> Schedule:
    """Return ``gamma**step``; it has no end. As torch.optim.lr_scheduler.ExponentialLR.

    >>> meta.optim.schedule.exponential_decay(0.5)(2)
    0.25
    """
    _require_factor("gamma", gamma)
    return Schedule(lambda step: gamma**step, None, f"exponential_decay({gamma})")


def polynomial_decay(steps: int, power: float = 1.0, end: float = 0.0) -> Schedule:
    """Return ``end + (1 - end) * (1 - step / steps)**power`` over ``steps`` steps, then ``end``; as
    torch.optim.lr_scheduler.PolynomialLR, whose end is 0. power: above 0.

    >>> meta.optim.schedule.polynomial_decay(10, 2.0)(5)
    0.25
    """
    if not 0 < power < math.inf:
        raise ArgumentError("power is out of range", expected="a number > 0", found=power)
    made = _ramp(
        "polynomial_decay", steps, "end", end, lambda done: end + (1 - end) * (1 - done) ** power
    )
    return Schedule(made, steps, f"polynomial_decay({steps}, power={power}, end={end})")


def cosine_restarts(steps: int, growth: int = 1, end: float = 0.0) -> Schedule:
    """Return 1 to ``end`` along half a cosine, again and again: the first time over ``steps``
    steps, each time after over ``growth`` times as many; it has no end.

    Loshchilov and Hutter, "SGDR: stochastic gradient descent with warm restarts", ICLR 2017; as
    torch.optim.lr_scheduler.CosineAnnealingWarmRestarts.

    >>> [round(meta.optim.schedule.cosine_restarts(10)(step), 2) for step in (0, 5, 10)]
    [1.0, 0.5, 1.0]
    """
    _require_count("growth", growth)
    once = cosine(steps, end)

    def factor(step: int) -> float:
        if growth == 1:
            return once(step % steps)
        length = steps
        while step >= length:
            step, length = step - length, length * growth
        return cosine(length, end)(step)

    return Schedule(factor, None, f"cosine_restarts({steps}, growth={growth}, end={end})")


def one_cycle(
    steps: int,
    warmup: float = 0.3,
    start: float = 1 / 25,
    end: float = 1 / 250_000,
    three_phases: bool = False,
    linear: bool = False,
) -> Schedule:
    """Return ``start`` to 1 over a share ``warmup`` of the steps, then down to ``end``.

    The optimizer's learning rate is the largest. Smith and Topin, "Super-convergence: very fast
    training of neural networks using large learning rates", arXiv:1708.07120; as
    torch.optim.lr_scheduler.OneCycleLR, with ``start = 1 / div_factor`` and
    ``end = 1 / (div_factor * final_div_factor)``. A momentum stays as it is.

    Parameters
    ----------
    steps: the length of the whole cycle; step ``steps - 1`` and all after it have ``end``.
    warmup: in (0, 1); with three phases at most 1/2. three_phases: go down to ``start`` as slowly
    as up, then to ``end``. linear: along straight lines, not half cosines.

    >>> [round(meta.optim.schedule.one_cycle(10)(step), 2) for step in (0, 3, 10)]
    [0.04, 0.95, 0.0]
    """
    _require_count("steps", steps)
    _require_factor("start", start)
    _require_factor("end", end)
    most = 0.5 if three_phases else 1.0
    if not 0 < warmup <= most or warmup == 1:
        expected = "in (0, 1/2]" if three_phases else "in (0, 1)"
        raise ArgumentError("warmup is a share of the steps", expected=expected, found=warmup)
    top = warmup * steps - 1
    phases = [(top, start, 1.0), (steps - 1, 1.0, end)]
    if three_phases:
        phases[1:] = [(2 * top, 1.0, start), (steps - 1, start, end)]

    def factor(step: int) -> float:
        begin = 0.0
        for last, low, high in phases:
            if step <= last:
                done = (step - begin) / (last - begin) if last > begin else 1.0
                share = done if linear else (1 - math.cos(math.pi * done)) / 2
                return low + (high - low) * share
            begin = last
        return end

    options = f"warmup={warmup}, start={start}, end={end}"
    switches = f"three_phases={three_phases}, linear={linear}"
    return Schedule(factor, steps, f"one_cycle({steps}, {options}, {switches})")


def _require_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ArgumentError(f"{name} is no number of steps", expected="an int >= 1", found=value)


def _require_factor(name: str, value: float) -> None:
    if not 0 <= value < math.inf:
        raise ArgumentError(f"{name} is no factor", expected="a number >= 0", found=value)
