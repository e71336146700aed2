"""Contenders take turns, so that what else happens on the machine happens to all: `in_turns` by the
host's clock, `on_device` between CUDA events. `steps` are those of one, not waited for one by one.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, islice, pairwise, permutations
from typing import Any

import torch

# GNU OpenMP's threads look for work for up to 20 ms before they sleep, on a core that others need.
AWAKE_SECONDS, TURN_SECONDS, LEAST_CALLS = 0.025, 0.1, 3


def add_threads(
    parser: argparse.ArgumentParser, rounds: int = 10, threads: int | None = None
) -> None:
    """Add the options of a measurement on the CPU; threads: by default as many as torch takes."""
    count = torch.get_num_threads() if threads is None else threads
    parser.add_argument("--threads", type=int, default=count, help=f"threads of all ({count})")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each ({rounds})")


def set_threads(threads: int) -> None:
    """Let torch and TVM have so many threads; before TVM first runs in parallel, which reads it."""
    torch.set_num_threads(threads)
    os.environ["TVM_NUM_THREADS"] = str(threads)


def in_turns(
    calls: Mapping[str, Callable[[], Any]],
    rounds: int,
    seconds: float = TURN_SECONDS,
    of: Callable[[Sequence[float]], float] = statistics.median,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Return milliseconds by contender: the median, or what ``of`` says, of the calls of all its
    turns, each of so many seconds. clock: of a call, in seconds; the process's own counts nothing
    of what else runs on its core.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name] += _turn(call, seconds, clock)
    return {name: 1e3 * of(found) for name, found in times.items()}


def _turn(
    call: Callable[[], Any], length: float, clock: Callable[[], float] = time.perf_counter
) -> list[float]:
    """Return the seconds of the calls of one turn, after some that wake up its threads."""
    until = time.perf_counter() + AWAKE_SECONDS
    while time.perf_counter() < until:
        call()
    seconds: list[float] = []
    until = time.perf_counter() + length
    while len(seconds) < LEAST_CALLS or time.perf_counter() < until:
        start = clock()
        call()
        seconds.append(clock() - start)
    return seconds


def on_device(
    calls: Mapping[str, Callable[[], Any]], rounds: int, number: int = 1
) -> dict[str, float]:
    """Return milliseconds of a call by contender, the median of rounds of turns of ``number`` calls
    between CUDA events. They take turns in every order as often as in any other: in one fixed
    order, figures were off by 1.5 %.
    """
    times: dict[str, list[float]] = {name: [] for name in calls}
    for order in islice(cycle(permutations(calls)), rounds):
        for name in order:
            calls[name]()  # so that the clock and the caches are as they stay
            start = moment("cuda")
            for _ in range(number):
                calls[name]()
            end = moment("cuda")
            end.synchronize()
            times[name].append(start.elapsed_time(end) / number)
    return {name: statistics.median(found) for name, found in times.items()}


def steps(
    call: Callable[[], Any], device: str, number: int, warm_up: int
) -> tuple[list[float], list[float]]:
    """Return the milliseconds of some calls that are not waited for one by one, and of what the
    host does for each. device: "cpu" or "cuda".
    """
    for _ in range(warm_up):
        call()
    synchronize(device)
    host, marks = [], [moment(device)]
    for _ in range(number):
        start = time.perf_counter()
        call()
        host.append(1e3 * (time.perf_counter() - start))
        marks.append(moment(device))
    synchronize(device)
    if device == "cpu":
        return [1e3 * (end - start) for start, end in pairwise(marks)], host
    return [start.elapsed_time(end) for start, end in pairwise(marks)], host


def synchronize(device: str) -> None:
    """Wait for the device."""
    if device == "cuda":
        torch.cuda.synchronize()


def moment(device: str) -> Any:
    """Return the time, on CUDA an event between what the stream has to do."""
    if device == "cpu":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event
