"""How much memory a program needs, and what for. Inputs and constants are counted apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from meta.analysis.memory_diagram import memory_svg
from meta.base.html import Html, bytes_text, fragment, table, tag
from meta.base.source import Span
from meta.cost.interconnect import PATTERNS
from meta.dialect.core.ir_calls import called_op
from meta.ir import Constant, Module, bindings, operands, type_bytes
from meta.ir.printer import first_lines
from meta.passes.liveness import Liveness
from meta.passes.plan_memory import ARENA, OFFSETS, planned_peak


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One result of a binding.

    Attributes
    ----------
    binding, output: which. text: the binding. bytes: its size. first, last: the bindings between
    which it is in use. offset: where in the arena it is; None if it is allocated when it is
    computed. shared: whether it is written over an operand. at_peak: whether it is in use then.
    """

    binding: int
    output: int
    text: str
    bytes: int
    first: int
    last: int
    offset: int | None
    shared: bool
    at_peak: bool
    exchanged: bool
    span: Span | None

    def record(self) -> dict[str, Any]:
        """Return the row as values that JSON has."""
        names = ("binding", "output", "text", "bytes", "first", "last", "offset", "shared")
        line = None if self.span is None else str(self.span)
        found = {n: getattr(self, n) for n in (*names, "at_peak", "exchanged")}
        return {**found, "line": line}


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The memory of a module's main, in bytes.

    Attributes
    ----------
    arguments: of main's parameters, the inputs and a model's arrays. constants: of the program.
    total: of all results together. lower_bound: of the results in use at the worst moment, below
    which no plan can be. arena: of the planned memory. peak: what the plan takes, arena and what is
    allocated beside it; without a plan the lower bound. worst: the binding at the worst moment.
    rows: one per result, in the order of the program. exchanged: of the results that collectives
    read or write, the most that is in use at the same time. workspaces, graphs, states: of a
    compiled program, the most that a kernel takes while it runs, as far as it is known (not of
    ATen's), what recorded CUDA graphs keep, workspaces included, and what kernels keep between
    calls.
    """

    arguments: int
    constants: int
    total: int
    lower_bound: int
    arena: int
    peak: int
    worst: int
    rows: tuple[MemoryRow, ...]
    exchanged: int = 0
    workspaces: int = 0
    graphs: int = 0
    states: int = 0

    def at_peak(self) -> list[MemoryRow]:
        """Return what is in use at the worst moment, the largest first."""
        return sorted((r for r in self.rows if r.at_peak), key=lambda r: -r.bytes)

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as values that JSON has."""
        return [row.record() for row in self.rows]

    def _kept(self) -> str:
        states = f", states {self.states:,}" if self.states else ""
        return f"beside it: workspaces {self.workspaces:,}, CUDA graphs {self.graphs:,}{states}"

    def __str__(self) -> str:
        lines = [
            f"peak {self.peak:,} bytes (arena {self.arena:,}; in use {self.lower_bound:,}; all "
            f"results {self.total:,}), arguments {self.arguments:,}, constants {self.constants:,}",
            *([f"exchanged between ranks: {self.exchanged:,} of it"] if self.exchanged else []),
            *([self._kept()] if self.workspaces or self.graphs or self.states else []),
            f"in use at binding {self.worst}:",
            f"  {'bytes':>12s} {'offset':>12s} {'life':>11s}  result",
        ]
        for row in self.at_peak():
            place = "-" if row.offset is None else f"{row.offset:,}"
            life = f"{row.first}..{row.last}"
            mark = "  (exchanged)" * row.exchanged
            lines.append(f"  {row.bytes:12,d} {place:>12s} {life:>11s}  {row.text}{mark}")
        return "\n".join(lines)

    def sizes(self) -> list[tuple[str, str]]:
        """Return what takes memory, and how much, for people."""
        found = {
            "peak": self.peak,
            "arena": self.arena,
            "results in use at the worst moment": self.lower_bound,
            "all results": self.total,
            "results exchanged between ranks, at most": self.exchanged,
            "arguments": self.arguments,
            "constants": self.constants,
            "workspaces of kernels": self.workspaces,
            "CUDA graphs": self.graphs,
            "states of kernels": self.states,
        }
        always = ("peak", "arena", "arguments")
        return [(n, bytes_text(count)) for n, count in found.items() if count or n in always]

    def picture(self) -> Html:
        """Return how much is in use when, and who is where, as SVG (`memory_diagram`)."""
        return memory_svg(self)

    def peak_table(self) -> Html:
        """Return what is in use at the worst moment as a table of HTML."""
        rows = [
            (
                bytes_text(row.bytes),
                "beside" if row.offset is None else f"{row.offset:,}",
                f"{row.first} to {row.last}",
                row.text,
                row.span or "",
            )
            for row in self.at_peak()
        ]
        head = ("bytes", "offset", "in use", "result", "line")
        return table(head, rows, numbers=(0, 1, 2), code=(3, 4), most=20)

    def _repr_html_(self) -> str:
        peak = tag("div", f"In use at binding {self.worst}:")
        sizes = table((), self.sizes(), numbers=(1,))
        return fragment(sizes, self.picture(), peak, self.peak_table())


def memory(module: Module) -> MemoryReport:
    """Report the memory of one call of a typed module's main, at any stage of compilation.

    Functions that main calls are not looked into: their results count, not what they need.
    """
    main = module.main
    lives = Liveness(main, module)
    in_use = lives.live_bytes()
    worst = max(range(len(in_use)), key=in_use.__getitem__, default=0)
    offsets = {(i, j): at for i, j, at in main.attrs.get(OFFSETS, ())}
    texts = [line.partition("  #")[0] for line in first_lines(main, lives.bindings)]
    exchanged = _collective_buffers(lives)
    rows = []
    for number, buffer in enumerate(lives.buffers):
        binding, text = lives.bindings[buffer.binding], texts[buffer.binding]
        in_use_then = buffer.over is None and buffer.binding <= worst <= buffer.last
        place = offsets.get((buffer.binding, buffer.output))
        rows.append(
            MemoryRow(
                *(buffer.binding, buffer.output, text, buffer.size),
                *(buffer.binding, min(buffer.last, len(lives.bindings) - 1), place),
                shared=buffer.over is not None,
                at_peak=in_use_then,
                exchanged=number in exchanged,
                span=binding.span,
            )
        )
    used = {a for b in bindings(main) for a in operands(b.value) if isinstance(a, Constant)}
    return MemoryReport(
        arguments=sum(type_bytes(p.type) for p in main.params),
        constants=sum(type_bytes(c.type) for c in used),
        total=sum(row.bytes for row in rows if not row.shared),
        lower_bound=max(in_use, default=0),
        arena=main.attrs.get(ARENA, 0),
        peak=planned_peak(main, module),
        worst=worst,
        rows=tuple(rows),
        exchanged=_peak_bytes([row for row in rows if row.exchanged]),
    )


def _collective_buffers(lives: Liveness) -> set[int]:
    """Return the numbers of the buffers that collectives read or write."""
    found: set[int] = set()
    for binding in lives.bindings:
        op = called_op(binding.value)
        if op is not None and op.collective and PATTERNS.get(op.name) != "nothing":
            for atom in operands(binding.value):
                found |= lives.of(atom)
            found |= lives.of(binding.var)
    return found


def _peak_bytes(rows: list[MemoryRow]) -> int:
    """Return the most bytes that some results take at the same time, those written over another one
    left out.
    """
    change: Counter[int] = Counter()
    for row in rows:
        if not row.shared:
            change[row.first] += row.bytes
            change[row.last + 1] -= row.bytes
    return max(accumulate(change[moment] for moment in sorted(change)), default=0)
