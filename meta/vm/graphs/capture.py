"""What the CUDA graphs of one program share: the recorder, static tensors, random keys, and what is
known of why something is not recorded.

The recorder is torch's, so that its allocator gives what recorded kernels allocate memory of the
graph's own. Kernels of all dialects run on torch's current stream, so it records all.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any
from weakref import WeakSet

import torch

from meta.base import config, gc_pause
from meta.base.device import Device
from meta.base.errors import CaptureError
from meta.base.source import Span
from meta.dialect.cuda.graph_fills import fill_by_kernels
from meta.runtime import random
from meta.runtime.allocate import storage_address
from meta.vm.compiler import bytecode as bc
from meta.vm.compiler.code import Code
from meta.vm.compiler.output_buffers import OutputBuffers
from meta.vm.graphs.region_step import GraphStep
from meta.vm.graphs.regions import RegionStatus, key_registers

_CAPTURE_LOCK = threading.Lock()
"""One recording at a time: all are made on one stream."""


class CudaRecorder:
    """Records the graphs of one program. They share a pool of memory: what one needs for itself
    only may be another's as well, since they do not run at the same time.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.pools: list[Any] = []
        self._begin_pool()

    def _begin_pool(self) -> None:
        self.pools.append(torch.cuda.graph_pool_handle())
        self._in_pool: WeakSet[torch.cuda.CUDAGraph] = WeakSet()
        self._is_used = False

    def record(
        self, body: Callable[[], None], agree: Callable[[Exception | None], None] | None = None
    ) -> Callable[[], None]:
        """Record the kernels that ``body`` launches on the current stream, run them once, and
        return what launches them again. If it raises, nothing was run.

        ``agree`` is called before they are run, with what went wrong, if anything did; it may
        raise.
        """
        try:
            graph = self.try_out(body)
        except Exception as error:
            if agree is not None:
                agree(error)
            raise
        if agree is not None:
            agree(None)
        graph.replay()
        return graph.replay

    def try_out(self, body: Callable[[], None]) -> torch.cuda.CUDAGraph:
        """Record the kernels that ``body`` launches, and run nothing; return the graph."""
        ordinal = self.device.ordinal
        # A collection could free another graph meanwhile.
        with _CAPTURE_LOCK, torch.cuda.device(ordinal), gc_pause.gc_paused(), _own_workspaces():
            here, stream = torch.cuda.current_stream(), _stream(ordinal)
            stream.wait_stream(here)
            if self._is_used and not self._in_pool:
                self._begin_pool()  # torch let go of the pool with the last graph in it
            self._is_used = True
            graph = torch.cuda.CUDAGraph(keep_graph=True)
            with torch.cuda.stream(stream):
                # Other threads may allocate and copy meanwhile, and NCCL's looks at events.
                graph.capture_begin(pool=self.pools[-1], capture_error_mode="thread_local")
                try:
                    body()
                    graph.capture_end()
                    fill_by_kernels(graph, ordinal)
                    graph.instantiate()
                except BaseException:
                    self._abandon(graph)
                    raise
            here.wait_stream(stream)
            self._in_pool.add(graph)
        return graph

    def _abandon(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a recording in which something went wrong."""
        with suppress(RuntimeError), warnings.catch_warnings():  # it says so again
            warnings.simplefilter("ignore")  # that nothing was recorded
            graph.capture_end()
        with suppress(RuntimeError):  # an end that raises leaves the allocator with the pool
            torch._C._cuda_endAllocateToPool(self.device.ordinal, self.pools[-1])
        # With the graph torch lets go of the pool, if it is the first one in it.
        self._begin_pool()

    def is_busy(self) -> bool:
        """Whether the current stream is being recorded, into a graph of somebody else."""
        return torch.cuda.is_current_stream_capturing()

    def pool_bytes(self) -> int:
        """Return the bytes of the pools."""
        segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        return sum(s["total_size"] for s in segments if s["segment_pool_id"] in self.pools)


@lru_cache
def _stream(ordinal: int) -> torch.cuda.Stream:
    """Return the stream on which graphs are recorded; libraries keep a workspace for it."""
    return torch.cuda.Stream(ordinal)  # type: ignore[no-untyped-call]


@contextmanager
def _own_workspaces() -> Iterator[None]:
    """Let cuBLAS allocate in the graph's memory: torch may free a stream's workspace."""
    torch._C._cuda_clearCublasWorkspaces()
    try:
        yield
    finally:
        torch._C._cuda_clearCublasWorkspaces()


MIN_KERNELS = 4
"""Regions of fewer are launched one by one: a replay and its copies cost the host as much."""


class Keys:
    """The random keys of a program: one int64 per draw on the device, written before each run of a
    region by one copy.

    The keys are those that the generator gives one by one. The copy is from pageable memory, which
    CUDA reads before the call returns, so that the next run may follow at once.
    """

    def __init__(self, count: int, device: Device) -> None:
        self.tensor = torch.zeros(count, dtype=torch.int64, device=str(device))
        self.used = 0

    def reserve(self, count: int) -> slice:
        """Return places for ``count`` keys."""
        self.used += count
        return slice(self.used - count, self.used)

    def drawer(self, places: slice) -> Callable[[], None] | None:
        """Return a function that draws the keys of these places; None if there are none."""
        count, target = places.stop - places.start, self.tensor[places]
        if not count:
            return None

        def draw() -> None:
            target.copy_(torch.from_numpy(random.default.keys(count)), non_blocking=True)

        return draw


MAX_BINDINGS = 64
"""Of one program, whose arrays take turns: more than models have layers that are alike."""


class Binding:
    """A place of the model's arrays.

    Attributes
    ----------
    tensors: the arrays there. statics: ids of tensors that are the same in every run with them, and
    are kept. memory: where they are.
    """

    def __init__(self, tensors: Iterable[torch.Tensor]) -> None:
        self.tensors = list(tensors)
        self.statics = set(map(id, self.tensors))
        self.memory = frozenset(map(storage_address, self.tensors))


def _addresses(tensors: Iterable[torch.Tensor]) -> tuple[int, ...]:
    return tuple([t.data_ptr() for t in tensors])


class Graphs:
    """The graphs of one program.

    Parameters
    ----------
    code: the program. arrays: how many of its last parameters are the model's arrays.
    required: whether it is an error if something that could be recorded cannot.
    """

    def __init__(
        self,
        code: Code,
        arrays: int,
        device: Device,
        recorder: CudaRecorder,
        required: bool = False,
    ) -> None:
        self.arrays, self.recorder, self.required = arrays, recorder, required
        draws = sum(len(key_registers(f, code.kernels)) for f in code.functions.values())
        self.keys = Keys(draws, device)
        self.steps: list[GraphStep] = []
        self.statuses: list[RegionStatus] = []
        # Why single kernels are in no region.
        self.reasons: dict[str, None] = {}
        # What the caller has for results.
        self.buffers = OutputBuffers({})
        # Of a straight-line program, what copies inputs of a region of a block to memory of the
        # program's that is free as long as the region reads them, and returns these copies.
        self.copies: Callable[..., dict[bc.Register, torch.Tensor]] = lambda *_: {}
        self._fixed: set[int] = set()
        # What was recorded, by where the arrays were; and where they were when it was forgotten.
        self._bindings: dict[tuple[int, ...], Binding] = {}
        self.binding = Binding(())
        self._before: set[tuple[int, ...]] = set()

    def fix(self, tensors: Sequence[Any]) -> None:
        """Note tensors of the program that never move: constants and what is in the arena."""
        self._fixed.update(storage_address(t) for t in tensors if isinstance(t, torch.Tensor))

    def bind(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Take the model's arrays as static; return tensors for them: the same ones each time that
        they are at the same place.

        What was recorded with others is forgotten, unless arrays come back: then several sets of
        them take turns, such as those of layers that are one program, and what is recorded is kept
        for each.
        """
        place = _addresses(tensors)
        binding = self._bindings.pop(place, None)
        if binding is not None and _addresses(binding.tensors) != place:  # resized since
            self._forget(binding, place)
            binding = None
        if binding is None:
            in_turns = len(self._bindings) > 1 or place in self._before
            kept = MAX_BINDINGS - 1 if in_turns else 0
            for old in list(self._bindings)[: max(0, len(self._bindings) - kept)]:
                self._forget(self._bindings.pop(old), old)
            binding = Binding(tensors)
        self._bindings[place] = self.binding = binding  # the last one was used last
        return binding.tensors

    def _forget(self, binding: Binding, place: tuple[int, ...]) -> None:
        """Forget what was recorded with arrays that were at some place."""
        for step in self.steps:
            step.forget(binding)
        if len(self._before) == MAX_BINDINGS:
            self._before.clear()
        self._before.add(place)

    @property
    def statics(self) -> set[int]:
        """The ids of tensors that are the same in every run with the arrays where they are."""
        return self.binding.statics

    def is_static(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is that of an array, a constant or the arena."""
        return storage_address(tensor) in self.binding.memory or self.is_fixed(tensor)

    def is_fixed(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor's memory is that of a constant or the arena, which nobody else sees."""
        return storage_address(tensor) in self._fixed

    def release(self) -> None:
        """Forget what was recorded; where it runs again, it is warmed up and recorded again."""
        for step in self.steps:
            for binding in list(step.recordings):
                step.forget(binding)

    def refused(
        self, reason: str, error: Exception | None = None, span: Span | None = None
    ) -> None:
        """Raise CaptureError if graphs are required; ``span``: of the call that is refused."""
        if self.required:
            raise CaptureError(
                "the program cannot run as a CUDA graph",
                found=reason,
                span=span,
                hint="compile(..., cuda_graph=None) runs such parts kernel by kernel",
            ) from error


@dataclass(frozen=True, slots=True)
class GraphReport:
    """Whether and how a program runs as CUDA graphs; true if some of it does, or will once it is
    warm.

    Attributes
    ----------
    why_not: why nothing does; empty if something does. regions: the parts that may be recorded,
    each with what became of it. alone: why other kernels are launched one by one.
    """

    why_not: str
    regions: tuple[RegionStatus, ...] = ()
    alone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return not self.why_not

    def __str__(self) -> str:
        head = f"no CUDA graph: {self.why_not}" if self.why_not else "runs as CUDA graphs"
        lines = [head, *(f"  {region}" for region in self.regions)]
        return "\n".join([*lines, *(f"  one by one: {reason}" for reason in self.alone)])


def report(graphs: Graphs | None, why_not: str) -> GraphReport:
    """Return the report of a program; ``why_not``: why it has no graphs, if it has none."""
    if graphs is None:
        return GraphReport(why_not)
    regions = tuple(replace(s) for s in graphs.statuses if not s.split)
    alone = tuple(graphs.reasons)
    if not why_not and all(region.reason for region in regions):
        found = dict.fromkeys([*(region.reason for region in regions), *alone])
        why_not = "; ".join(found) or "it launches no kernel"
    return GraphReport(why_not, regions, alone)


def graphs_for(
    code: Code, arrays: int, device: Device, wanted: bool | None
) -> tuple[Graphs | None, str]:
    """Return the graphs of a program to be linked, or None and why it has none.

    ``wanted``: True to require them, False to do without, None to take what can be had. Raises
    CaptureError if they are required and there are none on the device.
    """
    if wanted is None:
        wanted = None if config.get("META_CUDA_GRAPH") else False
        off = "META_CUDA_GRAPH is off"
    else:
        off = "cuda_graph=False"
    if wanted is False:
        return None, off
    if device.kind != "cuda":
        if wanted:
            raise CaptureError(
                "only CUDA has CUDA graphs",
                expected="a program for a CUDA device",
                found=f"device {device}",
                hint="leave cuda_graph out, or move the model with .to(device='cuda')",
            )
        return None, f"the device is {device}"
    return Graphs(code, arrays, device, CudaRecorder(device), required=bool(wanted)), ""
