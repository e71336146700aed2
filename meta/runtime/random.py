"""The keys of random numbers: one seed, one counter, the same on every device and dialect.

A draw is identified by (seed, counter); kernels expand it with a counter-based generator (Philox
4x32-10, Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), so a result depends
on the seed and the order of calls only. On a mesh a draw is identified by its stream, too, which
follows from the rank's place (`meta.runtime.mesh.RankMesh`): seed and counter are those of all
ranks.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meta.base.call_context import context, override_context
from meta.base.errors import ArgumentError
from meta.runtime import trace_checks
from meta.runtime.mesh import current_mesh

KEY_SLOT = "in_states"
"""The slot in which a random operator takes its key."""
KEYS_PER_BATCH = 1024
"""How many keys are computed at a time, at least."""
STREAM_MIX = 0x5851F42D4C957F2D
"""Keeps the seeds of streams apart from the keys of a seed."""


class Generator:
    """A stream of keys. Thread-safe.

    Parameters
    ----------
    seed: any int; its low 63 bits are used.

    >>> first, second = meta.random.Generator(7), meta.random.Generator(7)
    >>> [first.key() for _ in range(3)] == [second.key() for _ in range(3)]
    True
    >>> second.load_state((7, 1))  # the seed, and how many keys were taken
    >>> second.key() == meta.random.Generator(7).keys(2)[1].item()
    True
    """

    def __init__(self, seed: int = 0) -> None:
        self._lock = threading.Lock()
        self._stream = 0
        self.seed(seed)

    def seed(self, seed: int) -> None:
        """Start the stream anew; TraceError in code that is traced."""
        trace_checks.refuse_draw()
        if not isinstance(seed, int) or isinstance(seed, bool):
            raise ArgumentError("a seed must be an int", found=repr(seed))
        with self._lock:
            self._start(seed & (2**63 - 1), 0)

    def _start(self, seed: int, counter: int) -> None:
        self._seed, self._counter = seed, counter
        # Keys that are computed already, and the counter before the first of them.
        self._ahead, self._ahead_from = np.empty(0, dtype=np.int64), counter

    def key(self) -> int:
        """Return the next 63-bit key: a mix of seed and counter.

        Raises TraceError in code that is traced.
        """
        trace_checks.refuse_draw()
        here = _here()
        replayed = here.replayed
        if replayed == []:
            raise _replay_mismatch("more random numbers are drawn than the first time")
        key = int(self._next(1)[0]) if replayed is None else replayed.pop(0)
        for drawn in here.recorders:
            drawn.append(key)
        return key

    def keys(self, count: int) -> np.ndarray[Any, Any]:
        """Return the next ``count`` keys, those that as many calls of `key` return (int64).

        The result is for reading.
        """
        here = _here()
        if here.replayed is not None or here.recorders:
            return np.array([self.key() for _ in range(count)], dtype=np.int64)
        return self._next(count)

    def _next(self, count: int) -> np.ndarray[Any, Any]:
        """Return the next keys, which are computed many at a time, ahead of their use."""
        with self._lock:
            first = self._counter - self._ahead_from
            if not 0 <= first <= len(self._ahead) - count:
                self._ahead_from, first = self._counter, 0
                seed = self._seed
                if self._stream:
                    seed = int(_splitmix64(seed ^ STREAM_MIX, self._stream, 1)[0])
                self._ahead = _splitmix64(seed, self._counter + 1, max(KEYS_PER_BATCH, 16 * count))
            self._counter += count
            return self._ahead[first : first + count]

    def state(self) -> tuple[int, int]:
        """Return (seed, counter), for checkpoints."""
        return self._seed, self._counter

    def load_state(self, state: tuple[int, int]) -> None:
        """Continue from a saved state."""
        with self._lock:
            self._start(int(state[0]), int(state[1]))


def _splitmix64(seed: int, first: int, count: int) -> np.ndarray[Any, Any]:
    """Return the keys of counters from ``first`` on: SplitMix64's finaliser of seed and counter."""
    z = np.arange(first, first + count, dtype=np.uint64)
    z *= np.uint64(0x9E3779B97F4A7C15)
    z += np.uint64(seed & (2**64 - 1))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        z ^= z >> np.uint64(shift)
        z *= np.uint64(factor)
    z ^= z >> np.uint64(31)
    return (z >> np.uint64(1)).view(np.int64)


@dataclass(frozen=True, slots=True)
class RandomContext:
    """What decides the keys that are drawn here.

    Attributes
    ----------
    generator: that of a simulated rank, which takes the place of the default one there. recorders:
    lists to which keys are added. replayed: keys that are drawn again, None for new ones.
    """

    generator: Generator | None = None
    recorders: tuple[list[int], ...] = ()
    replayed: list[int] | None = None


_UNCHANGED = RandomContext()


def _here() -> RandomContext:
    return context.get().random or _UNCHANGED


class _Default(Generator):
    """The generator of the process; within `as_rank`, that of the rank. Its stream is that of the
    rank's place.
    """

    def _start(self, seed: int, counter: int) -> None:
        own = _here().generator
        if own is None:
            super()._start(seed, counter)
        else:
            own._start(seed, counter)

    def _next(self, count: int) -> np.ndarray[Any, Any]:
        own = _here().generator
        if own is not None:
            return own._next(count)
        stream = current_mesh().stream
        if stream != self._stream:
            with self._lock:
                self._stream = stream
                self._start(self._seed, self._counter)
        return super()._next(count)

    def state(self) -> tuple[int, int]:
        """Return (seed, counter), for checkpoints."""
        own = _here().generator
        return super().state() if own is None else own.state()


default = _Default()


@contextmanager
def as_rank(stream: int, state: tuple[int, int]) -> Iterator[Generator]:
    """Let draws of this thread in the block be those of a rank; yield its generator."""
    generator = Generator()
    generator._stream = stream
    generator.load_state(state)
    with override_context(random=replace(_here(), generator=generator)):
        yield generator


@contextmanager
def record_keys() -> Iterator[list[int]]:
    """Yield a list to which every key is added that this thread draws in the block."""
    keys: list[int] = []
    here = _here()
    with override_context(random=replace(here, recorders=(*here.recorders, keys))):
        yield keys


@contextmanager
def replay_keys(keys: Sequence[int]) -> Iterator[None]:
    """Let draws of this thread in the block have these keys, as `record_keys` noted them.

    Raises ArgumentError at the end if they were not as many.
    """
    left = list(keys)
    with override_context(random=replace(_here(), replayed=left)):
        yield
    if left:
        raise _replay_mismatch(f"{len(left)} of {len(keys)} numbers were not drawn again")


def _replay_mismatch(found: str) -> ArgumentError:
    return ArgumentError(
        "what is run again draws other random numbers than the first time",
        found=found,
        hint="a checkpointed block must do the same whenever it is run with the same arguments",
    )


def seed(value: int) -> None:
    """Seed the default generator.

    >>> meta.random.seed(7)
    >>> x = meta.random.uniform(2)
    >>> meta.random.seed(7)
    >>> (x == meta.random.uniform(2)).all().item()
    True
    """
    default.seed(value)
