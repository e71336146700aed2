"""Ranks that are processes, on PyTorch's process groups: NCCL on CUDA, Gloo on the CPU.

Async collectives go on beside other work: on CUDA on a stream of their own, on the CPU on a thread
of its own. Both take them one after the other, so that all ranks do in one order.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from functools import lru_cache
from itertools import product
from queue import SimpleQueue
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _coalescing_manager

from meta.base.errors import DistributedError
from meta.base.signature_check import check_signature
from meta.distributed.launch import watch
from meta.distributed.watchdog import Watchdog
from meta.runtime.mesh import (
    TENSOR_PARALLEL_AXIS,
    RankMesh,
    axes_alike,
    axis_sizes,
    current_mesh,
    digest,
    first_difference,
    set_process_mesh,
)

Work = Callable[[], None]


def start_async(run: Work, device: torch.device) -> Work:
    """Let ``run`` begin, behind what was launched on the current stream; return what waits for it.

    On CUDA the stream waits that is current then, and not the host. On the CPU an error of ``run``
    is raised by what waits.
    """
    if device.type == "cuda":
        return _on_stream(run, device)
    future = Future[None]()
    _queue().put((run, future))
    _pending_work.append(future)
    return future.result


def synchronize_async() -> None:
    """Wait until the thread has nothing to do, unless this is that thread: a collective that is not
    started comes behind those that were.
    """
    if _pending_work and threading.current_thread().name != _THREAD_NAME:
        for future in _pending_work:
            future.exception()
        _pending_work.clear()


_THREAD_NAME = "collectives of meta"
_pending_work: list[Future[None]] = []


@lru_cache
def _queue() -> SimpleQueue[tuple[Work, Future[None]]]:
    """Return what the thread takes from, which is begun with it. At the end of the process nobody
    waits for the thread, which may wait for others.
    """
    queue = SimpleQueue[tuple[Work, Future[None]]]()

    def work() -> None:
        while True:
            run, future = queue.get()
            try:
                run()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(None)

    threading.Thread(target=work, name=_THREAD_NAME, daemon=True).start()
    return queue


def _on_stream(run: Work, device: torch.device) -> Work:
    here, beside = torch.cuda.current_stream(device), _stream(device.index)
    beside.wait_stream(here)
    with torch.cuda.stream(beside):
        run()
    done = beside.record_event()
    return lambda: torch.cuda.current_stream(device).wait_event(done)


@lru_cache
def _stream(ordinal: int) -> torch.cuda.Stream:
    """Return the stream of collectives. It comes first where the device has room: what it exchanges
    is what others wait for.
    """
    return torch.cuda.Stream(ordinal, priority=-1)  # type: ignore[no-untyped-call]


_SUMS = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}
DIGEST_BYTES = 16
"""Bytes by which ranks compare what they call."""

# Their names from PyTorch 2.13 on, which warns of the earlier ones.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Mesh:
    """The processes as a grid with named axes.

    sizes: as {"dp": 4, "tp": 2}, whose product is the number of processes; ranks are counted with
    the last axis as the fastest. alike: as of `simulate`. It is the mesh of this process until
    another one is made, and in a ``with`` block it is left at the end. device_mesh: the same as
    PyTorch's `DeviceMesh`.

    Raises DistributedError without `init`, for another number of processes, if the ranks do not
    make the same mesh, or one does not come; ArgumentError as of `simulate`.

    Each process of ``torchrun --nproc-per-node 4 program.py`` runs::

        meta.distributed.init()
        mesh = meta.distributed.Mesh({"dp": 2, "tp": 2})

    >>> try:
    ...     meta.distributed.Mesh({"dp": 2})
    ... except meta.errors.DistributedError as error:
    ...     print(error.what)
    there are no processes yet
    """

    @check_signature
    def __init__(
        self, sizes: int | Mapping[str, int], alike: str | Sequence[str] = TENSOR_PARALLEL_AXIS
    ) -> None:
        self.sizes = axis_sizes(sizes)
        alike = axes_alike(alike, self.sizes)
        own = watch()
        count = 1
        for one in self.sizes.values():
            count *= one
        if count != dist.get_world_size():
            raise DistributedError(
                f"the mesh is of {count} ranks",
                expected=f"{dist.get_world_size()}, the number of processes",
                found=str(self.sizes),
            )
        _meshes[0] += 1
        said = dict(enumerate(own.meet(f"mesh {_meshes[0]}", str(self))))
        if len(set(said.values())) > 1:
            raise DistributedError("the ranks make different meshes", found=first_difference(said))
        self._before = current_mesh()
        with own.joining(str(self)):
            found = {axis: self._group(own, axis) for axis in self.sizes}
        kind = "cpu" if own.device is None else "cuda"
        names, ranks = tuple(self.sizes), torch.arange(count).reshape(*self.sizes.values())
        groups = [group.group for group in found.values()]
        self.device_mesh: DeviceMesh = DeviceMesh.from_group(
            groups if len(groups) > 1 else groups[0], kind, ranks if len(groups) > 1 else None,
            mesh_dim_names=names,
        )  # fmt: skip
        set_process_mesh(RankMesh.of(found, alike))

    def _group(self, own: Watchdog, axis: str) -> _ProcessGroup:
        """Return this process's group along an axis; all processes make all groups of it."""
        at = list(self.sizes).index(axis)
        strides = [1]
        for size in reversed(list(self.sizes.values())[1:]):
            strides.insert(0, strides[0] * size)
        limit = timedelta(seconds=own.limit - own.margin)
        others = [range(s) if i != at else (0,) for i, s in enumerate(self.sizes.values())]
        for place in product(*others):
            first = sum(p * s for p, s in zip(place, strides, strict=True))
            ranks = [first + i * strides[at] for i in range(self.sizes[axis])]
            group = dist.new_group(ranks, timeout=limit)
            if own.rank in ranks:
                mine = _ProcessGroup(axis, group, ranks, own)
        return mine

    def __repr__(self) -> str:
        return f"Mesh({self.sizes})"

    def __enter__(self) -> Mesh:
        return self

    def __exit__(self, *_: object) -> None:
        set_process_mesh(self._before)


_meshes = [0]


class _ProcessGroup:
    """A group of processes; see `meta.runtime.mesh.Group`.

    Gloo ends the process, or computes something, where ranks call different collectives, and NCCL
    waits for ever. So before each one the ranks compare what they call, by Gloo: 0.15 ms for two
    processes of one host. Within a program they have done so when it was linked; on the CPU they
    compare once a call, which program it is, and on CUDA the host waits for nobody.

    group: PyTorch's. ranks: the numbers of its members among all processes.
    """

    def __init__(self, axis: str, group: Any, ranks: list[int], own: Watchdog) -> None:
        self.axis, self.group, self.ranks = axis, group, ranks
        self.rank, self.size = ranks.index(own.rank), len(ranks)
        self._watch = own
        self._agreed = 0
        if own.device is not None:
            # NCCL makes its communicator at the first call, by all ranks together: now, and not
            # while a graph is recorded, or by a call that only some of them make.
            dist.all_reduce(torch.zeros(1, device="cuda"), group=group)

    def all_reduce(self, out: torch.Tensor, reduction: str) -> None:
        with self._call("all_reduce", out, reduction):
            dist.all_reduce(out, _operation(out, reduction), self.group)
            self._finish(out, reduction)

    def all_gather(self, out: torch.Tensor, x: torch.Tensor) -> None:
        with self._call("all_gather", x):
            _all_gather(out.view(-1), x.view(-1), group=self.group)

    def reduce_scatter(self, out: torch.Tensor, x: torch.Tensor, reduction: str) -> None:
        with self._call("reduce_scatter", x, reduction):
            operation = _operation(out, reduction)
            _reduce_scatter(out.view(-1), x.view(-1), operation, group=self.group)
            self._finish(out, reduction)

    def _finish(self, out: torch.Tensor, reduction: str) -> None:
        if reduction == "mean" and not out.is_cuda:
            out.div_(self.size)

    def all_to_all(self, out: torch.Tensor, x: torch.Tensor) -> None:
        with self._call("all_to_all", x):
            dist.all_to_all_single(out, x, group=self.group)

    def broadcast(self, out: torch.Tensor, root: int) -> None:
        with self._call("broadcast", out, root):
            dist.broadcast(out, group=self.group, group_src=root)

    def send(self, out: torch.Tensor, x: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
        with self._call("send", x, *pairs):
            calls = []
            for source, target in pairs:
                if source == target == self.rank:
                    out.copy_(x)
                elif source == self.rank:
                    calls.append(dist.P2POp(dist.isend, x, group=self.group, group_peer=target))
                elif target == self.rank:
                    calls.append(dist.P2POp(dist.irecv, out, group=self.group, group_peer=source))
            for work in dist.batch_isend_irecv(calls) if calls else ():
                work.wait()

    def together(self) -> AbstractContextManager[None]:
        if self._watch.device is None:
            return nullcontext()
        # Without a device: that is for libraries that have no calls for several tensors.
        found: AbstractContextManager[None] = _coalescing_manager(self.group)
        return found

    def start(self, run: Callable[[], None], written: list[torch.Tensor]) -> Callable[[], None]:
        return start_async(run, written[0].device)

    def gather(self, data: bytes, what: str) -> list[bytes]:
        """Return what each rank gives; see `meta.runtime.mesh.Group`."""
        with self._noted(f"agreement on {what}"):
            longest = max(int.from_bytes(n, "little") for n in self._same_length(_size_of(data)))
            # Of equal lengths, and never of none.
            given = self._same_length(_size_of(data) + data.ljust(longest, b"\0"))
        return [one[8 : 8 + int.from_bytes(one[:8], "little")] for one in given]

    @contextmanager
    def running(self, what: str, digest: bytes) -> Iterator[None]:
        """Let a block run a program; see `meta.runtime.mesh.Group`."""
        with self._noted(what):
            if self._watch.device is None:
                self._compare(what, digest)
            self._agreed += 1
            try:
                yield
            finally:
                self._agreed -= 1
            self._launched(what)

    @contextmanager
    def _call(self, name: str, x: torch.Tensor, *options: Any) -> Iterator[None]:
        """Let a block exchange tensors, after the ranks have compared what they call."""
        dtype = str(x.dtype).removeprefix("torch.")
        call = f"{name}({', '.join([f'{dtype}{list(x.shape)}', *map(str, options)])})"
        with self._noted(call):
            if not self._agreed:
                self._compare(call, digest(call))
            yield
            if not self._agreed:
                self._launched(call)

    @contextmanager
    def _noted(self, call: str) -> Iterator[None]:
        """Let an error of PyTorch's in a block be one that says which ranks are missing. It comes
        behind what was started.
        """
        synchronize_async()
        self._watch.enter(self.axis, call)
        try:
            yield
        except RuntimeError as error:
            if isinstance(error, DistributedError) or not _is_peer_failure(error):
                raise
            raise self._watch.failure(self.axis, call, self.ranks, error) from error
        finally:
            self._watch.leave()

    def _compare(self, what: str, own: bytes) -> None:
        """Raise DistributedError, on all ranks, if one calls something else."""
        if len(set(self._same_length(own))) == 1:
            return
        said = self.gather(what.encode(), "the next collective")
        texts = {rank: one.decode() for rank, one in zip(self.ranks, said, strict=True)}
        raise DistributedError(
            f"along {self.axis!r} the ranks call different collectives",
            op=what.partition("(")[0],
            found=first_difference(texts).partition("\n")[2].strip(),
            hint="all ranks call the same, in the same order, on tensors of one shape and dtype",
        )

    def _same_length(self, data: bytes) -> list[bytes]:
        """Return what each rank gives, of the same length on all of them."""
        own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        out = torch.empty(self.size * len(data), dtype=torch.uint8)
        _all_gather(out, own, group=self.group)  # by Gloo: it is on the host
        found = out.numpy().tobytes()
        return [found[i : i + len(data)] for i in range(0, len(found), len(data))]

    def _launched(self, call: str) -> None:
        if self._watch.device is not None and not torch.cuda.is_current_stream_capturing():
            self._watch.launched(call)


def _operation(out: torch.Tensor, reduction: str) -> Any:
    """Return PyTorch's name of a reduction. NCCL has a mean, which saves a pass over memory; of
    Gloo it is the sum, which is divided then.
    """
    if reduction == "mean" and out.is_cuda:
        return dist.ReduceOp.AVG
    return _SUMS["sum" if reduction == "mean" else reduction]


def _size_of(data: bytes) -> bytes:
    return len(data).to_bytes(8, "little")


def _is_peer_failure(error: RuntimeError) -> bool:
    """Whether an error of PyTorch's is about other processes, and not about arguments or memory."""
    return isinstance(error, dist.DistError) or "gloo" in str(error)
