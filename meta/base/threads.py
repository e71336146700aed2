"""Jobs on several threads: for compilers, which leave the interpreter to others while they work."""

from __future__ import annotations

import contextvars
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from functools import cache
from typing import Generic, TypeVar

from meta.base import config

MAX_THREADS = 16
"""Threads that compile where META_COMPILE_THREADS leaves it open; more wait for one another."""
T = TypeVar("T")


def compile_threads() -> int:
    """Return how many threads compile: what META_COMPILE_THREADS says, or one for each core."""
    wanted: int = config.get("META_COMPILE_THREADS")
    if wanted > 0:
        return wanted
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return min(cores or 1, MAX_THREADS)


def run_in_threads(
    jobs: Sequence[Callable[[], T]], done: Callable[[int], None] = lambda job: None
) -> list[T]:
    """Return the results of jobs, in order, each run in the caller's context (its knobs, say).

    Up to `compile_threads` run at a time. ``done`` is called with the number of each that ended, on
    the caller's thread. The threads end with the call: a process that is forked later has none to
    wait for. If jobs fail the others are run to their end, and the error of the first of them in
    their order is raised.
    """
    count = min(len(jobs), compile_threads())
    if count < 2:
        results = []
        for i, job in enumerate(jobs):
            results.append(job())
            done(i)
        return results
    with ThreadPoolExecutor(count, thread_name_prefix="meta-compile") as pool:
        numbers: dict[Future[T], int] = {
            pool.submit(contextvars.copy_context().run, job): i for i, job in enumerate(jobs)
        }
        waiting = set(numbers)
        while waiting:
            ended, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in ended:
                done(numbers[future])
        return [future.result() for future in numbers]


# Single flight: what takes long to make is made once for all threads that ask for it, in the
# background if it is begun ahead.


K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class SingleFlightCache(Generic[K, V]):
    """What a function makes of keys; ``limit`` of them are kept, those that were asked for last.

    Who asks for what another thread is making waits for it.
    """

    def __init__(self, make: Callable[[K], V], limit: int) -> None:
        self.make, self.limit = make, limit
        self.made: OrderedDict[K, Future[V]] = OrderedDict()
        self._lock = threading.Lock()
        if hasattr(os, "register_at_fork"):  # a child has none of the threads
            os.register_at_fork(after_in_child=self.forget)

    def __call__(self, key: K) -> V:
        """Return what is made of a key, now if it is not there; raises what making it raises."""
        found, is_new = self._wanted(key)
        if is_new:
            self._make(found, key)
        if found.exception() is not None:
            with self._lock:  # for whoever comes after what is wrong was put right
                if self.made.get(key) is found:
                    del self.made[key]
        return found.result()

    def begin(self, keys: Iterable[K]) -> None:
        """Let threads make what nobody has made, and do not wait."""
        for key in keys:
            found, is_new = self._wanted(key)
            if is_new:
                context = contextvars.copy_context()  # the caller's knobs
                threading.Thread(target=context.run, args=(self._in_turn, found, key)).start()

    def forget(self) -> None:
        """Forget what was made."""
        self._lock = threading.Lock()
        self.made.clear()

    def _wanted(self, key: K) -> tuple[Future[V], bool]:
        """Return what will be made, and whether the caller is to make it."""
        with self._lock:
            found = self.made.get(key)
            is_new = found is None
            if found is None:
                found = self.made[key] = Future()
            self.made.move_to_end(key)
            if len(self.made) > self.limit:
                self.made.popitem(last=False)
        return found, is_new

    def _in_turn(self, made: Future[V], key: K) -> None:
        with _thread_limit(compile_threads()):
            self._make(made, key)

    def _make(self, made: Future[V], key: K) -> None:
        try:
            made.set_result(self.make(key))
        except BaseException as error:  # an interrupt, too: others wait for the result
            made.set_exception(error)


@cache
def _thread_limit(threads: int) -> threading.BoundedSemaphore:
    """Return what lets so many threads at a time through."""
    return threading.BoundedSemaphore(threads)
