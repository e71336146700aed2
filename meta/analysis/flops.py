"""How many operations a program does. The formulas are in `meta.cost.flops`, by operator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from meta.base.html import bytes_text, fragment, table, tag
from meta.base.source import Span
from meta.cost.flops import NOTHING, Work, work_of
from meta.dialect.core import FUSED
from meta.dialect.core.ir_calls import base_op
from meta.ir import Binding, Block, Call, GlobalVar, If, Module, type_bytes


@dataclass(frozen=True, slots=True)
class FlopsRow:
    """What one binding does. ``operator``: the operator or function that it calls."""

    binding: int
    operator: str
    work: Work
    span: Span | None

    def record(self) -> dict[str, Any]:
        """Return the row as values that JSON has."""
        return {
            "binding": self.binding,
            "operator": self.operator,
            "flops": self.work.flops,
            "bytes": self.work.bytes,
            "line": None if self.span is None else str(self.span),
        }


@dataclass(frozen=True, slots=True)
class FlopsReport:
    """The operations of a module's main: ``rows`` by binding, those that do nothing left out."""

    rows: tuple[FlopsRow, ...]

    @property
    def total(self) -> int:
        """The operations of one call."""
        return sum(row.work.flops for row in self.rows)

    @property
    def bytes(self) -> int:
        """What the kernels of one call read and write, if nothing stays in a cache."""
        return sum(row.work.bytes for row in self.rows)

    def by_operator(self) -> dict[str, int]:
        """Return the operations by operator, the most first."""
        counts: Counter[str] = Counter()
        for row in self.rows:
            counts[row.operator] += row.work.flops
        return dict(counts.most_common())

    def records(self) -> list[dict[str, Any]]:
        """Return the rows as values that JSON has."""
        return [row.record() for row in self.rows]

    def __str__(self) -> str:
        lines = [f"{self.total:,} operations, {self.bytes:,} bytes read and written"]
        for name, count in self.by_operator().items():
            share = count / self.total if self.total else 0.0
            lines.append(f"  {name:40s} {count:18,d} {share:7.1%}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        title = f"{self.total:,} operations, {bytes_text(self.bytes)} read and written"
        rows = [
            (name, f"{count:,}", f"{count / self.total if self.total else 0.0:.1%}")
            for name, count in self.by_operator().items()
        ]
        shown = table(("operator", "operations", "share"), rows, numbers=(1, 2), code=(0,))
        return fragment(tag("div", title, class_="title"), shown)


def flops(module: Module) -> FlopsReport:
    """Count the operations of one call of a typed module's main, at any stage of compilation.

    A call of a function counts as what the function does, and an `If` as the block with more; a
    function that calls itself is counted once, since nobody knows how often it will. A fused kernel
    reads its arguments and writes its results: what is between the two costs no bytes.
    """
    counter = _Counter(module)
    rows = [
        FlopsRow(number, counter.name(binding), work, binding.span)
        for number, binding in enumerate(module.main.body.bindings)
        if (work := counter.binding(binding)) != NOTHING
    ]
    return FlopsReport(tuple(rows))


class _Counter:
    def __init__(self, module: Module) -> None:
        self.module = module
        # By function; while one is being counted, a call of it counts nothing.
        self.known: dict[str, Work] = {}

    def name(self, binding: Binding) -> str:
        value = binding.value
        if not isinstance(value, Call):
            return type(value).__name__
        op = base_op(value.callee)
        return op.name if op is not None else getattr(value.callee, "name", "call")

    def binding(self, binding: Binding) -> Work:
        value = binding.value
        if isinstance(value, If):
            blocks = (self.block(value.then_block), self.block(value.else_block))
            return max(blocks, key=lambda work: work.time)
        if isinstance(value, Call) and isinstance(value.callee, GlobalVar):
            return self.function(value.callee.name)
        return work_of(value) if isinstance(value, Call) else NOTHING

    def block(self, block: Block) -> Work:
        return sum(map(self.binding, block.bindings), NOTHING)

    def function(self, name: str) -> Work:
        if name not in self.known:
            self.known[name] = NOTHING
            function = self.module.functions[name]
            work = self.block(function.body)
            if FUSED in function.attrs:
                types = (*(p.type for p in function.params), function.result_type)
                work = Work(work.flops, sum(map(type_bytes, types)))
            self.known[name] = work
        return self.known[name]
