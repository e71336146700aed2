"""Expressions: the few node kinds of which programs are made.

A function body is a `Block`: a flat list of bindings in evaluation order (A-normal form) and a
result, so nothing recurses over program length. Blocks, tuples and types may nest `MAX_NESTING`
deep. Nodes compare by identity; `structural.py` compares by content.

*Atoms* may stand as arguments: `Var`, `Constant`, `GlobalVar`, `Op`, and a `Tuple` of atoms. The
arguments of a `Call` are atoms or plain Python literals (None, bool, int, float, str and nested
tuples of them): there are no attributes apart from arguments.

A new node kind is a class here and a case in each of `printer.py`, `parser.py`, `json_writer.py`,
`json_reader.py`, `structural.py`, `verify.py`, `typeof.py`, `visit.py` and `pictures.py`; and,
above this floor, in `passes/buffers.py`, `passes/effects.py`, `vm/interpreter.py` and
`vm/emit_function.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from meta.base.dtype import FROM_TORCH
from meta.base.source import Span
from meta.ir.types import DataType, FuncType, TensorType, Type

Literal = Any
"""A plain Python argument: None, bool, int, float, str, or a tuple of these."""


class Node:
    """Whatever is part of a program; ``str(node)`` is its program text."""

    __slots__ = ()

    def __str__(self) -> str:
        return _to_text(self)

    def _repr_html_(self) -> str:
        return _to_html(self)


_to_text: Callable[[Node], str] = repr
_to_html: Callable[[Node], str] = repr


def print_with(to_text: Callable[[Node], str]) -> None:
    """Set what ``str(node)`` calls. The printer sets itself, because it imports this file."""
    global _to_text
    _to_text = to_text


def show_with(to_html: Callable[[Node], str]) -> None:
    """Set what a notebook shows of a node, in the same way."""
    global _to_html
    _to_html = to_html


class Expr(Node):
    """Base class of what has a value."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class Var(Expr):
    """A local value. ``name`` is a hint for printing; identity is what counts."""

    name: str
    type: Type | None = None


@dataclass(eq=False, slots=True)
class GlobalVar(Expr):
    """A reference to a function of the module by its name."""

    name: str
    type: Type | None = None


@dataclass(eq=False, slots=True)
class Constant(Expr):
    """A tensor known when the program is built; never written to."""

    data: torch.Tensor

    @property
    def type(self) -> TensorType:
        """The tensor's type."""
        return TensorType(tuple(self.data.shape), FROM_TORCH[self.data.dtype])


class Op(Expr):
    """A reference to an operator; the operators of `meta.op` and of the dialects derive from it."""

    __slots__ = ("__weakref__", "name")
    name: str

    def __init__(self, name: str) -> None:
        self.name = name

    def __deepcopy__(self, _: object) -> Op:
        return self  # an operator is one object, also in a copy of what refers to it


@dataclass(eq=False, slots=True)
class Call(Expr):
    """An operator, a global function or a closure applied to arguments.

    The arguments of an operator are in schema order, with defaults filled in.
    """

    callee: Expr
    args: tuple[Expr | Literal, ...]


@dataclass(eq=False, slots=True)
class Tuple(Expr):
    """A tuple of atoms."""

    fields: tuple[Expr, ...]


@dataclass(eq=False, slots=True)
class TupleGetItem(Expr):
    """Field ``index`` of a tuple-valued atom."""

    value: Expr
    index: int


@dataclass(eq=False, slots=True)
class Construct(Expr):
    """A value of a data type: one of its constructors applied to atoms."""

    type: DataType
    constructor: str
    fields: tuple[Expr, ...]


@dataclass(eq=False, slots=True)
class IsVariant(Expr):
    """Whether a data value was made by a constructor: bool[]. The condition of an `If`."""

    value: Expr
    constructor: str


@dataclass(eq=False, slots=True)
class GetField(Expr):
    """Field ``index`` of a data value that is known to have been made by ``constructor``.

    Its type stands here too, so that nobody needs the module to know it.
    """

    value: Expr
    constructor: str
    index: int
    type: Type


@dataclass(eq=False, slots=True)
class MakeRef(Expr):
    """A new reference that holds a value."""

    value: Expr


@dataclass(eq=False, slots=True)
class ReadRef(Expr):
    """What a reference holds now."""

    ref: Expr


@dataclass(eq=False, slots=True)
class WriteRef(Expr):
    """Let a reference hold another value. Its own value is the empty tuple."""

    ref: Expr
    value: Expr


@dataclass(eq=False, slots=True)
class Fail(Expr):
    """Raises an error when it is run, as where no case of a match fits; ``type`` is that of the
    value which is never there.
    """

    message: str
    type: Type


@dataclass(eq=False, slots=True)
class Binding(Node):
    """``var: type = value``, with the user's line that caused it."""

    var: Var
    value: Expr
    span: Span | None = None


@dataclass(eq=False, slots=True)
class Block(Node):
    """Bindings in evaluation order, then the result, an atom."""

    bindings: tuple[Binding, ...]
    result: Expr


@dataclass(eq=False, slots=True)
class If(Expr):
    """Evaluates one of two blocks, by a boolean scalar tensor."""

    condition: Expr
    then_block: Block
    else_block: Block


@dataclass(eq=False, slots=True)
class Function(Expr):
    """Parameters and a body. As a binding's value it is a closure over the variables in scope."""

    params: tuple[Var, ...]
    body: Block
    result_type: Type | None = None
    attrs: dict[str, Literal] = field(default_factory=dict)

    @property
    def type(self) -> FuncType | None:
        """The function's type, or None while a parameter or the result is untyped."""
        params = [p.type for p in self.params]
        if self.result_type is None or any(p is None for p in params):
            return None
        return FuncType(tuple(p for p in params if p is not None), self.result_type)


CHECKPOINT = "checkpoint"
"""Attribute of a global function that is called again for its gradients, so that nothing which it
computes is kept until then. It says nothing else of the function."""


@dataclass(frozen=True, slots=True)
class ConstructorDefinition:
    """One way to make a value of a data type: the types of its fields."""

    name: str
    fields: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class TypeDefinition:
    """A data type: its constructors, which have different names. Compares by value."""

    name: str
    constructors: tuple[ConstructorDefinition, ...]

    def constructor(self, name: str) -> ConstructorDefinition | None:
        """Return the constructor of a name; None if there is none."""
        return next((c for c in self.constructors if c.name == name), None)


@dataclass(eq=False, slots=True)
class Module(Node):
    """Functions by global name, and data types by name. ``main`` is the entry point where there is
    one. A pass makes its result by `with_functions`, so that nothing else is lost.
    """

    functions: dict[str, Function]
    types: dict[str, TypeDefinition] = field(default_factory=dict)

    def with_functions(self, functions: dict[str, Function]) -> Module:
        """Return a module with other functions and all else as it is here."""
        return Module(functions, self.types)

    @property
    def main(self) -> Function:
        """The function named "main"."""
        return self.functions["main"]
