"""Who takes part: makes the kernels of a subject, and compiles those of several in one go."""

from __future__ import annotations

from collections.abc import Sequence

from meta.dialect.core import DIALECTS, FUSED, Unsupported, candidates, compile_together
from meta.dialect.core.preference import Config, current
from meta.ir import Function
from meta.vm.measuring.clocks import Clock
from meta.vm.measuring.contender import Contender, kernel_of, reason_of
from meta.vm.measuring.isolated import trial
from meta.vm.measuring.subject import Subject


def dialects(subject: Subject, eager: bool) -> list[str]:
    """Return the names of those that may have a kernel, in the order in which dispatch asks."""
    if isinstance(subject.what, Function):
        return [subject.what.attrs[FUSED]]
    call = subject.what
    found = candidates(call.op, current(), call.device, eager=eager)
    return list(dict.fromkeys(one.dialect.name for one in found))


def made(
    subject: Subject,
    dialect: str,
    config: Config,
    clock: Clock,
    eager: bool,
    reason: str | None,
) -> Contender:
    """Make a kernel, which may not be compiled yet, unless there is a reason against it. One that
    may hang is tried in a process of its own before.
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


def compile_kernels(requests: Sequence[Sequence[Contender]], clock: Clock) -> None:
    """Compile kernels in one go; where that fails request by request, then one by one, to see which
    of them it was.
    """
    waiting = [c for request in requests for c in request if c.env is not None]
    start = clock.now()
    try:
        compile_together([c.env for c in waiting if c.env is not None])
    except Exception as error:
        if len(waiting) == 1:
            waiting[0].refuse(f"cannot be made: {reason_of(error)}")
            return
        parts = requests if len(requests) > 1 else [[c] for c in waiting]
        for part in parts:
            compile_kernels([part], clock)
        return
    share = (clock.now() - start) * 1e3 / max(len(waiting), 1)
    for contender in waiting:
        contender.compile = (contender.compile or 0.0) + share


def _refusal(subject: Subject, dialect: str) -> str | None:
    """Return why a dialect does not run a subject at all, so that there is nothing to try."""
    return current().refusal(dialect) or DIALECTS[dialect].refusal(subject.device)
