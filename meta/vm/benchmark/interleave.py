"""Clocks, and interleaving: batches of all contenders are timed in turn, until their times are
known well enough.

A call returns to the host before a GPU has done its work, so that on CUDA the device takes the
time, between two events on its stream. A single call may be shorter than what a clock can tell:
clocks time batches of calls, on the host, on a stream, or as a CUDA graph.

Contenders that are timed one after the other meet different clock frequencies and neighbours, so
that each round times one batch of every contender, and begins with another one. What is reported
are the median and the 20th and 80th percentile over the rounds.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import torch

from meta.base.device import Device
from meta.base.errors import MetaWarning
from meta.cost.record import Timing
from meta.dialect.core.backend_errors import summary
from meta.runtime.out_of_memory import is_out_of_memory
from meta.vm.graphs.capture import CudaRecorder

Call = Callable[[], object]
Batch = Callable[[], float]
"""Runs its calls once, and returns the seconds that they took."""


class Clock:
    """The host's clock. Tests have one of their own, which overrides `now`."""

    def now(self) -> float:
        """Return seconds since any moment."""
        return time.perf_counter()

    def batch(self, calls: Sequence[Call], recordable: bool = True) -> Batch:
        """Return what makes these calls in order, and times them together. ``recordable``: whether
        a CUDA graph can hold them.
        """

        def run() -> float:
            start = self.now()
            for call in calls:
                call()
            return self.now() - start

        return run

    def once(self, call: Call) -> float:
        """Return the seconds of one call."""
        return self.batch([call], recordable=False)()

    def host_seconds(self, call: Call) -> float | None:
        """Return how long a call keeps the host; None if that is as long as it takes."""
        return None


class StreamClock(Clock):
    """The clock of a GPU, whose kernels the host launches one by one.

    Where launching takes longer than the kernels, the time is that of the launches.
    """

    def __init__(self, device: Device) -> None:
        self.device = torch.device(device)

    def batch(self, calls: Sequence[Call], recordable: bool = True) -> Batch:
        """Return what makes these calls in order on the current stream, and times them."""

        def work() -> None:
            for call in calls:
                call()

        return self._between_events(work)

    def host_seconds(self, call: Call) -> float | None:
        """Return how long a call keeps the host while the device has nothing else to do."""
        torch.cuda.synchronize(self.device)
        start = self.now()
        call()
        seconds = self.now() - start
        torch.cuda.synchronize(self.device)
        return seconds

    def _between_events(self, work: Callable[[], object]) -> Batch:
        event: Any = torch.cuda.Event  # which has no annotations
        begin, end = event(enable_timing=True), event(enable_timing=True)

        def run() -> float:
            with torch.cuda.device(self.device):
                begin.record()
                work()
                end.record()
                end.synchronize()
            return float(begin.elapsed_time(end)) * 1e-3

        return run


class GraphClock(StreamClock):
    """The clock of a GPU that replays the kernels of a batch as one CUDA graph, as compiled
    programs do: a kernel is not launched by the host, and takes what it takes on the device.

    All graphs share one pool of memory. They never run at the same time, and nobody reads what they
    made.
    """

    def __init__(self, device: Device) -> None:
        super().__init__(device)
        self._recorder = CudaRecorder(device)

    def batch(self, calls: Sequence[Call], recordable: bool = True) -> Batch:
        """Record these calls, and return what replays them. What cannot be recorded is launched by
        the host, as a program does with it; a MetaWarning where nobody said so.
        """

        def body() -> None:
            for call in calls:
                call()

        replay = body
        if recordable:
            try:
                with warnings.catch_warnings():
                    warnings.filterwarnings("ignore", "The CUDA Graph is empty")  # as the arrays
                    replay = self._recorder.record(body)
            except Exception as error:
                if is_out_of_memory(error):
                    raise
                warnings.warn(
                    "a kernel cannot be recorded in a CUDA graph, and is timed as the host launches"
                    f" it: {summary(error)}. Its dialect does not say so (not_capturable=)",
                    MetaWarning,
                    stacklevel=2,
                )
        return self._between_events(replay)

    def once(self, call: Call) -> float:
        """Return the seconds of one call, which the host launches."""
        return super().batch([call])()


def clock_of(device: Device, how: str) -> Clock:
    """Return the clock of a device for calls that are run as ``how`` says."""
    if device.kind == "cpu":
        return Clock()
    return GraphClock(device) if how == "graph" else StreamClock(device)


FEWEST, MOST = 7, 100
"""Rounds at least and at most, where the caller does not say how many."""
SETTLED = 0.01
"""The uncertainty of a median, as a share of it, from which on no more rounds are needed."""
HOPELESS, EARLIEST = 1.5, 3
"""How many times as long as the fastest a contender takes that is timed no further, and after how
many rounds: even its best sample has to be so far behind the median of the fastest."""
BATCH_SECONDS = 5e-4
"""How long a batch should take, so that reading the clock counts for little."""
LONGEST_BATCH = 512
"""Calls in a batch, about."""
BATCH_LIMIT = 0.5
"""Seconds beyond which a batch does not take all copies in turn."""
PATIENCE = 3.0
"""Seconds that the rounds of one race take at most, if nobody says so: kernels of seconds do not
settle before."""


@dataclass(eq=False, slots=True)
class Lane:
    """One contender in a race.

    Attributes
    ----------
    batch: times ``calls`` calls. prepare: done before each batch, and not timed. samples:
    microseconds of one call, by round.
    """

    batch: Batch
    calls: int
    prepare: Callable[[], None] = lambda: None
    samples: list[float] = field(default_factory=list)

    def run(self) -> None:
        """Time one batch."""
        self.prepare()
        self.samples.append(self.batch() / self.calls * 1e6)

    @property
    def is_settled(self) -> bool:
        """Whether the median is known well: of n normal samples its standard error is 0.74 times
        the distance of the two percentiles, divided by the root of n.
        """
        found = self.timing()
        error = 0.74 * (found.p80 - found.p20) / math.sqrt(len(self.samples))
        return error <= SETTLED * found.median

    def timing(self) -> Timing:
        """Return what the samples say."""
        return Timing.of(self.samples)


def warm_lane(
    clock: Clock,
    calls: Callable[[int], Sequence[Call]],
    copies: int = 1,
    *,
    writes: bool = False,
    recordable: bool = True,
    prepare: Callable[[], None] = lambda: None,
) -> Lane:
    """Return a lane with as many calls in a batch as the clock needs, warmed up.

    calls: returns so many calls, which take ``copies`` of their arguments in turn. writes: whether
    they write these. recordable: see `Clock.batch`. prepare: see `Lane`.
    """
    (alone,) = calls(1)
    clock.once(alone)
    count = calls_in_batch(clock.once(alone), copies, writes=writes)
    prepare()
    lane = Lane(clock.batch(calls(count), recordable), count, prepare)
    lane.batch()
    return lane


def interleave(
    lanes: Sequence[Lane],
    clock: Clock,
    *,
    rounds: int | None = None,
    deadline: float | None = None,
    patience: float = PATIENCE,
    after_round: Callable[[], object] = lambda: None,
) -> None:
    """Time the lanes in turn.

    rounds: how many; None: from `FEWEST` to `MOST`, until the median of each is known, where lanes
    that are far behind leave before. deadline: the time of the clock after which no round
    begins but the first; None: ``patience`` seconds from now, unless somebody says how many rounds.
    """
    if deadline is None:
        deadline = clock.now() + patience if rounds is None else math.inf
    running, done = list(lanes), 0
    while running and done < (MOST if rounds is None else rounds):
        if done and clock.now() >= deadline:
            return
        first = done % len(running)
        for lane in (*running[first:], *running[:first]):
            lane.run()
        done += 1
        after_round()
        if rounds is None and done >= EARLIEST:
            most = HOPELESS * min(median(lane.samples) for lane in running)
            running = [x for x in running if min(x.samples) <= most]
        if rounds is None and done >= FEWEST and all(lane.is_settled for lane in running):
            return


def calls_in_batch(seconds: float, copies: int, *, writes: bool) -> int:
    """Return how many calls a batch has, if one takes about so long: enough for the clock, all
    copies equally often. A copy that is written is used once.
    """
    short = seconds * LONGEST_BATCH <= BATCH_SECONDS
    wanted = LONGEST_BATCH if short else BATCH_SECONDS / seconds
    count = copies if writes else copies * max(1, round(wanted / copies))
    return count if count * seconds <= BATCH_LIMIT else max(1, int(BATCH_LIMIT / seconds))
