"""How long calls of a compiled module take, and how much memory they need."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean, stdev
from typing import Any

import torch

from meta.base.device import Device
from meta.base.errors import ArgumentError
from meta.base.html import bytes_text, time_text


@dataclass(frozen=True, slots=True)
class Benchmark:
    """The time of a call, and the memory that it takes.

    Attributes
    ----------
    times: for each repeat, the mean seconds of a call. count: calls of a repeat.
    device: where it ran. peak_bytes: what the program plans for everything but inputs, constants
    and what is computed of constants. measured_bytes: on CUDA, the most that was allocated while it
    ran, beyond what was before; None elsewhere.
    """

    times: tuple[float, ...]
    count: int
    device: Device
    peak_bytes: int
    measured_bytes: int | None = None

    @property
    def mean(self) -> float:
        """Seconds of a call, the mean of all repeats."""
        return fmean(self.times)

    @property
    def spread(self) -> float:
        """The standard deviation of the repeats, in seconds; 0 of a single one."""
        return stdev(self.times) if len(self.times) > 1 else 0.0

    def record(self) -> dict[str, Any]:
        """Return this as values that JSON has."""
        return {
            "device": str(self.device),
            "mean_seconds": self.mean,
            "spread_seconds": self.spread,
            "times": list(self.times),
            "count": self.count,
            "peak_bytes": self.peak_bytes,
            "measured_bytes": self.measured_bytes,
        }

    def __str__(self) -> str:
        measured = self.measured_bytes
        more = "" if measured is None else f", {bytes_text(measured)} measured"
        return (
            f"{time_text(self.mean)} a call on {self.device}, spread {time_text(self.spread)} of "
            f"{len(self.times)} x {self.count} calls; {bytes_text(self.peak_bytes)} planned{more}"
        )


def benchmark(
    run: Callable[[], object], device: Device, peak_bytes: int, count: int, repeat: int, warmup: int
) -> Benchmark:
    """Call a function ``warmup`` times, and then ``repeat`` times ``count`` times; return how long
    that took. On CUDA the device is waited for at both ends of a repeat.

    Raises ArgumentError for numbers of calls that make no sense.
    """
    if count < 1 or repeat < 1 or warmup < 0:
        raise ArgumentError(
            "a benchmark needs a call",
            expected="count >= 1, repeat >= 1, warmup >= 0",
            found=f"count={count}, repeat={repeat}, warmup={warmup}",
        )
    cuda = device.kind == "cuda"
    for _ in range(warmup):
        run()
    before = 0
    if cuda:
        torch.cuda.synchronize(device.ordinal)
        torch.cuda.reset_peak_memory_stats(device.ordinal)
        before = torch.cuda.memory_allocated(device.ordinal)
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        for _ in range(count):
            run()
        if cuda:
            torch.cuda.synchronize(device.ordinal)
        times.append((time.perf_counter() - started) / count)
    most = torch.cuda.max_memory_allocated(device.ordinal) - before if cuda else None
    return Benchmark(tuple(times), count, device, peak_bytes, most)
