"""Programs as pictures: text for Graphviz (``dot -Tsvg``), one cluster per function and block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from meta.ir.constants import inline_text
from meta.ir.expr import (
    Binding,
    Block,
    Call,
    Constant,
    Construct,
    Expr,
    Fail,
    Function,
    GetField,
    If,
    IsVariant,
    MakeRef,
    Module,
    ReadRef,
    Tuple,
    TupleGetItem,
    Var,
    WriteRef,
)
from meta.ir.literals import literal_text
from meta.ir.operators import slots_of
from meta.ir.printer import global_text, variable_names
from meta.ir.types import Type
from meta.ir.visit import operands

_INDENT = "  "


def to_dot(module: Module) -> str:
    """Return a module as a directed graph in Graphviz' language.

    A node is a parameter, a constant, a binding or what a function returns; an edge leads from a
    value to its use and bears its type. The blocks of a conditional and the bodies of closures are
    clusters within the cluster of their function; what a block yields leads to the conditional.
    """
    writer = _Writer()
    for name, function in module.functions.items():
        writer.names = variable_names(function)
        with writer.cluster(global_text(name)):
            writer.function(function)
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

    def function(self, function: Function) -> None:
        for param in function.params:
            self.nodes[param] = self.node(self.names[param], "ellipse")
        self.block(function.body)
        self.use(operands(function.body.result), self.node("return", "ellipse"))

    def block(self, block: Block) -> None:
        for binding in block.bindings:
            self.binding(binding)

    def binding(self, binding: Binding) -> None:
        value, name = binding.value, self.names[binding.var]
        match value:
            case If():
                with self.cluster(f"{name}: then"):
                    self.block(value.then_block)
                with self.cluster(f"{name}: else"):
                    self.block(value.else_block)
                node = self.node(f"{name} = if", "diamond")
                self.use(operands(value.then_block.result), node, "then")
                self.use(operands(value.else_block.result), node, "else")
            case Function():
                with self.cluster(f"{name}: fn"):
                    self.function(value)
                node = self.node(f"{name} = fn", "component")
            case _:
                node = self.node(f"{name} = {_label(value)}")
        self.nodes[binding.var] = node
        self.use(operands(value), node)


def _label(value: Expr) -> str:
    """Return what is computed: the operator and its literals; the edges say of what."""
    match value:
        case Call():
            callee = "call" if isinstance(value.callee, Var) else str(value.callee)
            literals = ", ".join(_literals(value))
            return f"{callee}({literals})" if literals else callee
        case TupleGetItem():
            return f"field {value.index}"
        case Tuple():
            return "tuple"
        case Construct():
            return value.constructor
        case IsVariant():
            return f"is {value.constructor}"
        case GetField():
            return f"field {value.index} of {value.constructor}"
        case MakeRef():
            return "make_ref"
        case ReadRef():
            return "read_ref"
        case WriteRef():
            return "write_ref"
        case Fail():
            return f"fail: {value.message}"
        case Var():
            return "same"
        case Constant():
            return "constant"
        case _:
            return str(value)


def _literals(call: Call) -> Iterable[str]:
    slots = slots_of(call.callee)
    named = slots if slots is not None and len(slots) == len(call.args) else [None] * len(call.args)
    for slot, arg in zip(named, call.args, strict=True):
        if isinstance(arg, Expr):
            continue
        text = literal_text(arg)
        if slot is None:
            yield text
        elif not slot.has_default or text != literal_text(slot.default):
            yield f"{slot.name}={text}"


def _quoted(text: str) -> str:
    """Return a string of Graphviz' language; a backslash would begin an escape."""
    shown = "".join(c if c.isprintable() else "?" for c in text)
    return '"' + shown.replace("\\", "\\\\").replace('"', '\\"') + '"'
