"""How many threads work on an operator, and how many calls of programs run beside one another.

ATen, its libraries and generated kernels share the threads of OpenMP, of which each thread that
calls has some of its own. So calls of several threads at the same time would have more threads than
there are cores, which take turns, and look for work in a loop while they wait for one another.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from meta.base import config
from meta.base.call_context import context
from meta.base.errors import ArgumentError, DistributedError, OutOfMemory

T = TypeVar("T")


def cores() -> int:
    """Return how many cores this process may use."""
    has_affinity = hasattr(os, "sched_getaffinity")
    return len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1


class Pool(Generic[T]):
    """Things of which each is in use by one thread at a time; the last that was given back first.

    first: those that are there. make: makes another one, up to ``most()`` of them; None: there are
    no others.
    """

    def __init__(
        self,
        first: list[T],
        make: Callable[[], T] | None = None,
        most: Callable[[], int] = lambda: 1,
    ) -> None:
        self._idle, self._count, self._make, self._most = first, len(first), make, most
        self._changed = threading.Condition(threading.Lock())
        self._waiting, self._closed = 0, False

    def take(self) -> T:
        """Return one that is idle, or a new one; wait for one that is given back. DistributedError
        for a simulated rank that would have to wait.
        """
        try:
            if not self._closed:
                return self._idle.pop()
        except IndexError:
            pass
        return self._later()

    def give(self, one: T) -> None:
        """Give one back."""
        self._idle.append(one)
        if self._waiting:  # which is set before the waiting thread looks once more
            with self._changed:
                self._changed.notify_all()

    def _later(self) -> T:
        with self._waits():
            while self._closed or not self._idle:
                make = None if self._closed or self._count >= self._most() else self._make
                if make is not None:
                    self._count += 1
                    break
                self._wait()
            else:
                return self._idle.pop()
        try:
            return make()
        except OutOfMemory:  # there is room for those that there are
            self._make = None
            self._has_fewer()
        except BaseException:
            self._has_fewer()
            raise
        return self.take()

    def _has_fewer(self) -> None:
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def _wait(self) -> None:
        if context.get().mesh is not None:  # who has it may wait for this one, in a collective
            raise DistributedError(
                "simulated ranks run one compiled program at the same time",
                hint="compile it on each rank, within what `simulate(...).run` calls",
            )
        self._changed.wait()

    @contextmanager
    def _waits(self) -> Iterator[None]:
        with self._changed:
            self._waiting += 1
            try:
                yield
            finally:
                self._waiting -= 1

    @contextmanager
    def all(self) -> Iterator[T]:
        """Wait until none is in use, and have one in a block, in which nobody else gets any."""
        had: list[T] = []
        with self._waits():
            while self._closed:
                self._wait()
            self._closed = True
            try:
                while len(had) < self._count:
                    if not self._idle:
                        self._wait()
                    had += self._idle[:1]
                    del self._idle[:1]
            except BaseException:
                self._open(had)
                raise
        try:
            yield had[0]
        finally:
            with self._changed:
                self._open(had)

    def _open(self, had: list[T]) -> None:
        self._closed = False
        self._idle.extend(had)
        self._changed.notify_all()


class _Slots:
    """Those of calls on the CPU that run beside one another, of so many threads each."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._free: Pool[None] = Pool([None] * max(cores() // threads, 1))
        self._local = threading.local()

    @contextmanager
    def one(self) -> Iterator[None]:
        """Wait for one, and have it in a block; what is called in the block by this thread runs in
        the same one.
        """
        if getattr(self._local, "is_inside", False) or context.get().mesh is not None:
            yield
            return
        if not hasattr(self._local, "is_inside"):
            import torch

            torch.set_num_threads(self.threads)  # which holds for the thread that calls it
        self._free.take()
        self._local.is_inside = True
        try:
            yield
        finally:
            self._local.is_inside = False
            self._free.give(None)


slots: _Slots | None = None
"""What limits calls that run beside one another; None before `set_num_threads` is called."""


def set_num_threads(count: int) -> None:
    """Let ``count`` threads work on an operator on the CPU: on one of ATen, of its libraries, or on
    a generated kernel. It holds for all threads that call some.

    Programs that several threads call at the same time then run beside one another as long as their
    threads have a core each; others wait for their turn. So a server that answers many small
    requests sets 1, and one that answers one at a time the number of cores.

    Called before torch is imported, it lets OpenMP's threads sleep as soon as they have nothing to
    do, unless the environment says otherwise (OMP_WAIT_POLICY): else they look for work in a loop
    for milliseconds after each call, which others could use.

    Raises ArgumentError for a count that is not a whole number from 1 on.

    >>> meta.set_num_threads(1)
    >>> meta.get_num_threads()
    1
    """
    global slots
    if not isinstance(count, int) or isinstance(count, bool) or count < 1:
        raise ArgumentError("so many threads cannot work", expected="1 or more", found=repr(count))
    if "torch" not in sys.modules:
        config.sleep_when_idle()
    import torch

    torch.set_num_threads(count)
    slots = _Slots(count)


def get_num_threads() -> int:
    """Return how many threads work on an operator on the CPU: as many as `set_num_threads` was
    told, else as OMP_NUM_THREADS in the environment says, else one for each core.

    >>> meta.set_num_threads(2)
    >>> meta.get_num_threads()
    2
    >>> meta.set_num_threads(1)
    """
    import torch

    return torch.get_num_threads()


def most_calls() -> int:
    """Return how many calls on the CPU have a core for each of their threads."""
    return max(cores() // get_num_threads(), 1)
