"""`contest`: makes, checks and times all contenders of a subject, and says what each costs.

The first contender in the order of dispatch that runs is the one whose results count. Another one
with other results, or that raises an error or breaks a promise, is left out with the reason.

A contest is a generator, which pauses where kernels are to be compiled. `contests` lets several of
them go on side by side: what they wait for is compiled in one go, on all cores, which takes half
the time. One of them runs at a time, so that nothing else goes on while kernels are timed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from statistics import median

import torch

from meta.base import config
from meta.base.errors import OutOfMemory
from meta.base.progress import bar
from meta.cost.chooser import choosing
from meta.cost.record import BYTES, Breadth, Cost, Timing
from meta.cost.roofline import peaks_of
from meta.cost.store import source_of
from meta.dialect.core import DIALECTS
from meta.dialect.core.openv import Configs, OpEnv
from meta.op.core import CallValues
from meta.runtime.out_of_memory import is_out_of_memory, out_of_memory
from meta.vm.measuring.arguments import Copies
from meta.vm.measuring.backward import Backward, backward
from meta.vm.measuring.clocks import Call, Clock, clock_of
from meta.vm.measuring.contender import Contender, reason_of
from meta.vm.measuring.contenders import compile_kernels, dialects, made
from meta.vm.measuring.racing import MOST, PATIENCE, Lane, calls_in_batch, race
from meta.vm.measuring.reference import Reference, check, reference_of
from meta.vm.measuring.subject import Subject

MOST_CONFIGS = 16
"""Configurations of one kernel that are measured besides its default, if nobody says so."""

HOST_SAMPLES = 5
GLANCES, LONG = 3, 1e-3
"""Batches in which a kernel is timed at a glance, and the seconds of a call from which on one call
is enough.
"""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a contest is run.

    Attributes
    ----------
    how: "graph" or "eager". dialect: whose contenders count; None: everybody's. backward: whether
    the gradient's program is timed, too. budget: seconds after which no contender is made and no
    round begins; None: no limit. iters: rounds; None: as many as are needed. configs: how many of
    each kernel, and compiled: of one that a compiler makes; None: as many. breadth: of which
    kernels there are any. clock: what takes the time; None: that of the device. patience: seconds
    of rounds where there is no budget. left_out: why kernels of a dialect are not made, by its
    name. near: no other kernel is made if the first takes at most this share longer than the device
    takes to move its bytes, where that was measured (`meta.vm.measure_peaks`). far: a kernel that
    takes this many times as long as the fastest in its default configuration is made in no other.
    """

    how: str = "graph"
    dialect: str | None = None
    backward: bool = False
    budget: float | None = None
    iters: int | None = None
    configs: int = MOST_CONFIGS
    compiled: int | None = None
    breadth: Breadth = Breadth.ALL
    clock: Clock | None = None
    left_out: Mapping[str, str] = field(default_factory=dict)
    near: float | None = None
    far: float | None = None
    patience: float = PATIENCE


Steps = Generator[Sequence[Contender], None, list[Cost]]
"""A contest: gives the contenders that are to be compiled before it goes on; returns the costs."""


def contest(subject: Subject, rules: Rules) -> list[Cost]:
    """Return the cost of each contender, in the order in which dispatch asks.

    Raises OutOfMemory if there is no room for what they are run on.
    """
    (found,) = contests([(subject, rules)])
    if isinstance(found, OutOfMemory):
        raise found
    return found


def contests(wanted: Sequence[tuple[Subject, Rules]]) -> list[list[Cost] | OutOfMemory]:
    """Return the costs of several contests, or that there was no room for one. What is to be
    compiled for them is compiled together.
    """
    found: list[list[Cost] | OutOfMemory] = [[] for _ in wanted]
    clocks = [rules.clock or clock_of(subject.device, rules.how) for subject, rules in wanted]
    # Programs of gradients are not kept, and nothing is chosen by costs while they are made.
    # What is made in inference mode has no counter of writes.
    with (
        config.override(META_PROGRAM_CACHE=False),
        choosing(races=True),
        torch.inference_mode(False),
    ):
        running = {
            place: _steps(subject, rules, clock)
            for place, ((subject, rules), clock) in enumerate(zip(wanted, clocks, strict=True))
        }
        while running:
            requests = []
            for place, steps in list(running.items()):
                try:
                    requests.append(next(steps))
                    continue
                except StopIteration as done:
                    found[place] = done.value
                except Exception as error:
                    found[place] = _no_room(error, wanted[place][0])
                del running[place], steps  # and with it what it held
            compile_kernels(requests, clocks[0])
    return found


def _no_room(error: Exception, subject: Subject) -> OutOfMemory:
    """Return how the lack of memory ended a contest; raises any other error."""
    if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
        raise error
    return out_of_memory(
        error,
        subject.device,
        "the arguments and results of what is measured",
        op=subject.name,
        planned=sum(subject.bytes.values()),
        hint="smaller arrays; delete what nobody needs",
    )


def _steps(subject: Subject, rules: Rules, clock: Clock) -> Steps:
    deadline = None if rules.budget is None else clock.now() + rules.budget
    entered, reference = yield from _entered(subject, rules, clock, deadline)
    counted = [c for c in entered if rules.dialect in (None, c.dialect)]
    forward: dict[Contender, Timing] = {}
    host: dict[Contender, float | None] = {}
    if reference is not None and rules.iters != 0:
        copies = Copies(subject, reference.values)
        running = [c for c in counted if c.env is not None]
        timed = _lanes(running, subject, rules, clock, copies)
        host = {c: _host(c, subject, rules, clock, copies) for c in timed}
        copies.restore()
        _race(list(timed.values()), subject, rules, clock, deadline)
        forward = {c: lane.timing() for c, lane in timed.items()}
        del copies, timed  # the memory is free for the gradients
    back = Backward({}, 0)
    if reference is not None and rules.backward:
        back = backward(subject, reference, counted, clock, rounds=rules.iters, deadline=deadline)
    return [_cost(c, subject, forward.get(c), host.get(c), back) for c in counted]


def _entered(
    subject: Subject, rules: Rules, clock: Clock, deadline: float | None
) -> Generator[Sequence[Contender], None, tuple[list[Contender], Reference | None]]:
    """Make the contenders and run each once: the defaults of all dialects, then all configurations.
    Those that are wrong, or for which there is no time, are refused.
    """
    entered: list[Contender] = []
    reference: Reference | None = None
    best, eager = "", rules.how == "eager"

    def unneeded(dialect: str) -> str | None:
        """Return why a dialect takes no part, or none but its default."""
        if reference is None:
            return None
        if dialect in rules.left_out:
            return rules.left_out[dialect]
        if rules.dialect not in (None, dialect):
            return "is not asked for"
        return best or None

    def against(dialect: str) -> str | None:
        """Return why a kernel is not made."""
        if reference is not None and deadline is not None and clock.now() >= deadline:
            return f"was not measured: the budget of {rules.budget:g} s is used up"
        return unneeded(dialect)

    defaults: dict[str, Contender] = {}
    configured: dict[str, tuple[Configs, int]] = {}
    seconds: dict[str, float] = {}

    def enter(contender: Contender) -> None:
        nonlocal reference
        if contender.env is None:
            return
        if reference is None:
            reference = reference_of(contender, subject)
        else:
            check(contender, subject, reference)

    waiting = deque(dialects(subject, eager))
    while waiting:  # one after the other until one runs, then all others
        count = 1 if reference is None else len(waiting)
        names = [waiting.popleft() for _ in range(count)]
        firsts = {name: made(subject, name, (), clock, eager, against(name)) for name in names}
        for name, first in firsts.items():
            if first.env is not None and first.env.configs is not None:
                configured[name] = first.env.configs, _most_configs(first, subject, rules)
        defaults.update(firsts)
        yield list(firsts.values())
        for name, first in firsts.items():
            is_first = reference is None
            enter(first)
            if reference is None or first.env is None:
                continue
            if is_first and rules.near is not None:
                best = _near_peak(reference, subject, clock, rules.near)
            if rules.far is not None and (taken := _glance(first, subject, reference, clock)):
                seconds[name] = taken
    others = {
        name: [
            made(subject, name, config, clock, eager, against(name))
            for config in islice(configs.listed(), most)
        ]
        for name, (configs, most) in configured.items()
        if most and not unneeded(name) and not _is_far(name, seconds, rules)
    }
    yield [contender for made_of_one in others.values() for contender in made_of_one]
    for name, first in defaults.items():
        entered.append(first)
        for contender in others.get(name, ()):
            enter(contender)
            entered.append(contender)
    return entered, reference


def _is_far(name: str, seconds: Mapping[str, float], rules: Rules) -> bool:
    """Whether a dialect's kernel takes so long that its other configurations are not made."""
    if rules.far is None or name not in seconds:
        return False
    return seconds[name] > rules.far * min(seconds.values())


def _most_configs(first: Contender, subject: Subject, rules: Rules) -> int:
    """Return in how many other configurations a kernel takes part."""
    if first.env is None or not first.env.is_deferred:
        return rules.configs if rules.breadth >= Breadth.LIBRARIES else 0
    what, ops = subject.what, DIALECTS[first.dialect].ops
    fuses = isinstance(what, CallValues) and ops[what.op.name].fuses
    needed = Breadth.ALL if fuses else Breadth.UNFUSED
    if rules.breadth < needed:
        return 0
    return rules.configs if rules.compiled is None else rules.compiled


def _call(contender: Contender, subject: Subject, reference: Reference) -> Call:
    """Return a call of a kernel on arguments of its own."""
    env = contender.env
    assert env is not None
    outs = () if env.allocates else reference.expected[: len(subject.outputs)]
    return partial(env.run, *reference.copied(), *(torch.empty_like(t) for t in outs))


def _near_peak(reference: Reference, subject: Subject, clock: Clock, near: float) -> str:
    """Return why no other kernel can be much faster, empty if one can or nobody knows."""
    peaks = peaks_of(subject.device)
    if not peaks.measured:
        return ""
    call = _call(reference.contender, subject, reference)
    enough = (1 + near) * peaks.moving(sum(subject.bytes.values())) / 1e6
    for _ in range(HOST_SAMPLES):
        seconds = clock.once(call)
        if seconds <= enough:
            return (
                f"was not measured: the first is within {near:.0%} of what moving its bytes takes"
            )
        if seconds > max(LONG, 2 * enough):
            break  # it computes: once more would not be half of it
    return ""


def _is_recordable(env: OpEnv, subject: Subject) -> bool:
    """Whether a CUDA graph can hold a kernel, as far as anybody says."""
    return not env.not_capturable and all(t.is_static for t in subject.outputs)


def _glance(
    contender: Contender, subject: Subject, reference: Reference, clock: Clock
) -> float | None:
    """Return about how many seconds a kernel takes; None, and it is refused, if it fails."""
    assert contender.env is not None
    call = _call(contender, subject, reference)
    try:
        seconds = clock.once(call)
        if seconds >= LONG:
            return seconds
        batch = clock.batch([call] * HOST_SAMPLES, _is_recordable(contender.env, subject))
        return min(batch() for _ in range(GLANCES)) / HOST_SAMPLES
    except Exception as error:
        contender.refuse(f"fails when it is called again: {reason_of(error)}")
        return None


def _lanes(
    running: Sequence[Contender], subject: Subject, rules: Rules, clock: Clock, copies: Copies
) -> dict[Contender, Lane]:
    """Return what is timed: batches of calls, warmed up."""
    writes = bool(subject.written)
    lanes = {}
    for contender in running:
        assert contender.env is not None
        recordable = _is_recordable(contender.env, subject)
        (alone,) = contender.calls(subject, copies, rules.how, 1)
        try:
            clock.once(alone)
            count = calls_in_batch(clock.once(alone), copies.count, writes=writes)
            copies.restore()
            calls = contender.calls(subject, copies, rules.how, count)
            lane = Lane(clock.batch(calls, recordable), count, copies.restore)
            lane.batch()
        except Exception as error:
            contender.refuse(f"fails when it is called again: {reason_of(error)}")
        else:
            lanes[contender] = lane
    return lanes


def _race(
    lanes: Sequence[Lane], subject: Subject, rules: Rules, clock: Clock, deadline: float | None
) -> None:
    with bar(MOST if rules.iters is None else rules.iters, f"timing {subject.name}", 1.0) as shown:
        race(
            lanes,
            clock,
            rounds=rules.iters,
            deadline=deadline,
            patience=rules.patience,
            after_round=shown.update,
        )


def _host(
    contender: Contender, subject: Subject, rules: Rules, clock: Clock, copies: Copies
) -> float | None:
    """Return the microseconds that a launch keeps the host, where it does not wait for it."""
    (alone,) = contender.calls(subject, copies, rules.how, 1)
    found = [clock.host_seconds(alone) for _ in range(HOST_SAMPLES)]
    known = [seconds for seconds in found if seconds is not None]
    return median(known) * 1e6 if known else None


def _cost(
    contender: Contender,
    subject: Subject,
    forward: Timing | None,
    host: float | None,
    back: Backward,
) -> Cost:
    env = contender.env
    sizes = {**dict.fromkeys(BYTES, 0), **subject.bytes}
    if env is not None:
        sizes["workspace"] = env.workspace_bytes
        sizes["gradients"] = back.bytes
        sizes["state"] = env.state_bytes
    if host is None and forward is not None:
        host = forward.median
    return Cost(
        contender.dialect,
        contender.config,
        forward=forward if env is not None else None,
        backward=back.timings.get(contender.dialect) if env is not None else None,
        host=host if env is not None else None,
        compile=contender.compile if env is not None else None,
        bytes=sizes if env is not None else {},
        refused=contender.refused,
        source=source_of(contender.dialect),
    )
