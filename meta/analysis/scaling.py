"""How long a step of a distributed program takes, and what a rank needs, on a mesh that may not be
there: kernels as `cost` tells them, exchanges as `meta.cost.interconnect` does. A `Timeline` is the
program by the clock: when kernels and exchanges begin and end on a rank.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meta.analysis.memory import MemoryReport, memory
from meta.base.device import Device, require
from meta.base.errors import ArgumentError, DistributedError
from meta.base.html import bytes_text, fragment, table, tag
from meta.base.source import Span
from meta.cost.flops import ProgramTotal
from meta.cost.interconnect import STARTED, WAIT, Links, Reach, links_of
from meta.cost.predict import NO_TIME, Predictor, Time
from meta.dialect.core import FUSED
from meta.dialect.core.ir_calls import arg_types, called_op
from meta.ir import (
    Binding,
    Block,
    Call,
    Expr,
    GlobalVar,
    If,
    Module,
    Var,
    operands,
    type_bytes,
    type_of,
)
from meta.op.core import Op
from meta.runtime.mesh import axis_sizes

OF_ANY_SIZE = frozenset(
    ("all_reduce", "multi_tensor_all_reduce", "reduce_from", "copy_to", "broadcast_from")
) | {"reduce_to", "axis_index", "collective_wait"}
"""Collectives after which a program is the same for any number of ranks, but for that number."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """A collective of a program.

    Attributes
    ----------
    operator, over: which, along which axis. reach: its ranks. bytes: of the tensor that is
    exchanged. algorithm: as predicted. time: microseconds of the exchange. exposed: those for
    which the device has nothing else to do.
    """

    operator: str
    over: str
    reach: Reach
    bytes: int
    algorithm: str
    time: float
    exposed: float
    span: Span | None

    def record(self) -> dict[str, Any]:
        """Return the row as values that JSON has."""
        return {
            "operator": self.operator,
            "over": self.over,
            "ranks": self.reach.ranks,
            "hosts": self.reach.hosts,
            "bytes": self.bytes,
            "algorithm": self.algorithm,
            "microseconds": self.time,
            "exposed": self.exposed,
            "line": None if self.span is None else str(self.span),
        }


_Started = tuple[str, frozenset[Expr]]
"""A collective that goes on: its axis, and its arguments and results."""


@dataclass
class Clock:
    """Where a rank is.

    now: when the last kernel ends. free: when the last exchange does. pending: what was started and
    is not waited for: its axis and arguments, the number of its row, and when it ends.
    """

    now: float = 0.0
    free: float = 0.0
    pending: list[tuple[_Started, int, float]] = field(default_factory=list)
    rows: list[Exchange] = field(default_factory=list)

    def run(self, time: float, beside: float) -> None:
        """Let a kernel run that takes so long by itself. What goes on beside it and the kernel hold
        each other up.
        """
        longer = beside * min(time, max(0.0, self.free - self.now))
        self.now += time + longer
        if longer:
            self.free += longer
            self.pending = [(what, row, end + longer) for what, row, end in self.pending]

    def copy(self) -> Clock:
        """Return another clock that goes on from here."""
        return replace(self, pending=list(self.pending), rows=list(self.rows))


class Timeline:
    """Runs a typed program by the clock, on a mesh of these sizes, which need not be there.

    factor: how much longer kernels take than predicted.
    """

    def __init__(
        self, module: Module, sizes: Mapping[str, int], links: Links, predictor: Predictor
    ) -> None:
        self.module, self.sizes, self.links, self.predictor = module, sizes, links, predictor
        self.factor = 1.0
        self.reaches: dict[str, Reach] = {}
        self.inside: set[str] = set()

    def kernels(self) -> Time:
        """Return the time of all kernels of main."""
        total = ProgramTotal(self.module, self._kernel, NO_TIME, lambda time: time.total)
        return total.block(self.module.main.body)

    def _kernel(self, binding: Binding) -> Time | None:
        op = called_op(binding.value)
        if op is not None and op.collective not in ("", "nothing"):
            return NO_TIME
        launch = self.predictor.launch(binding)
        return None if launch is None else launch.time

    def _called(self, binding: Binding) -> str | None:
        """Return the function that a binding calls, None if it calls none, or a kernel."""
        value = binding.value
        if not isinstance(value, Call) or not isinstance(value.callee, GlobalVar):
            return None
        name = value.callee.name
        return None if FUSED in self.module.functions[name].attrs else name

    def block(self, block: Block, clock: Clock) -> Clock:
        """Run a block from a moment on; return the moment of its end."""
        for binding in block.bindings:
            clock = self.binding(binding, clock)
        return clock

    def binding(self, binding: Binding, clock: Clock) -> Clock:
        """Run a binding from a moment on; return the moment of its end."""
        value = binding.value
        if isinstance(value, If):
            blocks = value.then_block, value.else_block
            clocks = [self.block(block, clock.copy()) for block in blocks]
            return max(clocks, key=lambda one: one.now)
        name = self._called(binding)
        if name is not None:
            if name not in self.inside:
                self.inside.add(name)
                clock = self.block(self.module.functions[name].body, clock)
                self.inside.discard(name)
            return clock
        op = called_op(value)
        if isinstance(value, Call) and op is not None and op.collective:
            self._collective(op, value, binding, clock)
        else:
            time = self.factor * self.predictor.binding(binding).total
            clock.run(time, self.links.beside)
        return clock

    def _collective(self, op: Op, call: Call, binding: Binding, clock: Clock) -> None:
        args = dict(zip(op.schema.names, arg_types(op, call), strict=True))
        over, size = args["over"], args["size"]
        reach = self._reach(op, over, size)
        what = over, frozenset(atom for atom in operands(call) if atom is not call.callee)
        if op.collective == WAIT:
            self._wait(what, clock)
            return
        if op.collective == "nothing":
            clock.now += self.factor * self.predictor.binding(binding).total
            return
        given = sum(map(type_bytes, _leaves(args["x"])))
        count = max(given, type_bytes(type_of(binding.var)))
        time, algorithm = self.links.time(op.collective, count, reach)
        begin = max(clock.now, clock.free)
        clock.free = begin + time
        exposed = 0.0
        if op.name.endswith(STARTED):
            made = {binding.var} if type_bytes(type_of(binding.var)) else set[Var]()
            clock.pending.append(((over, what[1] | made), len(clock.rows), clock.free))
        else:
            exposed, clock.now = clock.free - clock.now, clock.free
        row = Exchange(op.name, over, reach, count, algorithm, time, exposed, binding.span)
        clock.rows.append(row)

    def _wait(self, what: _Started, clock: Clock) -> None:
        """Wait for what was started."""
        for place, (started, row, end) in enumerate(clock.pending):
            if started == what:
                del clock.pending[place]
                exposed = max(0.0, end - clock.now)
                clock.rows[row] = replace(clock.rows[row], exposed=exposed)
                clock.now = max(clock.now, end)
                return
        raise DistributedError(f"the program waits along {what[0]!r} for what was not started")

    def _reach(self, op: Op, over: str, size: int) -> Reach:
        """Return where the ranks of a collective are; DistributedError if the program is for
        another mesh.
        """
        if over not in self.sizes:
            raise DistributedError(
                f"the program exchanges along {over!r}",
                expected="an axis of the mesh",
                found=str(dict(self.sizes)),
            )
        found = self.sizes[over]
        if found != size and op.name.removesuffix(STARTED) not in OF_ANY_SIZE:
            raise DistributedError(
                f"the program is for {size} ranks along {over!r}: its {op.name} depends on that",
                found=f"a mesh with {over}={found}",
                hint=f"trace it within meta.distributed.planned({dict(self.sizes)})",
            )
        if over not in self.reaches:
            self.reaches[over] = self.links.reach(self.sizes, over)
        return self.reaches[over]


def _leaves(argument: Any) -> tuple[Any, ...]:
    """Return the types of an argument: one, or several."""
    return argument if isinstance(argument, tuple) else (argument,)


@dataclass(frozen=True, slots=True)
class ScalingReport:
    """The predicted time and memory of a rank.

    Attributes
    ----------
    mesh: its axes. hosts: how many. links: of what. rows: the collectives, in order. kernels: the
    microseconds of all kernels, as far as they were measured and as far as they are estimated.
    total: microseconds of one run of main. memory: of a rank, as `meta.analysis.memory` reports it.
    device, how: for what kernels were predicted. whole: whether the time of kernels was given.

    >>> total = meta.model.trace(lambda x: meta.distributed.all_reduce(x, "dp"))
    >>> with meta.distributed.planned({"dp": 16}):
    ...     program = total.program(meta.ones(1024))
    >>> report = meta.analysis.scaling(program.module, {"dp": 16}, device="cpu")
    >>> report.ranks, report.hosts, [row.operator for row in report.rows]
    (16, 2, ['all_reduce'])
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

    >>> total = meta.model.trace(lambda x: meta.distributed.all_reduce(x, "dp"))
    >>> with meta.distributed.planned({"dp": 16}):
    ...     program = total.program(meta.ones(1024))
    >>> report = meta.analysis.scaling(program.module, {"dp": 16}, device="cpu")
    >>> report.communication > 0, report.total >= report.communication
    (True, True)
    """
    sizes = axis_sizes(mesh)
    where = require("cpu" if device is None else device)
    found = links_of(where) if link is None else link
    predictor = Predictor(module, where, how)
    timeline = Timeline(module, sizes, found, predictor)
    of_kernels = timeline.kernels()
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
