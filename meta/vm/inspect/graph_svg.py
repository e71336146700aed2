"""The graph of a program as a picture in SVG: what each binding is given, and by whom.

Below an input are the bindings that use it, and so on: a binding is one row below the last of those
whose values it takes. What costs nothing, as a reshape, is no node but a part of an edge. Layers
that repeat the nodes and edges of the one before are drawn once, with their number. Weights are
named when a node is pointed at; nodes of one dialect have one colour. Programs with many bindings
are cut: who reads a picture reads its beginning.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from meta.base.html import Html, join, tag
from meta.dialect.core.ir_calls import base_op, full_view_source
from meta.ir import Call, GlobalVar, TupleGetItem, Var
from meta.ir.printer import first_lines, variable_names
from meta.ir.visit import operands, uses
from meta.vm.inspect.graph_folding import Repetition, repetitions
from meta.vm.inspect.summary import inputs
from meta.vm.run.compiled_program import CompiledProgram

if TYPE_CHECKING:
    from meta.ir import Binding

MAX_NODES = 400
"""Bindings that are drawn."""
WIDTH, HEIGHT, GAP_X, GAP_Y, SIDE = 150, 34, 20, 18, 90
"""Of a node, between nodes, and how far an edge to a distant row goes to the side."""
_COLOURS = ("#4c8bf5", "#2ca58d", "#d9822b", "#9a6fd1", "#d1557a", "#6b9a1f", "#3aa0c2", "#b08a2e")
_LETTERS = 22
"""Of a node's name."""


@dataclass(eq=False)
class GraphBox:
    """A node: what it shows, the nodes whose values it takes, and the row that it is in."""

    name: str
    type: str
    about: str
    kind: str
    before: list[GraphBox]
    row: int = 0
    x: float = 0.0
    after: list[GraphBox] = field(default_factory=list)

    @property
    def y(self) -> float:
        return self.row * (HEIGHT + GAP_Y)

    @property
    def key(self) -> tuple[str, ...]:
        """What nodes of repeated layers have in common."""
        return self.kind, self.name, self.type


def graph_svg(executable: CompiledProgram) -> Html:
    """Return the graph of main of a program as it is run, as an element ``svg``."""
    main = executable.module.main
    given = len(inputs(executable))
    names = variable_names(main)
    weights = {p: names[p] for p in main.params[given:]}  # and what is computed of them
    boxes: dict[Var, GraphBox] = {
        p: GraphBox(names[p], str(p.type), f"{names[p]}: {p.type}", "input", [])
        for p in main.params[:given]
    }
    given_boxes = list(boxes.values())
    bindings = main.body.bindings
    lines = [line.partition("  #")[0] for line in first_lines(main, bindings)]
    for binding, line in zip(bindings, lines, strict=True):
        used = [a for a in dict.fromkeys(uses(binding.value)) if isinstance(a, Var)]
        source = _view_source(binding)
        if source in boxes:  # a view, without a kernel
            boxes[binding.var] = boxes[source]
            continue
        if source in weights:
            weights[binding.var] = weights[source]
            continue
        before = list(dict.fromkeys(boxes[v] for v in used if v in boxes))
        own = ", ".join(weights[v] for v in used if v in weights)
        about = f"{line}\n{binding.span or ''}" + f"\nweights: {own}" * bool(own)
        kind, name = _named(binding)
        boxes[binding.var] = GraphBox(name, str(binding.var.type), about, kind, before)
    results = [boxes[a] for a in operands(main.body.result) if isinstance(a, Var) and a in boxes]
    nodes = [b for b in dict.fromkeys(boxes.values()) if b not in given_boxes]
    if not nodes and not given_boxes:
        return tag("p", "The program has neither inputs nor bindings.", class_="dim")
    drawn, layers = _folded(nodes, results)
    left, drawn = len(drawn[MAX_NODES:]), drawn[:MAX_NODES]
    _connect(drawn)
    picture = _drawn([*given_boxes, *drawn], {id(r) for r in results}, layers)
    more = tag("p", f"… and {left:,} more bindings", class_="dim") if left else ""
    return join((tag("div", picture, class_="wide"), more))


def _view_source(binding: Binding) -> Var | None:
    """Return the value of which a binding is a view, or one of several results."""
    value = binding.value
    source = value.value if isinstance(value, TupleGetItem) else None
    if isinstance(value, Call) and base_op(value.callee) is not None:
        source = full_view_source(value)
    return source if isinstance(source, Var) else None


def _folded(
    nodes: list[GraphBox], results: list[GraphBox]
) -> tuple[list[GraphBox], list[tuple[Repetition, list[GraphBox]]]]:
    """Return the nodes without the layers that repeat earlier ones, and how often which nodes come.

    What takes values of the last layer takes them of the one that is drawn; in ``results``, too.
    """
    layers, first = [], {}
    for found in repetitions(nodes):
        own = nodes[found.start : found.start + found.period]
        layers.append((found, own))
        for number in range(found.saved):
            first[id(nodes[found.start + found.period + number])] = own[number % found.period]
    drawn = [n for n in nodes if id(n) not in first]
    places = {id(n): i for i, n in enumerate(drawn)}
    for i, node in enumerate(drawn):
        before = dict.fromkeys(first.get(id(b), b) for b in node.before)
        node.before = [b for b in before if places.get(id(b), -1) < i]
    results[:] = [first.get(id(r), r) for r in results]
    return drawn, layers


def _connect(nodes: Sequence[GraphBox]) -> None:
    """Set the rows of nodes, and which take values of each."""
    for node in nodes:
        node.row = 1 + max((b.row for b in node.before), default=0)
        for source in node.before:
            source.after.append(node)


def _named(binding: Binding) -> tuple[str, str]:
    """Return who computes a binding, and the name of what it computes."""
    value = binding.value
    if not isinstance(value, Call):
        return "", type(value).__name__
    if isinstance(value.callee, GlobalVar):
        return "fused", value.callee.name
    dialect, _, name = str(getattr(value.callee, "name", "a function")).rpartition(".")
    return dialect, name


def _drawn(
    nodes: Sequence[GraphBox],
    results: set[int],
    layers: Sequence[tuple[Repetition, list[GraphBox]]],
) -> Html:
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
    there = {id(n) for n in nodes}
    frames = [(found, [n for n in own if id(n) in there]) for found, own in layers]
    parts = [_frame(found, own) for found, own in frames if own]
    parts += [_edge(node, after) for node in nodes for after in node.after]
    parts += [_box(node, colours.get(node.kind), id(node) in results) for node in nodes]
    height = max(rows) * (HEIGHT + GAP_Y) + HEIGHT + (12 if frames else 4)
    margin = 60 if frames else 2  # for the numbers of layers
    width += 2 * margin
    return tag(
        "svg", *parts, viewBox=f"{-margin} -2 {width:.0f} {height:.0f}", width=f"{width:.0f}",
        height=f"{height:.0f}", role="img", aria_label=f"graph of {len(nodes)} nodes",
        class_="graph",
    )  # fmt: skip


def _frame(found: Repetition, nodes: Sequence[GraphBox]) -> Html:
    """Draw what is around the nodes of a layer, and how often it comes."""
    left, right = min(n.x for n in nodes) - 8, max(n.x for n in nodes) + WIDTH + 8
    top, bottom = min(n.y for n in nodes) - 8, max(n.y for n in nodes) + HEIGHT + 8
    box = tag(
        "rect", x=f"{left:.0f}", y=f"{top:.0f}", width=f"{right - left:.0f}",
        height=f"{bottom - top:.0f}", rx=9, class_="layer",
    )  # fmt: skip
    name = f"{found.count} times"
    text = tag("text", name, x=f"{left - 34:.0f}", y=f"{top + 12:.0f}", class_="title")
    about = f"these {found.period} nodes come {name}"
    if found.missing:
        about += f", the last {found.missing} once less"
    return tag("g", tag("title", about), box, text)


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
