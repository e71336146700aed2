"""How many operations a program does. The formulas are in `meta.passes.cost`, by operator."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from meta.base.html import bytes_text, fragment, table, tag
from meta.base.source import Span
from meta.dialect.core import FUSED
from meta.ir import Binding, Block, Call, GlobalVar, If, Module
from meta.passes.calls import base_op
from meta.passes.cost import NOTHING, Cost, cost_of
from meta.passes.lifetimes import type_bytes


@dataclass(frozen=True, slots=True)
class FlopsRow:
    """What one binding costs. ``operator``: the operator or function that it calls."""

    binding: int
    operator: str
    cost: Cost
    span: Span | None

    def record(self) -> dict[str, Any]:
        """Return the row as values that JSON has."""
        return {
            "binding": self.binding,
            "operator": self.operator,
            "flops": self.cost.flops,
            "bytes": self.cost.bytes,
            "line": None if self.span is None else str(self.span),
        }


@dataclass(frozen=True, slots=True)
class FlopsReport:
    """The operations of a module's main: ``rows`` by binding, those without cost left out."""

    rows: tuple[FlopsRow, ...]

    @property
    def total(self) -> int:
        """The operations of one call."""
        return sum(row.cost.flops for row in self.rows)

    @property
    def bytes(self) -> int:
        """What the kernels of one call read and write, if nothing stays in a cache."""
        return sum(row.cost.bytes for row in self.rows)

    def by_operator(self) -> dict[str, int]:
        """Return the operations by operator, the most first."""
        counts: Counter[str] = Counter()
        for row in self.rows:
            counts[row.operator] += row.cost.flops
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

    A call of a function counts as what the function does, and an `If` as its costlier block; a
    function that calls itself is counted once, since nobody knows how often it will. A fused kernel
    reads its arguments and writes its results: what is between the two costs no bytes.
    """
    counter = _Counter(module)
    rows = [
        FlopsRow(number, counter.name(binding), cost, binding.span)
        for number, binding in enumerate(module.main.body.bindings)
        if (cost := counter.binding(binding)) != NOTHING
    ]
    return FlopsReport(tuple(rows))


class _Counter:
    def __init__(self, module: Module) -> None:
        self.module = module
        # By function; while one is being counted, a call of it costs nothing.
        self.known: dict[str, Cost] = {}

    def name(self, binding: Binding) -> str:
        value = binding.value
        if not isinstance(value, Call):
            return type(value).__name__
        op = base_op(value.callee)
        return op.name if op is not None else getattr(value.callee, "name", "call")

    def binding(self, binding: Binding) -> Cost:
        value = binding.value
        if isinstance(value, If):
            blocks = (self.block(value.then_block), self.block(value.else_block))
            return max(blocks, key=lambda cost: cost.time)
        if isinstance(value, Call) and isinstance(value.callee, GlobalVar):
            return self.function(value.callee.name)
        return cost_of(value) if isinstance(value, Call) else NOTHING

    def block(self, block: Block) -> Cost:
        return sum(map(self.binding, block.bindings), NOTHING)

    def function(self, name: str) -> Cost:
        if name not in self.known:
            self.known[name] = NOTHING
            function = self.module.functions[name]
            cost = self.block(function.body)
            if FUSED in function.attrs:
                types = (*(p.type for p in function.params), function.result_type)
                cost = Cost(cost.flops, sum(map(type_bytes, types)))
            self.known[name] = cost
        return self.known[name]
