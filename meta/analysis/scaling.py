"""How long a step of a distributed program takes, and what a rank needs, on a mesh that may not be
there: kernels as `cost` tells them, exchanges as `meta.cost.interconnect` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from meta.analysis.memory import MemoryReport, memory
from meta.base.device import Device, require
from meta.base.errors import ArgumentError
from meta.base.html import bytes_text, fragment, table, tag
from meta.cost.interconnect import Links, links_of
from meta.cost.predict import Predictor, Time
from meta.cost.timeline import Clock, Exchange, Timeline
from meta.ir import Module
from meta.runtime.mesh import axis_sizes


@dataclass(frozen=True, slots=True)
class ScalingReport:
    """The predicted time and memory of a rank.

    Attributes
    ----------
    mesh: its axes. hosts: how many. links: of what. rows: the collectives, in order. kernels: the
    microseconds of all kernels, as far as they were measured and as far as they are estimated.
    total: microseconds of one run of main. memory: of a rank, as `meta.analysis.memory` reports it.
    device, how: for what kernels were predicted. whole: whether the time of kernels was given.
    """

    mesh: Mapping[str, int]
    hosts: int
    links: Links
    rows: tuple[Exchange, ...]
    kernels: Time
    total: float
    memory: MemoryReport
    device: Device
    how: str
    whole: bool

    @property
    def ranks(self) -> int:
        """How many ranks the mesh has."""
        return _product(self.mesh.values())

    @property
    def communication(self) -> float:
        """The microseconds of all exchanges, hidden or not."""
        return sum(row.time for row in self.rows)

    @property
    def exposed(self) -> float:
        """The microseconds of a step that exchanges add to those of kernels."""
        return self.total - self.kernels.total

    @property
    def at_best(self) -> float:
        """The microseconds of a step whose exchanges all went on beside kernels: a bound."""
        return max(self.kernels.total, self.communication)

    @property
    def efficiency(self) -> float:
        """The part of a step that kernels take; 1 for a program that does nothing."""
        return self.kernels.total / self.total if self.total else 1.0

    @property
    def memory_bytes(self) -> int:
        """What a rank needs: inputs, a model's arrays, constants, and results at the peak."""
        return self.memory.arguments + self.memory.constants + self.memory.peak

    def by_operator(self) -> dict[tuple[str, str], tuple[int, int, float, float]]:
        """Return calls, bytes, microseconds and those exposed by operator and axis."""
        found: dict[tuple[str, str], tuple[int, int, float, float]] = {}
        for row in self.rows:
            calls, count, time, exposed = found.get((row.operator, row.over), (0, 0, 0.0, 0.0))
            so_far = calls + 1, count + row.bytes, time + row.time, exposed + row.exposed
            found[row.operator, row.over] = so_far
        return found

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as values that JSON has."""
        return [row.record() for row in self.rows]

    def _title(self) -> str:
        axes = ", ".join(f"{axis}={size}" for axis, size in self.mesh.items())
        hosts = f"{self.hosts} host{'s' * (self.hosts > 1)}"
        ranks = f"{self.ranks} rank{'s' * (self.ranks > 1)}"
        if self.whole:
            known = "measured as a whole"
        else:
            share = self.kernels.measured / self.kernels.total if self.kernels.total else 1.0
            known = f"{share:.0%} measured, on {self.device}"
        return (
            f"{ranks} ({axes}) on {hosts}: {self.total:,.1f} us a step, predicted; kernels "
            f"{self.kernels.total:,.1f} us ({known}), exchanges "
            f"{self.communication:,.1f} us, of which {self.exposed:,.1f} us are not hidden"
        )

    def _memory(self) -> str:
        arrays = bytes_text(self.memory.arguments + self.memory.constants)
        peak = bytes_text(self.memory.peak)
        return (
            f"memory of a rank: {bytes_text(self.memory_bytes)} ({arrays} kept, {peak} for a run)"
        )

    def _lines(self) -> list[tuple[str, str, str, str, str, str, str]]:
        return [
            (
                *(operator, over, f"{calls}", bytes_text(count), f"{time:,.1f}", f"{exposed:,.1f}"),
                ", ".join(sorted({r.algorithm for r in self._of(operator, over)})),
            )
            for (operator, over), (calls, count, time, exposed) in self.by_operator().items()
        ]

    def _of(self, operator: str, over: str) -> Iterator[Exchange]:
        return (r for r in self.rows if (r.operator, r.over) == (operator, over) and r.algorithm)

    def __str__(self) -> str:
        lines = [self._title(), self._memory(), f"links {self.links}"]
        for operator, over, calls, count, time, exposed, algorithm in self._lines():
            figures = f"{calls:>5s} {count:>10s} {time:>12s} us {exposed:>12s} us"
            lines.append(f"  {operator:32s} {over:8s} {figures}  {algorithm}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        head = ("collective", "axis", "calls", "bytes", "us", "us not hidden", "algorithm")
        shown = table(head, self._lines(), numbers=(2, 3, 4, 5), code=(0,))
        about = (tag("div", line) for line in (self._memory(), f"links {self.links}"))
        return fragment(tag("div", self._title(), class_="title"), *about, shown)


def scaling(
    module: Module,
    mesh: int | Mapping[str, int],
    link: Links | None = None,
    *,
    device: object = None,
    how: str | None = None,
    kernels: float | None = None,
) -> ScalingReport:
    """Predict time and memory of a rank that runs a typed module's main once on a mesh, which need
    not be there.

    Parameters
    ----------
    module: at any stage of compilation; of a compiled program ``run.module``. It is for the mesh:
        traced within `meta.distributed.planned`, or, if all that its ranks do together are sums and
        the like, for any number of ranks.
    mesh: axes and sizes; a number is the size of "dp". Ranks are counted with the last axis as the
        fastest, host by host.
    link: what connects devices; by default what `meta.distributed.measure_links` measured on the
        machines at hand, or else NVLink within hosts of eight and InfiniBand between.
    device, how: for which kernels are predicted, see `cost`.
    kernels: the microseconds of all kernels, where they were measured as a whole, such as the step
        of a program on one rank; they are spread over the kernels as predicted.

    A collective takes its place among the kernels, unless a pass has let it go on beside them:
    such ones follow one another, and the step waits where the program does. Kernels beside an
    exchange get slower, by ``link.beside``. What a kernel of a collective copies on its own device
    is not counted. Nothing is measured here.

    Raises ArgumentError for a mesh that is none, DistributedError for a program of another mesh,
    DeviceError for a device that is not there.
    """
    sizes = axis_sizes(mesh)
    where = require("cpu" if device is None else device)
    found = links_of(where) if link is None else link
    predictor = Predictor(module, where, how)
    timeline = Timeline(module, sizes, found, predictor)
    of_kernels = timeline.kernels(module.main.body)
    if kernels is not None:
        if kernels <= 0:
            raise ArgumentError("kernels take some time", expected="kernels > 0", found=kernels)
        if of_kernels.total:
            timeline.factor = kernels / of_kernels.total
        of_kernels = Time(measured=kernels)
    clock = timeline.block(module.main.body, Clock())
    total = max([clock.now, *(end for *_, end in clock.pending)])
    count = _product(sizes.values())
    return ScalingReport(
        sizes,
        -(-count // found.ranks_per_host),
        found,
        tuple(clock.rows),
        of_kernels,
        total,
        memory(module),
        where,
        predictor.how,
        kernels is not None,
    )


def _product(sizes: Any) -> int:
    count = 1
    for size in sizes:
        count *= size
    return count
