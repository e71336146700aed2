"""Ranks that are processes, on PyTorch's process groups: NCCL on CUDA, Gloo on the CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from torch import distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from meta.base import config
from meta.base.errors import DistributedError
from meta.distributed.simulated import ALIKE, sizes_of
from meta.runtime.world import ALONE, World, current, set_process
from meta.vm import graph_ranks

TIMEOUT = 300.0
"""Seconds after which a rank that waits for others is an error."""
_SUMS = {
    "sum": dist.ReduceOp.SUM,
    "product": dist.ReduceOp.PRODUCT,
    "max": dist.ReduceOp.MAX,
    "min": dist.ReduceOp.MIN,
}

# Their names from PyTorch 2.13 on, which warns of the earlier ones.
_all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def init(device: str | None = None, timeout: float = TIMEOUT) -> None:
    """Make this process one of those that ``torchrun`` started.

    device: "cuda" (NCCL) or "cpu" (Gloo); None: "cuda" if there is one. Process i of a host takes
    GPU i, and sees no other one: it is "cuda:0", as in the programs of all ranks. timeout: seconds
    after which a rank that waits in vain raises an error. Then make a `Mesh`.

    Raises DistributedError if no launcher started the process, its GPU is not there, or CUDA was
    used before.
    """
    # That there is CUDA is not asked: the answer would start it.
    kind = device or ("cuda" if torch.cuda.device_count() else "cpu")
    if kind == "cuda":
        take_gpu(dist.get_node_local_rank(fallback_rank=0))
    # Texts go from host to host, beside what the devices exchange.
    backend = "cpu:gloo,cuda:nccl" if kind == "cuda" else "gloo"
    try:
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
    except ValueError as error:  # a variable of the environment that a launcher sets is not there
        raise DistributedError(
            "no launcher started this process",
            found=str(error),
            hint="torchrun --nproc-per-node 2 program.py; or meta.distributed.simulate",
        ) from error


def take_gpu(ordinal: int) -> None:
    """Let this process see only one GPU of the host, by its number there."""
    if _has_gpu:
        return
    count = torch.cuda.device_count()
    if ordinal >= count:
        raise DistributedError(
            f"process {ordinal} of this host has no GPU",
            found=f"{count} GPUs",
            hint="start one process for each GPU: --nproc-per-node",
        )
    if count > 1:
        config.show_one_gpu(ordinal)
        if torch._C._cuda_getDeviceCount() > 1:  # it was read before
            raise DistributedError(
                "CUDA was used before the process got its GPU",
                found=f"all {count} GPUs of the host are in sight",
                hint="meta.distributed.init() before all that asks for CUDA, "
                "torch.cuda.is_available() included",
            )
    torch.cuda.init()  # type: ignore[no-untyped-call]
    torch.cuda.set_device(0)
    _has_gpu.append(ordinal)


_has_gpu: list[int] = []
"""The number on the host of the GPU that this process has, if it has one."""


def end() -> None:
    """Leave the others: the mesh is gone, and the process is alone again.

    CUDA graphs that hold collectives are forgotten before, without which NCCL would wait for ever.
    """
    set_process(ALONE)
    if not dist.is_initialized():
        return
    if _has_nccl():
        torch.cuda.synchronize()
    graph_ranks.release()
    dist.destroy_process_group()


def _has_nccl() -> bool:
    return "nccl" in dist.get_backend()


class Mesh:
    """The processes as a grid with named axes.

    sizes: as {"dp": 4, "tp": 2}, whose product is the number of processes; ranks are counted with
    the last axis as the fastest. alike: as of `simulate`. It is the mesh of this process until
    another one is made, and in a ``with`` block it is left at the end.

    Raises DistributedError without `init`, and for another number of processes.
    """

    def __init__(self, sizes: int | Mapping[str, int], alike: str | Sequence[str] = ALIKE) -> None:
        self.sizes = sizes_of(sizes)
        if not dist.is_initialized():
            raise DistributedError("there are no processes yet", hint="meta.distributed.init()")
        count = 1
        for one in self.sizes.values():
            count *= one
        if count != dist.get_world_size():
            raise DistributedError(
                f"the mesh is of {count} ranks",
                expected=f"{dist.get_world_size()}, the number of processes",
                found=str(self.sizes),
            )
        kind = "cuda" if _has_nccl() else "cpu"
        names = tuple(self.sizes)
        self.device_mesh: DeviceMesh = init_device_mesh(
            kind, tuple(self.sizes.values()), mesh_dim_names=names
        )
        self._before = current()
        groups = {n: _ProcessGroup.of(self.device_mesh.get_group(n)) for n in names}
        set_process(World.of(groups, (alike,) if isinstance(alike, str) else tuple(alike)))

    def __repr__(self) -> str:
        return f"Mesh({self.sizes})"

    def __enter__(self) -> Mesh:
        return self

    def __exit__(self, *_: object) -> None:
        set_process(self._before)


@dataclass
class _ProcessGroup:
    """A group of processes; see `meta.runtime.world.Group`."""

    group: Any
    rank: int
    size: int

    @classmethod
    def of(cls, group: Any) -> _ProcessGroup:
        if _has_nccl():
            # NCCL makes its communicator at the first call, by all ranks together: now, and not
            # while a graph is recorded, or by a call that only some of them make.
            dist.all_reduce(torch.zeros(1, device="cuda"), group=group)
        return cls(group, dist.get_rank(group), dist.get_world_size(group))

    def all_reduce(self, out: torch.Tensor, reduction: str) -> None:
        dist.all_reduce(out, _SUMS[reduction], self.group)

    def all_gather(self, out: torch.Tensor, x: torch.Tensor) -> None:
        _all_gather(out.view(-1), x.view(-1), group=self.group)

    def reduce_scatter(self, out: torch.Tensor, x: torch.Tensor, reduction: str) -> None:
        _reduce_scatter(out.view(-1), x.view(-1), _SUMS[reduction], group=self.group)

    def all_to_all(self, out: torch.Tensor, x: torch.Tensor) -> None:
        dist.all_to_all_single(out, x, group=self.group)

    def broadcast(self, out: torch.Tensor, root: int) -> None:
        dist.broadcast(out, group=self.group, group_src=root)

    def send(self, out: torch.Tensor, x: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> None:
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

    def gather(self, data: bytes, what: str) -> list[bytes]:
        lengths = self._on_hosts(torch.tensor([len(data)]))
        padded = torch.tensor(list(data.ljust(int(max(lengths)), b"\0")), dtype=torch.uint8)
        parts = zip(self._on_hosts(padded), lengths, strict=True)
        return [bytes(part.tolist()[: int(length)]) for part, length in parts]

    def _on_hosts(self, x: torch.Tensor) -> list[torch.Tensor]:
        """Return what each rank has in a tensor on the CPU."""
        parts = x.new_empty((self.size, *x.shape))
        self.all_gather(parts, x)
        return list(parts)
