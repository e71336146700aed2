"""Programs as text that `parser.py` reads back, to the last bit::

    func @main(%x: float32[3, 2], %w: float32[4, 2]) -> float32[3, 4] {
      %0: float32[3, 4] = dense(%x, %w)  # /home/me/lenet.py:12
      %1: float32[3, 4] = softmax(%0, axis=1)  # /home/me/lenet.py:13
      return %1
    }

- ``%x`` a variable, ``@f`` a function of the module, a bare name an operator.
- Literals are written ``slot=value``; those that equal the slot's default are left out.
- ``(%a, %b)``, ``(%a,)`` and ``(,)`` are tuples of atoms, ``%t.0`` is a field of one;
  ``(1, 2)`` and ``()`` are literals.
- ``if %c { ... yield %x } else { ... yield %y }`` and ``fn(%a: T) -> R { ... return %r }`` nest.
- ``type List { Nil() Cons(float32[], type List) }`` defines a data type, before the functions;
  `primitives.py` describes what computes with its values, and with mutable cells.
- ``const float32[2] [1.0, 2.5]`` is a small constant; a large one is ``@data.0``, with its bytes at
  the end: ``data @data.0 = float32[64, 3] "base64"``. Tensors that are kept elsewhere have names:
  ``data @data.0 = float32[64, 3] tensor "constant.1"``.
- ``# file:line`` is the user's line of the binding that begins on that line.

A broken program prints too, for the sake of error messages, though it may not parse.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from meta.base.dtype import FROM_TORCH
from meta.base.source import Span
from meta.ir.constants import inline_text, to_base64
from meta.ir.expr import (
    Binding,
    Block,
    Call,
    Constant,
    Function,
    GlobalVar,
    Module,
    OpNode,
    Tuple,
    TypeDefinition,
    Var,
)
from meta.ir.fields import Body
from meta.ir.literals import MAX_NESTING, literal_text
from meta.ir.names import Names, is_identifier, name_text, quote
from meta.ir.node import Expr, NamedField, Node, Text
from meta.ir.operators import slots_of
from meta.ir.types import Type
from meta.ir.visit import binders

_INDENT = "  "


def text(node: Node | Type, constants: dict[str, torch.Tensor] | None = None) -> str:
    """Return the program text of a module, a function or any part of one.

    Variable names are hints: the text has them legal and unique within their function.
    ``constants``: where to put the constants' tensors, the small ones too, under names that are new
    in it; the text refers to them by these names. `parse` gets the same dict.

    >>> import torch
    >>> print(meta.ir.text(meta.ir.Constant(torch.tensor([1.0, 2.0]))))
    const float32[2] [1.0, 2.0]
    """
    if isinstance(node, Type):
        return str(node)
    printer = Printer(constants)
    match node:
        case Module():
            for definition in node.types.values():
                printer.separate()
                printer.definition(definition)
            for name, function in node.functions.items():
                printer.separate()
                printer.top_level(name, function)
        case Function():
            printer.name_all(node)
            printer.statement("", node, None)
        case Block():
            printer.name_all(node)
            printer.begin("{")
            printer.block(node, "yield")
            printer.lines.append("}")
        case Binding():
            printer.binding(node)
        case Expr():
            printer.statement("", node, None)
        case _:
            raise TypeError(f"{node!r} has no program text")
    return "\n".join([*printer.lines, *printer.data_section()])


def variable_names(root: Function | Block) -> dict[Var, str]:
    """Return the names, such as "%x", that the variables have in the text of ``root``."""
    printer = Printer()
    printer.name_all(root)
    return printer.var_names


def first_line(root: Function | Block, binding: Binding) -> str:
    """Return the first line of one binding, with the names that it has in the text of ``root``."""
    printer = Printer()
    printer.name_all(root)
    return printer.opening(printer.head(binding), binding.value, binding.span)


def first_lines(root: Function | Block, bindings: Iterable[Binding]) -> list[str]:
    """Return the first line of each of several bindings, as `first_line`, in less time."""
    printer = Printer()
    printer.name_all(root)
    return [printer.opening(printer.head(b), b.value, b.span) for b in bindings]


def atom_text(root: Function | Block, atom: Expr) -> str:
    """Return the text of one atom, with the names that it has in the text of ``root``."""
    printer = Printer()
    printer.name_all(root)
    return printer.expr(atom)


def global_text(name: str) -> str:
    """Return the text of a global name. "data" is quoted because ``@data.0`` is a constant."""
    return f"@{name if is_identifier(name) and name != 'data' else quote(name)}"


def _comment(span: Span | None) -> str:
    """Return a span as a comment; an odd file name is quoted, to keep it on one line."""
    if span is None:
        return ""
    file = span.file
    plain = file and file.isprintable() and file.strip() == file and file[0] != '"'
    return f"  # {file if plain else quote(file)}:{span.line}"


class Printer:
    """Collects lines. Names are given in a first walk, so that a part prints as the whole does.

    The fields of node kinds (`fields.py`) print themselves with it.
    """

    def __init__(self, external: dict[str, torch.Tensor] | None = None) -> None:
        self.external = external
        self.lines: list[str] = []
        self.depth = 0
        self.names = Names()
        self.var_names: dict[Var, str] = {}
        self.data: dict[Constant, int] = {}
        self.inline: dict[Constant, str | None] = {}
        self.external_names = {id(tensor): name for name, tensor in (external or {}).items()}

    def name_all(self, root: Function | Block) -> None:
        self.names, self.var_names = Names(), {}
        for var in binders(root):
            self.name(var)

    def name(self, var: Var) -> str:
        if var not in self.var_names:
            self.var_names[var] = "%" + self.names.unique(var.name)
        return self.var_names[var]

    def separate(self) -> None:
        self.lines += [""] * bool(self.lines)

    def definition(self, definition: TypeDefinition) -> None:
        self.begin(f"type {name_text(definition.name)} {{")
        self.depth += 1
        for constructor in definition.constructors:
            fields = ", ".join(map(str, constructor.fields))
            self.begin(f"{name_text(constructor.name)}({fields})")
        self.depth -= 1
        self.begin("}")

    def top_level(self, name: str, function: Function) -> None:
        self.name_all(function)
        self.node(f"func {global_text(name)}", function, Function.spec.form[1:], None)

    def begin(self, line: str) -> None:
        self.lines.append(_INDENT * self.depth + line)

    def typed(self, var: Var) -> str:
        """Return a variable and its type."""
        return self.name(var) + (f": {var.type}" if var.type is not None else "")

    def block(self, block: Block, keyword: str) -> None:
        self.depth += 1
        for binding in block.bindings:
            self.binding(binding)
        self.begin(f"{keyword} {self.expr(block.result)}")
        self.depth -= 1

    def binding(self, binding: Binding) -> None:
        self.statement(self.head(binding), binding.value, binding.span)

    def head(self, binding: Binding) -> str:
        return f"{self.typed(binding.var)} = "

    def statement(self, head: str, value: Expr, span: Span | None) -> None:
        """Print a value, nested blocks included."""
        if value.spec.blocks:
            self.node(head, value, value.spec.form, span)
        else:
            self.begin(self.opening(head, value, span))

    def node(
        self, head: str, value: Expr, form: Iterable[NamedField | Text], span: Span | None
    ) -> None:
        """Print what a form says of a node with blocks; the first line carries the span."""
        for piece in form:
            if isinstance(piece, NamedField) and isinstance(piece.field, Body):
                self.begin(head + "{" + _comment(span))
                self.block(getattr(value, piece.name), piece.field.keyword)
                head, span = "}", None
            else:
                head += self.piece(value, piece, 0)
        self.begin(head)

    def opening(self, head: str, value: Expr, span: Span | None) -> str:
        """Return a statement's first line, which carries the span."""
        blocks = value.spec.blocks
        if not blocks:
            return head + self.expr(value) + _comment(span)
        for piece in value.spec.form:
            head += self.piece(value, piece, 0)
            if isinstance(piece, NamedField) and piece.name in blocks:
                break
        return head + _comment(span)

    def piece(self, value: Expr, piece: NamedField | Text, depth: int) -> str:
        if isinstance(piece, Text):
            return piece.text
        held = getattr(value, piece.name)
        if not isinstance(held, piece.field.holds):
            return f"<{held!r}>"
        return piece.field.text(held, self, depth)

    def expr(self, expr: Any, depth: int = 0) -> str:
        """Return a one-line expression or literal."""
        if depth > MAX_NESTING:
            return "..."
        match expr:
            case Var():
                return self.name(expr)
            case Call():
                callee = self.expr(expr.callee, depth + 1)
                return f"{callee}({', '.join(self.arguments(expr, depth + 1))})"
            case GlobalVar():
                return global_text(expr.name)
            case OpNode():
                return expr.name
            case Constant():
                return self.constant(expr)
            case Tuple():
                inner = ", ".join(self.expr(f, depth + 1) for f in expr.fields)
                return f"({inner})" if len(expr.fields) > 1 else f"({inner},)"
            case Expr() if expr.spec.form and not expr.spec.blocks:
                return "".join([self.piece(expr, p, depth + 1) for p in expr.spec.form])
            case Expr():
                return f"<{type(expr).__name__}>"
            case _:
                return literal_text(expr)

    def arguments(self, call: Call, depth: int) -> Iterable[str]:
        """Yield the arguments: atoms by position, literals and whatever follows them by name."""
        slots = slots_of(call.callee)
        if slots is None or len(slots) != len(call.args):
            yield from (self.expr(a, depth) for a in call.args)
            return
        named = False
        for slot, arg in zip(slots, call.args, strict=True):
            if isinstance(arg, Expr):
                atom = self.expr(arg, depth)
                yield f"{slot.name}={atom}" if named else atom
                continue
            named = True
            value = literal_text(arg)
            # Texts, not values: 1 == 1.0 == True, and a nan is not itself.
            if not slot.has_default or value != literal_text(slot.default):
                yield f"{slot.name}={value}"

    def constant(self, constant: Constant) -> str:
        if constant.data.dtype not in FROM_TORCH:
            return f"<constant of {constant.data.dtype}>"
        if constant not in self.inline:
            apart = self.external is not None
            self.inline[constant] = None if apart else inline_text(constant.data)
        short = self.inline[constant]
        if short is not None:
            return f"const {constant.type} {short}"
        return f"@data.{self.data.setdefault(constant, len(self.data))}"

    def data_section(self) -> list[str]:
        return [""] * bool(self.data) + [
            f"data @data.{number} = {constant.type} {self.payload(constant.data)}"
            for constant, number in self.data.items()
        ]

    def payload(self, tensor: torch.Tensor) -> str:
        """Return a tensor's bytes, or the name under which it is kept elsewhere."""
        if self.external is None:
            return f'"{to_base64(tensor)}"'
        name = self.external_names.get(id(tensor))
        if name is None:
            number = len(self.external)
            while f"constant.{number}" in self.external:
                number += 1
            name = self.external_names[id(tensor)] = f"constant.{number}"
            self.external[name] = tensor
        return f"tensor {quote(name)}"


Node.to_text = text
