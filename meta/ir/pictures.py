"""Pictures of programs: as HTML in a notebook, and as a graph for Graphviz.

The HTML is the program text in colours, with types on hover and links to the user's lines. It is
what ``node._repr_html_()`` returns. The fragment stands alone: its style is in it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from meta.base.dtype import DTYPES
from meta.base.html import Html, join, tag
from meta.ir.constants import inline_text
from meta.ir.expr import Binding, Block, Call, Constant, Function, Module, Tuple, Var
from meta.ir.lexer import SPAN, TOKEN
from meta.ir.names import unquote
from meta.ir.node import WORDS, Expr, Node, NodeSpec, Text
from meta.ir.printer import Printer, global_text, text, variable_names
from meta.ir.types import Type
from meta.ir.visit import operands

MAX_LINES = 2000
"""Longer programs are cut, lest the notebook stands still."""
_MAX_STRING = 60
_KEYWORDS = {"attrs", "const", "data", "else", "func", "return", "yield"}
STYLE = (
    ".meta-ir{font-family:monospace;white-space:pre;overflow-x:auto;line-height:1.4}"
    ".meta-ir .var{color:#1a73b8}.meta-ir .global,.meta-ir .data{color:#8a4fbf}"
    ".meta-ir .keyword{color:#b3367a;font-weight:bold}.meta-ir .dtype{color:#1d8a6b}"
    ".meta-ir .op{color:#b8621a}.meta-ir .number,.meta-ir .string{color:#5a8a1d}"
    ".meta-ir a{color:#8a8a8a;text-decoration:none}.meta-ir a:hover{text-decoration:underline}"
    ".meta-ir .comment{color:#8a8a8a}"
)
"""Of an element of the class ``meta-ir``, whose lines are those of `line_html`."""


def to_html(node: Node) -> str:
    """Return a fragment of HTML that shows a module, a function or any part of one.

    It is cut after `MAX_LINES` lines, and a long string (the bytes of a constant) in the middle of
    its line; `text` has all.

    >>> function = meta.ir.parse_function("fn(%x: float32[3]) { %y = exp(%x) return %y }")
    >>> page = meta.ir.to_html(function)
    >>> page.startswith("<style>"), "exp" in page
    (True, True)
    """
    return join((tag("style", Html(STYLE)), tag("div", program_html(node), class_="meta-ir")))


def program_html(node: Node) -> Html:
    """Return the lines of `to_html`, without the element around them and its style."""
    lines = text(node).split("\n")
    roots = iter(node.functions.values() if isinstance(node, Module) else ())
    types = _types(node) if isinstance(node, Function | Block) else {}
    shown = []
    for line in lines[:MAX_LINES]:
        if line.startswith("func "):
            types = _types(next(roots))
        shown.append(line_html(line, types))
    if len(lines) > MAX_LINES:
        shown.append(tag("span", f"# {len(lines) - MAX_LINES} more lines", class_="comment"))
    return join(shown, "\n")


def _types(root: Function | Block) -> dict[str, str]:
    """Return the type of each variable by its name in the text."""
    return {n: str(v.type) for v, n in variable_names(root).items() if v.type is not None}


def line_html(line: str, types: Mapping[str, str] = MappingProxyType({})) -> Html:
    """Return a line of program text in colours; ``types`` by the name of a variable, on hover."""
    parts: list[str] = []
    position = 0
    while position < len(line):
        match = TOKEN.match(line, position)
        if match is None or match.lastgroup == "end":
            # What a broken program shows of itself is no token.
            parts.append(line[position])
            position += 1
            continue
        kind = match.lastgroup or ""
        parts.append(line[position : match.start(kind)])
        parts.append(_token(kind, match[kind], line[match.end() :], types))
        position = match.end()
    return join(parts)


def _token(kind: str, token: str, rest: str, types: Mapping[str, str]) -> str:
    title = None
    match kind:
        case "punctuation":
            return token
        case "comment":
            return _comment(token)
        case "name":
            kind = _kind_of_name(token, rest)
        case "var":
            title = types.get(token)
        case "string" if len(token) > _MAX_STRING:
            title = f"{len(token) - 2} characters"
            token = token[: _MAX_STRING - 1] + "…"
    return tag("span", token, class_=kind, title=title) if kind else token


def _kind_of_name(name: str, rest: str) -> str:
    if (name in _KEYWORDS or name in WORDS) and not rest.startswith("="):
        return "keyword"
    if name in DTYPES:
        return "dtype"
    return "op" if rest.startswith("(") else ""


def _comment(comment: str) -> Html:
    """Return a span comment as a link to the user's file, anything else as it is."""
    match = SPAN.fullmatch(comment)
    if match is None:
        return tag("span", comment, class_="comment")
    file = match[2] if match[1] is None else unquote(match[1])
    place = f"{file}:{match[3]}"
    if not re.match(r"/|[A-Za-z]:[/\\]", file):  # "<stdin>" and notebook cells are no files
        return tag("span", comment, class_="comment", title=place)
    address = f"file://{quote(file, errors='replace')}#L{match[3]}"
    last = re.split(r"[/\\]", file)[-1]
    return tag("a", f"# {last}:{match[3]}", href=address, title=place)


Node.to_html = to_html


_INDENT = "  "


def to_dot(module: Module) -> str:
    """Return a module as a directed graph in Graphviz' language.

    A node is a parameter, a constant, a binding or what a function returns; an edge leads from a
    value to its use and bears its type. The blocks of a conditional and the bodies of closures are
    clusters within the cluster of their function; what a block yields leads to the conditional.

    >>> module = meta.ir.parse("func @main(%x: float32[3]) -> float32[3] { return %x }")
    >>> print(meta.ir.to_dot(module))
    digraph {
      node [shape=box, fontname=monospace, fontsize=10]
      edge [fontname=monospace, fontsize=8]
      subgraph cluster_1 {
        label="@main"
        n2 [label="%x", shape=ellipse]
        n3 [label="return", shape=ellipse]
      }
      n2 -> n3 [label="float32[3]"]
    }
    """
    writer = _Writer()
    for name, function in module.functions.items():
        writer.names = variable_names(function)
        with writer.cluster(global_text(name)):
            writer.scope(function.params, function.body)
    return "\n".join(
        [
            "digraph {",
            f"{_INDENT}node [shape=box, fontname=monospace, fontsize=10]",
            f"{_INDENT}edge [fontname=monospace, fontsize=8]",
            *writer.lines,
            *writer.edges,
            "}",
        ]
    )


class _Writer:
    """Collects nodes in the clusters that are open, and edges, which stand outside of all."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.edges: list[str] = []
        self.names: dict[Var, str] = {}
        self.nodes: dict[Expr, str] = {}
        self.depth = 1
        self.count = 0

    @contextmanager
    def cluster(self, label: str) -> Iterator[None]:
        """Put what is added meanwhile into a box."""
        self.count += 1
        self.line(f"subgraph cluster_{self.count} {{")
        self.depth += 1
        self.line(f"label={_quoted(label)}")
        yield
        self.depth -= 1
        self.line("}")

    def line(self, text: str) -> None:
        self.lines.append(_INDENT * self.depth + text)

    def node(self, label: str, shape: str = "") -> str:
        """Add a node; return its identifier."""
        self.count += 1
        name = f"n{self.count}"
        self.line(f"{name} [label={_quoted(label)}{f', shape={shape}' if shape else ''}]")
        return name

    def use(self, atoms: Iterable[Expr], user: str, note: str = "") -> None:
        """Add an edge from each value to its user."""
        for atom in atoms:
            type_: Type | None = getattr(atom, "type", None)
            if isinstance(atom, Constant):
                small = inline_text(atom.data)
                source = self.node(f"{type_}" if small is None else f"{type_} {small}", "plaintext")
            elif isinstance(atom, Var) and atom in self.nodes:
                source = self.nodes[atom]
            else:
                continue  # operators and functions are in the user's label
            label = " ".join(filter(None, [note, "" if type_ is None else str(type_)]))
            shown = f" [label={_quoted(label)}]" if label else ""
            self.edges.append(f"{_INDENT}{source} -> {user}{shown}")

    def scope(self, params: Iterable[Var], body: Block) -> None:
        """Add parameters, what is computed of them, and a node for the result."""
        for param in params:
            self.nodes[param] = self.node(self.names[param], "ellipse")
        self.block(body)
        self.use(operands(body.result), self.node("return", "ellipse"))

    def block(self, block: Block) -> None:
        for binding in block.bindings:
            self.binding(binding)

    def binding(self, binding: Binding) -> None:
        value, name = binding.value, self.names[binding.var]
        label = f"{name} = {_label(value)}"
        blocks = [(n.removesuffix("_block"), getattr(value, n)) for n in value.spec.blocks]
        if value.spec.binds is not None:
            for _, block in blocks:
                with self.cluster(f"{name}: {_label(value)}"):
                    self.scope(getattr(value, value.spec.binds), block)
            node = self.node(label, "component")
        else:
            for which, block in blocks:
                with self.cluster(f"{name}: {which}"):
                    self.block(block)
            node = self.node(label, "diamond" if blocks else "")
            for which, block in blocks:
                self.use(operands(block.result), node, which)
        self.nodes[binding.var] = node
        self.use(operands(value), node)


class _Operation(Printer):
    """Prints what is done to operands, which the edges show."""

    def expr(self, expr: Any, depth: int = 0) -> str:
        return "_" if depth and isinstance(expr, Expr) else super().expr(expr, depth)


def _label(value: Expr) -> str:
    """Return what is computed: the operator and its literals; the edges say of what."""
    match value:
        case Call():
            callee = "call" if isinstance(value.callee, Var) else str(value.callee)
            arguments = _Operation().arguments(value, 1)
            literals = [a for a in arguments if a.rpartition("=")[2] != "_"]
            return f"{callee}({', '.join(literals)})" if literals else callee
        case Tuple():
            return "tuple"
        case Var():
            return "same"
        case Constant():
            return "constant"
        case Expr(spec=NodeSpec(blocks=(_, *_), form=(Text() as first, *_))):
            return first.tokens[0]
        case _:
            return _Operation().expr(value)


def _quoted(text: str) -> str:
    """Return a string of Graphviz' language; a backslash would begin an escape."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'
