"""Jobs on several threads: for compilers, which leave the interpreter to others while they work."""

from __future__ import annotations

import contextvars
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from typing import TypeVar

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
