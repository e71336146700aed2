"""The recorder of CUDA graphs: torch's, so that its allocator gives what recorded kernels allocate
memory of the graph's own. Kernels of all dialects run on torch's current stream, so it records all.
"""

from __future__ import annotations

import gc
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

import torch

from meta.base.device import Device

_ONE = threading.Lock()
"""One recording at a time: all are made on one stream."""


class CudaRecorder:
    """Records the graphs of one program. They share a pool of memory: what one needs for itself
    only may be another's as well, since they do not run at the same time.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.pools = [torch.cuda.graph_pool_handle()]

    def record(self, body: Callable[[], None]) -> Callable[[], None]:
        """Record the kernels that ``body`` launches on the current stream, run them once, and
        return what launches them again. If it raises, nothing was run.
        """
        ordinal = self.device.ordinal
        with _ONE, torch.cuda.device(ordinal), _collecting_nothing(), _own_workspaces():
            here, stream = torch.cuda.current_stream(), _stream(ordinal)
            stream.wait_stream(here)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.stream(stream):
                # Other threads may allocate and copy meanwhile.
                graph.capture_begin(pool=self.pools[-1], capture_error_mode="thread_local")
                try:
                    body()
                    graph.capture_end()
                except BaseException:
                    self._abandon(graph)
                    raise
            here.wait_stream(stream)
            graph.replay()
        return graph.replay

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a recording in which something went wrong."""
        with suppress(RuntimeError), warnings.catch_warnings():  # it says so again
            warnings.simplefilter("ignore")  # that nothing was recorded
            graph.capture_end()
        with suppress(RuntimeError):  # an end that raises leaves the allocator with the pool
            torch._C._cuda_endAllocateToPool(self.device.ordinal, self.pools[-1])
        # With the graph torch lets go of the pool, if it is the first one in it.
        self.pools.append(torch.cuda.graph_pool_handle())

    def is_busy(self) -> bool:
        """Whether the current stream is being recorded, into a graph of somebody else."""
        return torch.cuda.is_current_stream_capturing()

    def pool_bytes(self) -> int:
        """Return the bytes of the pools."""
        segments = torch.cuda.memory_snapshot()
        return sum(s["total_size"] for s in segments if s["segment_pool_id"] in self.pools)


@lru_cache
def _stream(ordinal: int) -> torch.cuda.Stream:
    """Return the stream on which graphs are recorded; libraries keep a workspace for it."""
    return torch.cuda.Stream(ordinal)


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Let what cuBLAS needs for itself in a graph be in the graph's memory: torch keeps one
    workspace per stream, which may be freed while a graph still writes to it.
    """
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


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
