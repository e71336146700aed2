"""`benchmark`: makes, checks and times all contenders of a workload, and says what each costs.

The first contender in the order of dispatch that runs is the one whose results count. Another one
with other results, or that raises an error or breaks a promise, is left out with the reason.

A benchmark is a generator, which pauses where kernels are to be compiled. `benchmarks` lets several
of them go on side by side: what they wait for is compiled in one go, on all cores, which takes half
the time. One of them runs at a time, so that nothing else goes on while kernels are timed.
"""

from __future__ import annotations

import math
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
from meta.dialect.core import DIALECTS, FUSED, Unsupported, candidates, compile_together
from meta.dialect.core.openv import Configs, OpEnv
from meta.dialect.core.preference import Config, current
from meta.ir import Function
from meta.op.core import CallValues
from meta.runtime.out_of_memory import is_out_of_memory, out_of_memory
from meta.vm.benchmark.contender import Contender, Reference, kernel_of, reason_of, reference_of
from meta.vm.benchmark.gradient import Backward, backward
from meta.vm.benchmark.interleave import (
    MOST,
    PATIENCE,
    Clock,
    Lane,
    clock_of,
    interleave,
    warm_lane,
)
from meta.vm.benchmark.isolated import trial
from meta.vm.benchmark.workload import Copies, Workload

MOST_CONFIGS = 16
"""Configurations of one kernel that are measured besides its default, if nobody says so."""
HOST_SAMPLES = 5
GLANCES, LONG = 3, 1e-3
"""Batches in which a kernel is timed at a glance, and the seconds of a call from which on one call
is enough.
"""


@dataclass(frozen=True, slots=True)
class Rules:
    """How a benchmark is run.

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


Requests = Generator[Sequence[Contender], None, None]
"""Gives the contenders that are to be compiled before it goes on."""


def benchmark(workload: Workload, rules: Rules) -> list[Cost]:
    """Return the cost of each contender, in the order in which dispatch asks.

    Raises OutOfMemory if there is no room for what they are run on.
    """
    (found,) = benchmarks([(workload, rules)])
    if isinstance(found, OutOfMemory):
        raise found
    return found


def benchmarks(wanted: Sequence[tuple[Workload, Rules]]) -> list[list[Cost] | OutOfMemory]:
    """Return the costs of several workloads, or that there was no room for one. What is to be
    compiled for them is compiled together.
    """
    found: list[list[Cost] | OutOfMemory] = [[] for _ in wanted]
    unkept = config.override(META_PROGRAM_CACHE=False)  # programs of gradients
    # Nothing is chosen by costs while kernels are made. What is made in inference mode has no
    # counter of writes.
    with unkept, choosing(races=True), torch.inference_mode(False):
        waiting = {place: _Benchmark(*one) for place, one in enumerate(wanted)}
        running = {place: one.requests() for place, one in waiting.items()}
        clocks = [one.clock for one in waiting.values()]
        while running:
            requests = []
            for place, steps in list(running.items()):
                try:
                    requests.append(next(steps))
                    continue
                except StopIteration:
                    found[place] = waiting[place].costs
                except Exception as error:
                    found[place] = _no_room(error, wanted[place][0])
                del running[place], waiting[place], steps  # and with it what it held
            compile_kernels(requests, clocks[0])
    return found


def _no_room(error: Exception, workload: Workload) -> OutOfMemory:
    """Return how the lack of memory ended a benchmark; raises any other error."""
    if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
        raise error
    return out_of_memory(
        error,
        workload.device,
        "the arguments and results of what is measured",
        op=workload.name,
        planned=sum(workload.bytes.values()),
        hint="smaller arrays; delete what nobody needs",
    )


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
        for request in requests if len(requests) > 1 else [[c] for c in waiting]:
            compile_kernels([request], clock)
        return
    share = (clock.now() - start) * 1e3 / max(len(waiting), 1)
    for contender in waiting:
        contender.compile = (contender.compile or 0.0) + share


class _Benchmark:
    """One benchmark.

    Attributes
    ----------
    costs: of the contenders, when it has ended. reference: the first that runs; None until then.
    """

    def __init__(self, workload: Workload, rules: Rules) -> None:
        self.workload, self.rules = workload, rules
        self.clock = rules.clock or clock_of(workload.device, rules.how)
        self.deadline = None if rules.budget is None else self.clock.now() + rules.budget
        self.reference: Reference | None = None
        self.costs: list[Cost] = []
        # Why the first one is so fast that none but the default of its dialect takes part.
        self._best = ""

    def requests(self) -> Requests:
        """Run it, from one kernel to be compiled to the next."""
        rules = self.rules
        entered = yield from self._entered()
        counted = [c for c in entered if rules.dialect in (None, c.dialect)]
        forward: dict[Contender, Timing] = {}
        host: dict[Contender, float | None] = {}
        back = Backward({}, 0)
        if self.reference is not None and rules.iters != 0:
            copies = Copies(self.workload, self.reference.values)
            timed = self._lanes([c for c in counted if c.env is not None], copies)
            host = {c: self._host(c, copies) for c in timed}
            copies.restore()
            self._interleave(list(timed.values()))
            forward = {c: lane.timing() for c, lane in timed.items()}
            del copies, timed  # the memory is free for the gradients
        if self.reference is not None and rules.backward:
            back = backward(
                self.workload,
                self.reference,
                counted,
                self.clock,
                rounds=rules.iters,
                deadline=self.deadline,
            )
        self.costs = [self._cost(c, forward.get(c), host.get(c), back) for c in counted]

    def _entered(self) -> Generator[Sequence[Contender], None, list[Contender]]:
        """Make the contenders and run each once: the defaults of all dialects, then all
        configurations. Those that are wrong, or for which there is no time, are refused.
        """
        rules = self.rules
        defaults: dict[str, Contender] = {}
        configured: dict[str, tuple[Configs, int]] = {}
        seconds: dict[str, float] = {}
        waiting = deque(self._dialects())
        while waiting:  # one after the other until one runs, then all others
            count = 1 if self.reference is None else len(waiting)
            firsts = {name: self._made(name) for name in (waiting.popleft() for _ in range(count))}
            for name, first in firsts.items():
                if first.env is not None and first.env.configs is not None:
                    configured[name] = first.env.configs, self._most_configs(first.env, name)
            defaults.update(firsts)
            yield list(firsts.values())
            for name, first in firsts.items():
                is_first = self.reference is None
                self._enter(first)
                if self.reference is None or first.env is None:
                    continue
                if is_first and rules.near is not None:
                    self._best = self._near_peak(self.reference, rules.near)
                if rules.far is not None and (taken := self._glance(first, self.reference)):
                    seconds[name] = taken
        longest = math.inf if rules.far is None else rules.far * min(seconds.values(), default=0.0)
        others = {
            name: [self._made(name, config) for config in islice(configs.listed(), most)]
            for name, (configs, most) in configured.items()
            if most and self._unneeded(name) is None and seconds.get(name, 0.0) <= longest
        }
        yield [contender for made in others.values() for contender in made]
        for contender in (contender for made in others.values() for contender in made):
            self._enter(contender)
        return [c for name, first in defaults.items() for c in (first, *others.get(name, ()))]

    def _dialects(self) -> list[str]:
        """Return the names of those that may have a kernel, in the order in which dispatch asks."""
        what = self.workload.what
        if isinstance(what, Function):
            return [what.attrs[FUSED]]
        eager = self.rules.how == "eager"
        found = candidates(what.op, current(), what.device, eager=eager)
        return list(dict.fromkeys(one.dialect.name for one in found))

    def _unneeded(self, dialect: str) -> str | None:
        """Return why a dialect takes no part, or none but its default."""
        if self.reference is None:
            return None
        if dialect in self.rules.left_out:
            return self.rules.left_out[dialect]
        if self.rules.dialect not in (None, dialect):
            return "is not asked for"
        return self._best or None

    def _made(self, dialect: str, config: Config = ()) -> Contender:
        """Make a kernel, which may not be compiled yet, unless there is a reason against it. One
        that may hang is tried in a process of its own before.
        """
        workload, eager = self.workload, self.rules.how == "eager"
        contender, owner = Contender(dialect, config), DIALECTS[dialect]
        late = self.deadline is not None and self.clock.now() >= self.deadline
        if late and self.reference is not None:
            reason = f"was not measured: the budget of {self.rules.budget:g} s is used up"
        else:
            reason = self._unneeded(dialect) or ""
        if not reason and owner.time_limit is not None:
            # Where it does not run at all there is nothing to try.
            reason = current().refusal(dialect) or owner.refusal(workload.device) or ""
            reason = reason or trial(workload, dialect, config, owner.time_limit, eager=eager) or ""
        if reason:
            contender.refuse(reason)
            return contender
        start = self.clock.now()
        try:
            contender.env = kernel_of(workload, dialect, config, eager=eager)
        except Unsupported as refusal:
            contender.refuse(str(refusal))
        except Exception as error:
            contender.refuse(f"cannot be made: {reason_of(error)}")
        else:
            contender.compile = (self.clock.now() - start) * 1e3
        return contender

    def _most_configs(self, env: OpEnv, dialect: str) -> int:
        """Return in how many other configurations a kernel takes part."""
        rules, what = self.rules, self.workload.what
        if not env.is_deferred:
            return rules.configs if rules.breadth >= Breadth.LIBRARIES else 0
        fuses = isinstance(what, CallValues) and DIALECTS[dialect].ops[what.op.name].fuses
        if rules.breadth < (Breadth.ALL if fuses else Breadth.UNFUSED):
            return 0
        return rules.configs if rules.compiled is None else rules.compiled

    def _enter(self, contender: Contender) -> None:
        """Run a contender once, and compare its results with those of the first one."""
        if contender.env is None:
            return
        if self.reference is None:
            self.reference = reference_of(contender, self.workload)
        else:
            self.reference.check(contender, self.workload)

    def _near_peak(self, reference: Reference, near: float) -> str:
        """Return why no other kernel can be much faster, empty if one can or nobody knows."""
        peaks = peaks_of(self.workload.device)
        if not peaks.measured:
            return ""
        call = reference.call(reference.contender, self.workload)
        enough = (1 + near) * peaks.moving(sum(self.workload.bytes.values())) / 1e6
        for _ in range(HOST_SAMPLES):
            seconds = self.clock.once(call)
            if seconds <= enough:
                moving = "what moving its bytes takes"
                return f"was not measured: the first is within {near:.0%} of {moving}"
            if seconds > max(LONG, 2 * enough):
                break  # it computes: once more would not be half of it
        return ""

    def _glance(self, contender: Contender, reference: Reference) -> float | None:
        """Return about how many seconds a kernel takes; None, and it is refused, if it fails."""
        call = reference.call(contender, self.workload)
        try:
            seconds = self.clock.once(call)
            if seconds >= LONG:
                return seconds
            batch = self.clock.batch([call] * HOST_SAMPLES, self._is_recordable(contender))
            return min(batch() for _ in range(GLANCES)) / HOST_SAMPLES
        except Exception as error:
            contender.refuse(f"fails when it is called again: {reason_of(error)}")
            return None

    def _is_recordable(self, contender: Contender) -> bool:
        """Whether a CUDA graph can hold a kernel, as far as anybody says."""
        assert contender.env is not None
        return not contender.env.not_capturable and all(t.is_static for t in self.workload.outputs)

    def _lanes(self, running: Sequence[Contender], copies: Copies) -> dict[Contender, Lane]:
        """Return what is timed: batches of calls, warmed up."""
        lanes = {}
        for contender in running:
            try:
                lanes[contender] = warm_lane(
                    self.clock,
                    partial(contender.calls, self.workload, copies, self.rules.how),
                    copies.count,
                    writes=bool(self.workload.written),
                    recordable=self._is_recordable(contender),
                    prepare=copies.restore,
                )
            except Exception as error:
                contender.refuse(f"fails when it is called again: {reason_of(error)}")
        return lanes

    def _interleave(self, lanes: Sequence[Lane]) -> None:
        rules = self.rules
        rounds = MOST if rules.iters is None else rules.iters
        with bar(rounds, f"timing {self.workload.name}", 1.0) as shown:
            interleave(
                lanes,
                self.clock,
                rounds=rules.iters,
                deadline=self.deadline,
                patience=rules.patience,
                after_round=shown.update,
            )

    def _host(self, contender: Contender, copies: Copies) -> float | None:
        """Return the microseconds that a launch keeps the host, where it does not wait for it."""
        (alone,) = contender.calls(self.workload, copies, self.rules.how, 1)
        found = [self.clock.host_seconds(alone) for _ in range(HOST_SAMPLES)]
        known = [seconds for seconds in found if seconds is not None]
        return median(known) * 1e6 if known else None

    def _cost(
        self, contender: Contender, forward: Timing | None, host: float | None, back: Backward
    ) -> Cost:
        env, dialect = contender.env, contender.dialect
        source = source_of(dialect)
        if env is None:
            return Cost(dialect, contender.config, refused=contender.refused, source=source)
        sizes = {**dict.fromkeys(BYTES, 0), **self.workload.bytes}
        sizes |= {"workspace": env.workspace_bytes, "gradients": back.bytes}
        sizes["state"] = env.state_bytes
        return Cost(
            dialect,
            contender.config,
            forward=forward,
            backward=back.timings.get(dialect),
            host=forward.median if host is None and forward is not None else host,
            compile=contender.compile,
            bytes=sizes,
            source=source,
        )
