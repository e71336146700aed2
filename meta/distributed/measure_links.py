"""Measures how long the ranks of a mesh take to exchange tensors, for `meta.analysis.scaling`."""

from __future__ import annotations

import json
import socket
import time
from statistics import quantiles

import torch
from torch import distributed as dist

from meta.base.device import CPU, Device
from meta.base.errors import DistributedError
from meta.dialect.core.cost_store import keep
from meta.dialect.core.costs import Timing
from meta.passes.links import BETWEEN, INSIDE, Link, link_cost, links_key, links_of
from meta.runtime.world import Group, group_of

BYTES = {"cpu": (1 << 14, 1 << 18, 1 << 22), "cuda": (1 << 20, 1 << 24, 1 << 27, 1 << 29)}
"""By kind of device, of the tensors that are exchanged."""
SAMPLES, WARM_UP = 11, 3
LEAST = 2e-3
"""Seconds of a sample: short exchanges are repeated."""


def measure_links(over: str) -> Link:
    """Measure the link of the processes along an axis of the mesh, by all_reduce, and keep it for
    all processes of this environment: as that within a host if all of them are on one, as that
    between hosts if each is on another.

    Every rank calls it, while nothing else runs; it takes a few seconds. Returns the link that
    follows from the times, by which `meta.analysis.scaling` predicts from then on.

    Raises DistributedError for an axis that the mesh does not have, for ranks that are no
    processes, for one rank, and for several ranks on one of several hosts; ArgumentError where
    times do not grow with the bytes.
    """
    group = group_of(over)
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
    keep(links_key(where, device), costs, anew=True)
    links = links_of(device)
    return links.inside if hosts == 1 else links.between


def _time(group: Group, count: int, device: Device) -> Timing:
    """Return the microseconds of an all_reduce of so many bytes: of the slowest rank."""
    x = torch.zeros(count // 4, device=str(device))

    def sample(times: int) -> float:
        _wait(device)
        started = time.perf_counter()
        for _ in range(times):
            group.all_reduce(x, "sum")
        _wait(device)
        return (time.perf_counter() - started) / times

    sample(WARM_UP)
    times = max(1, round(LEAST / max(_slowest(group, [sample(WARM_UP)])[0], 1e-7)))
    found = _slowest(group, [1e6 * sample(times) for _ in range(SAMPLES)])
    p20, _, _, p80 = quantiles(found, n=5, method="inclusive")
    return Timing(sorted(found)[SAMPLES // 2], p20, p80, SAMPLES)


def _slowest(group: Group, mine: list[float]) -> list[float]:
    """Return the largest numbers of all ranks, one by one; the same on all of them."""
    each = [json.loads(said) for said in group.gather(json.dumps(mine).encode(), "times of links")]
    return [max(column) for column in zip(*each, strict=True)]


def _wait(device: Device) -> None:
    if device.kind == "cuda":
        torch.cuda.synchronize(device.ordinal)
