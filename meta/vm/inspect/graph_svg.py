"""The graph of a program as a picture in SVG: what each binding is given, and by whom.

Below an input are the bindings that use it, and so on: a binding is one row below the last of those
whose values it takes. Weights are named when a node is pointed at; nodes of one dialect have one
colour. Programs with many bindings are cut: who reads a picture reads its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meta.base.html import Html, join, tag
from meta.ir import Call, GlobalVar, TupleGetItem, Var
from meta.ir.printer import first_lines, variable_names
from meta.ir.visit import operands, uses
from meta.vm.inspect.summary import inputs
from meta.vm.run.compiled_program import CompiledProgram

if TYPE_CHECKING:
    from meta.ir import Binding

MAX_NODES = 400
"""Bindings that are drawn."""
WIDTH, HEIGHT, GAP_X, GAP_Y, SIDE = 150, 34, 20, 26, 90
"""Of a node, between nodes, and how far an edge to a distant row goes to the side."""
_COLOURS = ("#4c8bf5", "#2ca58d", "#d9822b", "#9a6fd1", "#d1557a", "#6b9a1f", "#3aa0c2", "#b08a2e")
_LETTERS = 22
"""Of a node's name."""


@dataclass(eq=False)
class GraphBox:
    """A node: what it shows, the row that it is in, and the nodes whose values it takes."""

    name: str
    type: str
    about: str
    kind: str
    before: list[GraphBox]
    row: int
    x: float = 0.0
    after: list[GraphBox] = field(default_factory=list)

    @property
    def y(self) -> float:
        return self.row * (HEIGHT + GAP_Y)


def graph_svg(executable: CompiledProgram) -> Html:
    """Return the graph of main of a program as it is run, as an element ``svg``."""
    main = executable.module.main
    given = len(inputs(executable))
    names = variable_names(main)
    made = {p: names[p] for p in main.params[given:]}  # weights, and what is computed of them
    boxes: dict[Var, GraphBox] = {
        p: GraphBox(names[p], str(p.type), f"{names[p]}: {p.type}", "input", [], 0)
        for p in main.params[:given]
    }
    bindings = main.body.bindings[:MAX_NODES]
    lines = [line.partition("  #")[0] for line in first_lines(main, bindings)]
    for binding, line in zip(bindings, lines, strict=True):
        used = [a for a in dict.fromkeys(uses(binding.value)) if isinstance(a, Var)]
        if isinstance(binding.value, TupleGetItem) and used and used[0] in boxes:
            boxes[binding.var] = boxes[used[0]]  # one of several results of a node
            continue
        before = list(dict.fromkeys(boxes[v] for v in used if v in boxes))
        row = 1 + max((b.row for b in before), default=0)
        weights = ", ".join(made[v] for v in used if v in made)
        about = f"{line}\n{binding.span or ''}" + f"\nweights: {weights}" * bool(weights)
        kind, name = _named(binding)
        boxes[binding.var] = box = GraphBox(name, str(binding.var.type), about, kind, before, row)
        for one in before:
            one.after.append(box)
    results = [a for a in operands(main.body.result) if isinstance(a, Var) and a in boxes]
    nodes = list(dict.fromkeys(boxes.values()))
    if not nodes:
        return tag("p", "The program has neither inputs nor bindings.", class_="dim")
    picture = _drawn(nodes, {id(boxes[v]) for v in results})
    left = len(main.body.bindings) - len(bindings)
    more = tag("p", f"… and {left:,} more bindings", class_="dim") if left else ""
    return join((tag("div", picture, class_="wide"), more))


def _named(binding: Binding) -> tuple[str, str]:
    """Return who computes a binding, and the name of what it computes."""
    value = binding.value
    if not isinstance(value, Call):
        return "", type(value).__name__
    if isinstance(value.callee, GlobalVar):
        return "fused", value.callee.name
    dialect, _, name = str(getattr(value.callee, "name", "a function")).rpartition(".")
    return dialect, name


def _drawn(nodes: Sequence[GraphBox], results: set[int]) -> Html:
    """Return the picture: rows of nodes, each near those that it takes values of."""
    rows: dict[int, list[GraphBox]] = {}
    for node in nodes:
        rows.setdefault(node.row, []).append(node)
    wide = max(map(len, rows.values()))
    width = wide * (WIDTH + GAP_X) + 2 * SIDE
    for _, row in sorted(rows.items()):
        row.sort(key=lambda n: sum(b.x for b in n.before) / len(n.before) if n.before else 0.0)
        step = width / len(row)
        for place, node in enumerate(row):
            node.x = step * (place + 0.5) - WIDTH / 2
    kinds = [k for k in dict.fromkeys(n.kind for n in nodes) if k not in ("input", "")]
    colours = {kind: _COLOURS[i % len(_COLOURS)] for i, kind in enumerate(kinds)}
    parts = [_edge(node, after) for node in nodes for after in node.after]
    parts += [_box(node, colours.get(node.kind), id(node) in results) for node in nodes]
    height = max(rows) * (HEIGHT + GAP_Y) + HEIGHT + 4
    return tag(
        "svg", *parts, viewBox=f"-2 -2 {width + 4:.0f} {height:.0f}", width=f"{width + 4:.0f}",
        height=f"{height:.0f}", role="img", aria_label=f"graph of {len(nodes)} nodes",
        class_="graph",
    )  # fmt: skip


def _edge(start: GraphBox, end: GraphBox) -> Html:
    """Draw an edge: from row to row downwards, a longer one at the side of what is between."""
    if end.row == start.row + 1:
        x, y, u, v = start.x + WIDTH / 2, start.y + HEIGHT, end.x + WIDTH / 2, end.y
        bend = (v - y) / 2
        points = x, y, x, y + bend, u, v - bend, u, v
    else:
        x, y, u, v = start.x + WIDTH, start.y + HEIGHT / 2, end.x + WIDTH, end.y + HEIGHT / 2
        far = max(x, u) + SIDE * min(end.row - start.row, 6) / 6
        points = x, y, far, y, far, v, u, v
    numbers = [f"{n:.0f}" for n in points]
    return tag("path", d=f"M{' '.join(numbers[:2])}C{' '.join(numbers[2:])}")


def _box(node: GraphBox, colour: str | None, is_result: bool) -> Html:
    box = tag(
        "rect", x=f"{node.x:.0f}", y=f"{node.y:.0f}", width=WIDTH, height=HEIGHT,
        rx=HEIGHT / 2 if node.kind == "input" else 5, fill=colour or "#7a828c",
        class_="result" if is_result else "given" if node.kind == "input" else None,
    )  # fmt: skip
    x = f"{node.x + WIDTH / 2:.0f}"
    shown = f"{node.kind}.{node.name}" if colour and node.kind != "fused" else node.name
    texts = (
        tag("text", _cut(shown), x=x, y=f"{node.y + 14:.0f}", class_="title"),
        tag("text", _cut(node.type), x=x, y=f"{node.y + 27:.0f}"),
    )
    return tag("g", tag("title", node.about), box, *texts)


def _cut(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"
