"""How much memory a program needs, and what for, as a report and as a picture. Inputs and constants
are counted apart.

In the picture, time runs to the right, in bindings. Above is what is in use. Below, a result is a
rectangle from its first to its last binding: within the arena at its offset, and what is allocated
beside the arena on top of each other. The moment of the peak is marked, and what is in use then is
drawn in full colour. The rectangles say what they are when pointed at.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from meta.base.html import Html, bytes_text, fragment, join, table, tag
from meta.base.source import Span
from meta.dialect.core.ir_calls import called_op
from meta.ir import Constant, Module, bindings, operands, type_bytes
from meta.ir.printer import first_lines
from meta.passes.liveness import Liveness
from meta.passes.plan_memory import ARENA, OFFSETS, planned_peak
from meta.runtime.arena import Lifetime, plan

WIDTH, LEFT = 960, 64
"""Of the picture, and what is kept free at its left for the numbers."""
CURVE, LANES = 90, 190
"""Heights of the curve, and of the places of results."""
MAX_RECTANGLES = 3000
"""Smaller results of larger programs are not drawn."""
_TITLE, _GAP = 16, 14
_COLOURS = ("#4c8bf5", "#2ca58d", "#d9822b", "#9a6fd1", "#d1557a", "#6b9a1f", "#3aa0c2", "#b08a2e")


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

    >>> program = meta.model.trace(lambda x: (x + 1.0) * x).program(meta.ones(1024))
    >>> report = meta.analysis.memory(program.module)
    >>> report.arguments, report.total, report.lower_bound
    (4096, 8192, 8192)
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
        """Return how much is in use when, and who is where, as SVG (`memory_svg`)."""
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

    >>> program = meta.model.trace(lambda x: (x + 1.0) * x).program(meta.ones(1024))
    >>> meta.analysis.memory(program.module).peak
    8192
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
        if op is not None and op.collective not in ("", "nothing"):
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


def memory_svg(report: MemoryReport) -> Html:
    """Return the picture as an element ``svg``; a line of text for a program without results."""
    rows = [r for r in report.rows if r.bytes]
    if not rows:
        return tag("p", "The program computes nothing that takes memory.")
    drawn = sorted(rows, key=lambda r: -r.bytes)[:MAX_RECTANGLES]
    moments = max(r.last for r in rows) + 1
    picture = _Picture(moments, report.worst)
    picture.curve(rows)
    inside = [(r, r.offset) for r in drawn if r.offset is not None]
    if inside:
        picture.lanes(f"arena, {bytes_text(report.arena)}", report.arena, inside)
    beside = [r for r in drawn if r.offset is None and not r.shared]
    if beside:
        offsets, size = plan([Lifetime(r.bytes, r.first, r.last) for r in beside])
        title = f"allocated beside the arena, {bytes_text(size)} at most"
        picture.lanes(title, size, list(zip(beside, offsets, strict=True)))
    picture.axis()
    return picture.svg(f"memory of {len(rows)} results over {moments} bindings")


class _Picture:
    """Collects elements from top to bottom."""

    def __init__(self, moments: int, worst: int) -> None:
        self.moments, self.worst = moments, worst
        self.step = (WIDTH - LEFT - 1) / moments
        self.top = 0.0
        self.parts: list[Html] = []

    def x(self, moment: float) -> float:
        return LEFT + moment * self.step

    def text(self, x: float, y: float, text: object, anchor: str = "start") -> None:
        self.parts.append(tag("text", text, x=_n(x), y=_n(y), text_anchor=anchor))

    def panel(self, title: str, height: float) -> float:
        """Begin a panel with a title and a frame; return where it starts."""
        self.text(LEFT, self.top + _TITLE - 5, title)
        top = self.top + _TITLE
        x, y, w, h = map(_n, (LEFT, top, WIDTH - LEFT - 1, height))
        self.parts.append(tag("rect", x=x, y=y, width=w, height=h, class_="frame"))
        self.top = top + height + _GAP
        return top

    def scale(self, top: float, height: float, most: int) -> None:
        """Write the numbers at the left of a panel."""
        self.text(LEFT - 6, top + 10, bytes_text(most), "end")
        self.text(LEFT - 6, top + height, "0", "end")

    def peak(self, top: float, height: float) -> None:
        x = _n(self.x(self.worst + 0.5))
        line = tag("line", x1=x, x2=x, y1=_n(top), y2=_n(top + height), class_="peak")
        self.parts.append(line)

    def curve(self, rows: Sequence[MemoryRow]) -> None:
        """Draw how much is in use: steps, from binding to binding."""
        change = [0] * (self.moments + 1)
        for row in rows:
            if not row.shared:
                change[row.first] += row.bytes
                change[row.last + 1] -= row.bytes
        in_use = list(accumulate(change))[:-1]
        most = max(in_use)
        top = self.panel(f"in use, {bytes_text(most)} at most", CURVE)
        points = [f"M{LEFT} {_n(top + CURVE)}"]
        for moment, count in enumerate(in_use):
            y = _n(top + CURVE * (1 - count / most))
            points.append(f"V{y}H{_n(self.x(moment + 1))}")
        points.append(f"V{_n(top + CURVE)}Z")
        self.parts.append(tag("path", d="".join(points), class_="curve"))
        self.scale(top, CURVE, most)
        self.peak(top, CURVE)
        right = self.x(self.worst) > (WIDTH + LEFT) / 2
        x = self.x(self.worst + 0.5) + (-5 if right else 5)
        self.text(x, top + 12, f"peak at binding {self.worst}", "end" if right else "start")

    def lanes(self, title: str, size: int, places: Sequence[tuple[MemoryRow, int]]) -> None:
        """Draw results at their offsets; the first line of the memory is at the bottom."""
        top = self.panel(title, LANES)
        for row, offset in sorted(places, key=lambda p: p[0].shared):
            height = max(LANES * row.bytes / size, 0.8)
            y = top + LANES * (1 - offset / size) - height
            width = (row.last - row.first + 1) * self.step
            colour = _COLOURS[row.binding % len(_COLOURS)]
            kind = "over" if row.shared else "now" if row.at_peak else None
            about = f"{row.text}\n{bytes_text(row.bytes)}, bindings {row.first} to {row.last}"
            about += ", written over an operand" * row.shared + ", in use at the peak" * row.at_peak
            box = tag(
                "rect", tag("title", about), x=_n(self.x(row.first)), y=_n(y), width=_n(width),
                height=_n(height), fill=colour, class_=kind,
            )  # fmt: skip
            self.parts.append(box)
            name = _short(row.text)
            room = int(width / 6.2) - 1
            if height >= 13 and room >= 3 and not row.shared:
                shown = name if len(name) <= room else name[: room - 1] + "…"
                label = tag(
                    "text", shown, x=_n(self.x(row.first) + 4), y=_n(y + height / 2 + 4),
                    class_="in",
                )  # fmt: skip
                self.parts.append(label)
        self.scale(top, LANES, size)
        self.peak(top, LANES)

    def axis(self) -> None:
        """Write numbers of bindings below all."""
        every = max(-(-self.moments // 12), 1)
        for moment in range(0, self.moments, every):
            self.text(self.x(moment + 0.5), self.top - 1, moment, "middle")
        self.text(0, self.top - 1, "binding")
        self.top += 4

    def svg(self, label: str) -> Html:
        return join(
            (
                tag("style", Html(_STYLE)),
                tag(
                    "svg", *self.parts, viewBox=f"0 0 {WIDTH} {_n(self.top)}", role="img",
                    aria_label=label, class_="meta-memory",
                ),
            )
        )  # fmt: skip


_STYLE = (
    ".meta-memory{width:100%;max-width:1100px;display:block;font:11px system-ui,sans-serif;"
    "fill:currentColor}.meta-memory .frame{fill:none;stroke:currentColor;stroke-opacity:.25}"
    ".meta-memory .curve{fill:#4c8bf5;fill-opacity:.3;stroke:#4c8bf5}"
    ".meta-memory .peak{stroke:#d1342f;stroke-dasharray:3 3}"
    ".meta-memory rect{fill-opacity:.35;stroke:currentColor;stroke-opacity:.22;stroke-width:.5}"
    ".meta-memory .now{fill-opacity:.85}.meta-memory .over{fill-opacity:.1;stroke-opacity:.5}"
    ".meta-memory .in{pointer-events:none}"
)


def _n(number: float) -> str:
    """Return a coordinate, to a hundredth."""
    return f"{number:.2f}".rstrip("0").rstrip(".")


def _short(text: str) -> str:
    """Return the operator of a binding, without its dialect and arguments."""
    value = text.partition(" = ")[2] or text
    return value.partition("(")[0].lstrip("@").rpartition(".")[2]
