"""How long ranks take to exchange tensors: `Link`, what connects two devices, and `Links`, those
within a host and those between hosts.

The model is that of NCCL's tuning (github.com/NVIDIA/nccl, src/graph/tuning.cc), without its
corrections: a collective takes a startup, a latency for each hop of the longest way, and the bytes
that the slowest link carries over its bandwidth. A *ring* of n ranks passes n - 1 hops once (gather
and scatter) or twice (all_reduce), and each link carries (n - 1) / n of the bytes each time:
Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009. A
*tree* has fewer hops and carries all bytes twice: Sanders, Speck and Traff, "Two-tree algorithms
for full bandwidth broadcast, reduction and scan", 2009. Small messages carry a flag beside each
word, which saves latency and costs bandwidth. The fastest is what is taken.

`meta.distributed.measure_links` measures a mesh and keeps the figures where costs are kept. Where
it never did, `NVLINK` and `INFINIBAND` hold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import product

from meta.base.device import Device
from meta.base.errors import ArgumentError
from meta.cost.record import Cost, Key, Timing
from meta.cost.store import find

INSIDE, BETWEEN = "within", "between"
"""Where a link is: hosts."""
STARTUP = 8.4
"""Microseconds of a ring's beginning, in NCCL's table."""


@dataclass(frozen=True, slots=True)
class Algorithm:
    """startup: microseconds. share: of a link's bandwidth that it reaches. tree: or a ring."""

    startup: float
    share: float
    tree: bool = False


ALGORITHMS = {
    "ring": Algorithm(STARTUP, 1.0),
    "tree": Algorithm(0.0, 0.9, tree=True),
    "ring of small messages": Algorithm(3.6, 1 / 4),
    "tree of small messages": Algorithm(4.4, 1 / 3.8, tree=True),
}
"""By name, those that NCCL chooses among, with the figures of its table."""


@dataclass(frozen=True, slots=True)
class Link:
    """What connects a device to others.

    Attributes
    ----------
    name: for people. bandwidth: bytes that a device sends, and receives, in a microsecond. hops: by
    algorithm, microseconds of latency from a rank to the next; an algorithm that is not there is
    not used. startup: microseconds of a ring's beginning. source: where the figures are from.
    measured: whether they are of this machine.
    """

    name: str
    bandwidth: float
    hops: Mapping[str, float]
    startup: float = STARTUP
    source: str = ""
    measured: bool = False

    def __str__(self) -> str:
        how = "measured" if self.measured else self.source
        return f"{self.name}, {self.bandwidth * 1e-3:,.1f} GB/s a device ({how})"


def fitted(
    name: str,
    times: Mapping[int, float],
    ranks: int,
    hops: Mapping[str, float] | None = None,
    source: str = "",
    measured: bool = False,
) -> Link:
    """Return the link by which all_reduce in a ring takes these times.

    times: microseconds by bytes, at least two. ranks: how many took part. hops: latencies of
    algorithms, of which that of a ring is replaced; None: there are rings only.

    Least squares of a line, of relative errors. ArgumentError for times that do not grow with
    bytes.
    """
    rows = [(1 / t, 2 * (ranks - 1) / ranks * count / t) for count, t in times.items()]
    uu, uv, vv = (sum(r[i] * r[j] for r in rows) for i, j in ((0, 0), (0, 1), (1, 1)))
    u, v = (sum(r[i] for r in rows) for i in (0, 1))
    area = uu * vv - uv * uv
    start, slope = (u * vv - v * uv, v * uu - u * uv) if area > 0 else (0.0, 0.0)
    if ranks < 2 or len(times) < 2 or slope <= 0:
        raise ArgumentError(
            "no link follows from these times",
            expected="times of several ranks that grow with the bytes",
            found=f"{dict(times)} of {ranks} ranks",
        )
    # A line that begins below nothing: the best one through nothing.
    start, slope = (start / area, slope / area) if start > 0 else (0.0, v / vv)
    startup = min(STARTUP, start)
    hop = (start - startup) / (2 * (ranks - 1))
    return Link(name, 1 / slope, {**(hops or {}), "ring": hop}, startup, source, measured)


MEASURED_ON_TWO_H200 = {1 << 20: 20.0, 1 << 24: 75.0, 1 << 27: 472.0, 1 << 29: 1720.0}
"""Microseconds of an all_reduce by bytes: two H200, torch 2.11, NCCL 2.28, multicast off."""
_NVLINK_HOPS = {"tree": 28.0, "ring of small messages": 0.47, "tree of small messages": 0.52}
_NETWORK_HOPS = {
    "ring": 9.6,
    "tree": 50.0,
    "ring of small messages": 2.7,
    "tree of small messages": 5.0,
}
NVLINK = fitted(
    "NVLink",
    MEASURED_ON_TWO_H200,
    2,
    _NVLINK_HOPS,
    "measured on two H200 on another machine; latencies of further algorithms: NCCL's table",
)
INFINIBAND = Link(
    "InfiniBand NDR",
    50e3,
    _NETWORK_HOPS,
    source="an adapter of 400 Gbit/s for each device, by its data sheet; latencies: NCCL's table",
)
OVERLAP_COST_ON_CUDA = 0.8
"""Of `Links`: on two H200 0.7 to 0.9 for data parallel training of GPT-2, BERT and ResNet-50."""
STARTED, WAIT = "_start", "wait"
"""How names end of collectives that go on beside other work, and what waits for them
(`Op.collective`)."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The ranks along an axis of a mesh: how many, on how many hosts, and how many at least on
    each of them.
    """

    ranks: int
    hosts: int
    per_host: int


@dataclass(frozen=True, slots=True)
class Links:
    """The links of a cluster, whose hosts have so many devices each.

    Of several hosts each device has an adapter of its own: ranks that are on one host use the
    adapters of all of them.

    beside: the microseconds that kernels take longer for each microsecond of an exchange that goes
    on beside them. NCCL's kernels share the device's multiprocessors and memory with them.
    """

    inside: Link = field(default=NVLINK)
    between: Link = field(default=INFINIBAND)
    ranks_per_host: int = 8
    beside: float = 0.0

    def __str__(self) -> str:
        return f"within hosts of {self.ranks_per_host}: {self.inside}; between: {self.between}"

    def reach(self, sizes: Mapping[str, int], over: str) -> Reach:
        """Return where the ranks along an axis are, of the group that is spread most. Ranks are
        counted with the last axis as the fastest, host by host.
        """
        axes, strides, stride = list(sizes), {}, 1
        for axis in reversed(axes):
            strides[axis] = stride
            stride *= sizes[axis]
        others = [range(0, sizes[a] * strides[a], strides[a]) for a in axes if a != over]
        along = range(0, sizes[over] * strides[over], strides[over])
        most = (1, -sizes[over])
        for first in map(sum, product(*others)):
            counts = Counter((first + further) // self.ranks_per_host for further in along)
            most = max(most, (len(counts), -min(counts.values())))
        return Reach(sizes[over], most[0], -most[1])

    def bandwidth(self, reach: Reach) -> float:
        """Return the bytes in a microsecond that a ring through all ranks carries."""
        found = [self.inside.bandwidth] if reach.per_host > 1 or reach.hosts == 1 else []
        if reach.hosts > 1:
            found.append(reach.per_host * self.between.bandwidth)
        return min(found)

    def time(self, pattern: str, count: int, reach: Reach) -> tuple[float, str]:
        """Return microseconds, and the algorithm, of an exchange of so many bytes: of one rank's
        whole tensor, the longer of argument and result.

        pattern: of `Op.collective`: "all_reduce"; "gather", which each rank's part of a tensor
        takes part in, or "scatter"; "broadcast"; "all_to_all"; "send".
        """
        if reach.ranks == 1:
            return 0.0, ""
        names = [n for n in ALGORITHMS if n in self.inside.hops and n in self.between.hops]
        if pattern != "all_reduce":
            names = [n for n in names if not ALGORITHMS[n].tree]
        found = ((self._one(n, pattern, count, reach), n) for n in names)
        return min(found, key=lambda pair: pair[0])

    def _one(self, name: str, pattern: str, count: int, reach: Reach) -> float:
        algorithm, n, hosts = ALGORITHMS[name], reach.ranks, reach.hosts
        inner, outer = self.inside.hops[name], self.between.hops[name]
        startup = algorithm.startup
        if name == "ring":
            startup = max(self.inside.startup, self.between.startup if hosts > 1 else 0.0)
        rate = algorithm.share * self.bandwidth(reach)
        if algorithm.tree:
            hops = 2 * ((-(-n // hosts) - 1) * inner + math.log2(hosts) * outer)
            return startup + hops + 2 * count / rate
        around = (n - hosts) * inner + (hosts - 1) * outer
        if pattern == "all_reduce":
            return startup + 2 * around + 2 * (n - 1) / n * count / rate
        if pattern == "broadcast":
            return startup + around + count / rate
        if pattern == "send":
            return startup + (outer if hosts > 1 else inner) + count / self._own(reach)
        if pattern == "all_to_all":
            beside = (reach.per_host - 1) / n * count / (algorithm.share * self.inside.bandwidth)
            away = (n - reach.per_host) / n * count / (algorithm.share * self.between.bandwidth)
            return startup + around + max(beside, away if hosts > 1 else 0.0)
        return startup + around + (n - 1) / n * count / rate

    def _own(self, reach: Reach) -> float:
        """Return the bandwidth from one device to another."""
        return self.between.bandwidth if reach.hosts > 1 else self.inside.bandwidth


WORK, RANKS = "bytes", "ranks"
"""In a cost of a link: the bytes of an all_reduce, and how many ranks took part."""
BY = "torch"
"""Whose the exchanges are."""


def links_key(where: str, device: Device) -> Key:
    """Return the key under which the times of links are kept, `INSIDE` or `BETWEEN`."""
    return Key("links", where, device, "eager", False)


def link_cost(count: int, ranks: int, time: Timing) -> Cost:
    """Return how the time of an all_reduce of so many bytes is kept."""
    return Cost(BY, ((WORK, count), (RANKS, ranks)), time)


def links_of(device: Device) -> Links:
    """Return the links of the machines that a device is of, as they were measured, or else the
    defaults.
    """
    beside = OVERLAP_COST_ON_CUDA if device.kind == "cuda" else 0.0
    inside, between = _stored(INSIDE, device, NVLINK), _stored(BETWEEN, device, INFINIBAND)
    return Links(inside, between, beside=beside)


def _stored(where: str, device: Device, default: Link) -> Link:
    race = find(links_key(where, device))
    if race is None:
        return default
    times: dict[int, float] = {}
    ranks = 0
    for cost in race.costs:
        said = dict(cost.config)
        work, ranks_then = said.get(WORK), said.get(RANKS)
        if isinstance(work, int) and isinstance(ranks_then, int) and cost.forward is not None:
            times[work], ranks = cost.forward.median, ranks_then
    hops = default.hops if device.kind == "cuda" else None  # Gloo has no trees
    return fitted(f"a link {where} hosts", times, ranks, hops, measured=True)
