"""A race: batches of all contenders in turn, until their times are known well enough.

Contenders that are timed one after the other meet different clock frequencies and neighbours, so
that each round times one batch of every contender, and begins with another one. What is reported
are the median and the 20th and 80th percentile over the rounds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from meta.cost.record import Timing
from meta.vm.measuring.clocks import Batch, Clock

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
        return Timing(
            median(self.samples),
            percentile(self.samples, 0.2),
            percentile(self.samples, 0.8),
            len(self.samples),
        )


def percentile(samples: Sequence[float], share: float) -> float:
    """Return the number below which a share of the samples lies, between two of them linearly."""
    ordered = sorted(samples)
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def race(
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
