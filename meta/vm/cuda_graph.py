"""The recorder of CUDA graphs: torch's, so that its allocator gives what recorded kernels allocate
memory of the graph's own. Kernels of all dialects run on torch's current stream, so it records all.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

import torch

from meta.base.device import Device


class CudaRecorder:
    """Records the graphs of one program. They share a pool of memory: what one needs for itself
    only may be another's as well, since they do not run at the same time.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.pool = torch.cuda.graph_pool_handle()

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        """Record the kernels that ``body`` launches on the current stream, run them once, and
        return what launches them again. If it raises, nothing was run.
        """
        with torch.cuda.device(self.device.ordinal), _collecting_nothing():
            here, stream = torch.cuda.current_stream(), _stream(self.device.ordinal)
            stream.wait_stream(here)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                # Other threads may allocate and copy meanwhile.
                graph.capture_begin(pool=self.pool, capture_error_mode="thread_local")
                try:
                    body()
                except BaseException:
                    with suppress(RuntimeError):  # it says again that something went wrong
                        graph.capture_end()
                    raise
                graph.capture_end()
            here.wait_stream(stream)
            graph.replay()
        return graph.replay

    def is_busy(self) -> bool:
        """Whether the current stream is being recorded, into a graph of somebody else."""
        return torch.cuda.is_current_stream_capturing()

    def pool_bytes(self) -> int:
        """Return the bytes of the pool."""
        segments = torch.cuda.memory_snapshot()
        return sum(s["total_size"] for s in segments if s["segment_pool_id"] == self.pool)


@lru_cache
def _stream(ordinal: int) -> torch.cuda.Stream:
    """Return the stream on which graphs are recorded; libraries keep a workspace for it."""
    return torch.cuda.Stream(ordinal)


@contextmanager
def _collecting_nothing() -> Iterator[None]:
    """Keep the garbage collector from freeing another graph while one is recorded."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
