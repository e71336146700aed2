"""Who takes part: the kernels of all dialects that have one, each in the configurations that it
lists.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice

from meta.dialect.core import DIALECTS, FUSED, Unsupported, candidates
from meta.dialect.core.openv import Config
from meta.dialect.core.preference import current
from meta.ir import Function
from meta.vm.measuring.clocks import Clock
from meta.vm.measuring.contender import Contender, kernel_of, reason_of
from meta.vm.measuring.isolated import trial
from meta.vm.measuring.subject import Subject


def contenders(
    subject: Subject,
    clock: Clock,
    *,
    eager: bool,
    configs: int,
    against: Callable[[str], str | None],
) -> Iterator[Contender]:
    """Iterate over the contenders, each made when it is asked for, in the order in which dispatch
    asks: of each dialect its default, then up to ``configs`` of its configurations.

    against: says of a dialect why none of its kernels is made any more, or None.
    """
    for dialect in _dialects(subject, eager):
        first = _made(subject, dialect, (), clock, eager, against(dialect))
        listed = first.env.configs if first.env is not None else None
        yield first
        for config in islice(listed.listed(), configs) if listed is not None else ():
            yield _made(subject, dialect, config, clock, eager, against(dialect))


def _dialects(subject: Subject, eager: bool) -> list[str]:
    if isinstance(subject.what, Function):
        return [subject.what.attrs[FUSED]]
    call = subject.what
    found = candidates(call.op, current(), call.device, eager=eager)
    return [one.dialect.name for one in found]


def _made(
    subject: Subject,
    dialect: str,
    config: Config,
    clock: Clock,
    eager: bool,
    reason: str | None,
) -> Contender:
    """Make a kernel unless there is a reason against it. One that may hang is tried in a process of
    its own before.
    """
    contender = Contender(dialect, config)
    limit = DIALECTS[dialect].time_limit
    if reason is None and limit is not None:
        reason = _refusal(subject, dialect) or trial(subject, dialect, config, limit, eager=eager)
    if reason is not None:
        contender.refuse(reason)
        return contender
    start = clock.now()
    try:
        contender.env = kernel_of(subject, dialect, config, eager=eager)
    except Unsupported as refusal:
        contender.refuse(str(refusal))
    except Exception as error:
        contender.refuse(f"cannot be made: {reason_of(error)}")
    else:
        contender.compile = (clock.now() - start) * 1e3
    return contender


def _refusal(subject: Subject, dialect: str) -> str | None:
    """Return why a dialect does not run a subject at all, so that there is nothing to try."""
    return current().refusal(dialect) or DIALECTS[dialect].refusal(subject.device)
