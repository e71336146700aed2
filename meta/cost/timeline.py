"""A distributed program by the clock: when kernels and exchanges begin and end on a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from meta.base.errors import DistributedError
from meta.base.source import Span
from meta.cost.interconnect import PATTERNS, STARTED, WAIT, Links, Reach
from meta.cost.predict import NO_TIME, Predictor, Time
from meta.dialect.core import FUSED
from meta.dialect.core.ir_calls import arg_types, base_op
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

OF_ANY_SIZE = frozenset(
    ("all_reduce", "multi_tensor_all_reduce", "reduce_from", "copy_to", "broadcast_from")
) | {"reduce_to", "axis_index", WAIT}
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

    def kernels(self, block: Block) -> Time:
        """Return the time of all kernels of a block."""
        return sum(map(self._kernel, block.bindings), NO_TIME)

    def _kernel(self, binding: Binding) -> Time:
        value = binding.value
        if isinstance(value, If):
            blocks = self.kernels(value.then_block), self.kernels(value.else_block)
            return max(blocks, key=lambda time: time.total)
        name = self._called(binding)
        if name is not None:
            if name in self.inside:
                return NO_TIME
            self.inside.add(name)
            found = self.kernels(self.module.functions[name].body)
            self.inside.discard(name)
            return found
        op = base_op(value.callee) if isinstance(value, Call) else None
        exchanges = op is not None and op.collective and _pattern(op) != "nothing"
        return NO_TIME if exchanges else self.predictor.binding(binding)

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
        op = base_op(value.callee) if isinstance(value, Call) else None
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
        if op.name == WAIT:
            self._wait(what, clock)
            return
        pattern = _pattern(op)
        if pattern == "nothing":
            clock.now += self.factor * self.predictor.binding(binding).total
            return
        given = sum(map(type_bytes, _leaves(args["x"])))
        count = max(given, type_bytes(type_of(binding.var)))
        time, algorithm = self.links.time(pattern, count, reach)
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


def _pattern(op: Op) -> str:
    """Return what a collective exchanges, as `Links.time` calls it."""
    return "" if op.name == WAIT else PATTERNS[op.name.removesuffix(STARTED)]


def _leaves(argument: Any) -> tuple[Any, ...]:
    """Return the types of an argument: one, or several."""
    return argument if isinstance(argument, tuple) else (argument,)
