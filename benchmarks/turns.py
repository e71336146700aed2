"""Contenders on the CPU take turns, so that what else happens on the machine happens to all."""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Mapping
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


def in_turns(calls: Mapping[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Return milliseconds by contender: the median of the calls of all its turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name] += _turn(call)
    return {name: 1e3 * statistics.median(seconds) for name, seconds in times.items()}


def _turn(call: Callable[[], Any]) -> list[float]:
    """Return the seconds of the calls of one turn, after some that wake up its threads."""
    until = time.perf_counter() + AWAKE_SECONDS
    while time.perf_counter() < until:
        call()
    seconds: list[float] = []
    until = time.perf_counter() + TURN_SECONDS
    while len(seconds) < LEAST_CALLS or time.perf_counter() < until:
        start = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - start)
    return seconds
