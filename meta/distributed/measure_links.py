"""Measures how long the ranks of a mesh take to exchange tensors, for `meta.analysis.scaling`."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable

import torch
from torch import distributed as dist

from meta.base.device import CPU, Device
from meta.base.errors import DistributedError
from meta.base.signature_check import check_signature
from meta.cost.interconnect import BETWEEN, INSIDE, Link, link_cost, links_key, links_of
from meta.cost.record import Timing
from meta.cost.store import save
from meta.runtime.mesh import Group, axis_group, digest
from meta.vm.graphs.capture import CudaRecorder

BYTES = {"cpu": (1 << 14, 1 << 18, 1 << 22), "cuda": (1 << 20, 1 << 24, 1 << 27, 1 << 29)}
"""By kind of device, of the tensors that are exchanged."""
SAMPLES, WARM_UP = 11, 3
LEAST = 2e-3
"""Seconds of a sample: short exchanges are repeated."""


@check_signature
def measure_links(over: str) -> Link:
    """Measure the link of the processes along an axis of the mesh, by all_reduce, and keep it for
    all processes of this environment: as that within a host if all of them are on one, as that
    between hosts if each is on another.

    Every rank calls it, while nothing else runs; it takes a few seconds. Returns the link that
    follows from the times, by which `meta.analysis.scaling` predicts from then on.

    Raises DistributedError for an axis that the mesh does not have, for ranks that are no
    processes, for one rank, and for several ranks on one of several hosts; ArgumentError where
    times do not grow with the bytes.

    >>> try:
    ...     meta.distributed.simulate({"dp": 2}).run(lambda: meta.distributed.measure_links("dp"))
    ... except meta.errors.DistributedError as error:
    ...     print(error.what)
    simulated ranks have no links
    """
    group = axis_group(over)
    if not dist.is_initialized():
        raise DistributedError("simulated ranks have no links", hint="meta.distributed.init()")
    if group.size == 1:
        raise DistributedError(f"there is no link along {over!r}", found="one rank")
    hosts = len(set(group.gather(socket.gethostname().encode(), "the links of the mesh")))
    if hosts not in (1, group.size):
        raise DistributedError(
            f"the ranks along {over!r} are of several links",
            expected="all of them on one host, or each on another",
            found=f"{group.size} ranks on {hosts} hosts",
        )
    device = Device("cuda") if "nccl" in dist.get_backend() else CPU
    where = INSIDE if hosts == 1 else BETWEEN
    counts = BYTES[device.kind]
    costs = [link_cost(count, group.size, _time(group, count, device)) for count in counts]
    save(links_key(where, device), costs, anew=True)
    links = links_of(device)
    return links.inside if hosts == 1 else links.between


def _time(group: Group, count: int, device: Device) -> Timing:
    """Return the microseconds of an all_reduce of so many bytes: of the slowest rank. On CUDA it is
    in a graph, as in a compiled step, so that the host does not count.
    """
    x = torch.zeros(count // 4, device=str(device))

    def several(times: int) -> None:
        for _ in range(times):
            group.all_reduce(x, "sum")

    def seconds(run: Callable[[], object], times: int) -> float:
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        return (time.perf_counter() - started) / times

    def runs(times: int) -> Callable[[], object]:
        if device.kind != "cuda":
            return lambda: several(times)
        return CudaRecorder(device).record(lambda: several(times))

    # The ranks have agreed on what they call: they do not compare each call.
    with group.running(what := f"times of all_reduce({count} bytes)", digest(what)):
        seconds(lambda: several(WARM_UP), WARM_UP)
        one = _slowest(group, [seconds(runs(WARM_UP), WARM_UP)])[0]
        run = runs(times := max(1, round(LEAST / max(one, 1e-7))))
        mine = [1e6 * seconds(run, times) for _ in range(SAMPLES)]
    return Timing.of(_slowest(group, mine))


def _slowest(group: Group, mine: list[float]) -> list[float]:
    """Return the largest numbers of all ranks, one by one; the same on all of them."""
    each = [json.loads(said) for said in group.gather(json.dumps(mine).encode(), "times of links")]
    return [max(column) for column in zip(*each, strict=True)]


def _wait(device: Device) -> None:
    if device.kind == "cuda":
        torch.cuda.synchronize(device.ordinal)
