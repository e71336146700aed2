"""Clocks: what times a batch of calls, on the host, on a stream, or as a CUDA graph.

A call returns to the host before a GPU has done its work, so that on CUDA the device takes the
time, between two events on its stream. A single call may be shorter than what a clock can tell:
clocks time batches of calls.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch

from meta.base.device import Device
from meta.base.errors import MetaWarning
from meta.dialect.core.failure import summary
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
