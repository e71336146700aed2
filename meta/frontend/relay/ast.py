"""The tree of a Relay program, as it is read and printed; nothing here knows `meta`'s own IR.

Nodes compare by identity. A program is a DAG, as in TVM: an expression that is used twice is one
object (a graph reference ``%3`` of the text, a shared node of the JSON), evaluated once. A let is
no graph reference: it orders evaluation, and its variable is in scope in its own value.

Nothing may recurse along ``Let.body``, along calls or along tuples: chains of 10^5 are normal.
Nesting of scopes (function, branch, match arm) is limited by `MAX_NESTING`. What a node holds is
told at the end: a new kind of expression has its row in each function there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

MAX_NESTING = 200
"""How deep functions, branches, match arms, blocks, types, patterns and attribute values nest."""


# Types. They compare by value; a type that is not known is None where it is optional and
# `UnknownType()` inside another type.


class Type:
    """Base class of types."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class AnyDim:
    """An unknown dimension."""

    def __str__(self) -> str:
        return "?"


@dataclass(frozen=True, slots=True)
class SymbolDim:
    """A symbolic dimension: a variable of TVM's tensor expressions, by its name."""

    name: str

    def __str__(self) -> str:
        return self.name


Dim = int | AnyDim | SymbolDim


@dataclass(frozen=True, slots=True)
class TensorType(Type):
    """``Tensor[(2, ?), float32]``; a scalar has the empty shape."""

    shape: tuple[Dim, ...]
    dtype: str


@dataclass(frozen=True, slots=True)
class TupleType(Type):
    """``(T, U)``."""

    fields: tuple[Type, ...]


@dataclass(frozen=True, slots=True)
class FuncType(Type):
    """``fn [A](A) -> A``."""

    params: tuple[Type, ...]
    result: Type
    type_params: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TypeVar(Type):
    """A type parameter of a function or a data type, by its name."""

    name: str


@dataclass(frozen=True, slots=True)
class DataType(Type):
    """An algebraic data type applied to arguments, ``List[float32]``."""

    name: str
    args: tuple[Type, ...] = ()


@dataclass(frozen=True, slots=True)
class RefType(Type):
    """``ref(T)``."""

    value: Type


@dataclass(frozen=True, slots=True)
class UnknownType(Type):
    """``_``."""


# Expressions.


@dataclass(frozen=True, slots=True)
class Location:
    """Where an expression stands: line and column from 1, or a JSON node's index."""

    source: str
    line: int | None = None
    column: int | None = None
    node: int | None = None

    def __str__(self) -> str:
        if self.node is not None:
            return f"{self.source}, node {self.node}"
        return f"{self.source}:{self.line}:{self.column}"


@dataclass(eq=False, slots=True, kw_only=True)
class Expr:
    """Base class of expressions.

    ``checked_type`` is the type that the file states for it (``_checked_type_`` of the JSON, the
    comment ``/* ty=... */`` of the text), None if it states none.
    """

    checked_type: Type | None = None
    place: Location | None = None


@dataclass(eq=False, slots=True)
class Var(Expr):
    """A local variable, known by identity; ``name`` is as it stands in the file, without "%"."""

    name: str
    type: Type | None = None


@dataclass(eq=False, slots=True)
class GlobalVar(Expr):
    """A reference to a function of the module, by its name without "@"."""

    name: str


@dataclass(eq=False, slots=True)
class Op(Expr):
    """An operator, "nn.conv2d"."""

    name: str


@dataclass(eq=False, slots=True)
class Constructor(Expr):
    """A reference to a constructor of a data type of the module."""

    name: str
    data_type: str


@dataclass(eq=False, slots=True)
class Constant(Expr):
    """A tensor in the program.

    ``value`` is None if the file does not hold it (a reference to a metadata section that is not
    there); then ``missing`` names it ("meta[relay.Constant][3]").
    """

    value: torch.Tensor | None
    missing: str | None = None


@dataclass(eq=False, slots=True)
class Attrs:
    """Attributes of a call, as far as the file states them.

    Values are None, bool, int, float, str, tuples of these, dicts with string keys, and `Expr`,
    `Type` or `Opaque` where the file has such. A dtype is a str. ``type_key`` is "relay.attrs.X",
    or None where the file does not say.
    """

    fields: dict[str, Any]
    type_key: str | None = None


@dataclass(frozen=True, slots=True)
class Opaque:
    """An attribute value without a meaning here, such as a target: its type key and fields."""

    type_key: str
    fields: tuple[tuple[str, Any], ...] = ()


@dataclass(eq=False, slots=True)
class Call(Expr):
    """An operator, constructor, global function or function value applied to arguments."""

    op: Expr
    args: tuple[Expr, ...]
    attrs: Attrs | None = None
    type_args: tuple[Type, ...] = ()


@dataclass(eq=False, slots=True)
class Tuple(Expr):
    """``(a, b)``."""

    fields: tuple[Expr, ...]


@dataclass(eq=False, slots=True)
class TupleGetItem(Expr):
    """``a.0``."""

    value: Expr
    index: int


@dataclass(eq=False, slots=True)
class Let(Expr):
    """``let %var = value; body``; the variable is in scope in the value too."""

    var: Var
    value: Expr
    body: Expr


@dataclass(eq=False, slots=True)
class If(Expr):
    """Evaluates one branch, by a boolean scalar."""

    condition: Expr
    then_branch: Expr
    else_branch: Expr


@dataclass(eq=False, slots=True)
class Function(Expr):
    """``fn [A](%x: A, attr=value) -> T { body }``. As a value it is a closure."""

    params: tuple[Var, ...]
    body: Expr
    result_type: Type | None = None
    type_params: tuple[str, ...] = ()
    attrs: dict[str, Any] = field(default_factory=dict)


@dataclass(eq=False, slots=True)
class RefCreate(Expr):
    """``ref(value)``."""

    value: Expr


@dataclass(eq=False, slots=True)
class RefRead(Expr):
    """``ref_read(ref)``."""

    ref: Expr


@dataclass(eq=False, slots=True)
class RefWrite(Expr):
    """``ref_write(ref, value)``; its value is the empty tuple."""

    ref: Expr
    value: Expr


# Match.


class Pattern:
    """Base class of patterns."""

    __slots__ = ()


@dataclass(eq=False, slots=True)
class PatternWildcard(Pattern):
    """``_``: anything."""


@dataclass(eq=False, slots=True)
class PatternVar(Pattern):
    """Anything, under a name."""

    var: Var


@dataclass(eq=False, slots=True)
class PatternConstructor(Pattern):
    """``Cons(p, q)``: what the constructor has made."""

    constructor: Constructor
    patterns: tuple[Pattern, ...] = ()


@dataclass(eq=False, slots=True)
class PatternTuple(Pattern):
    """``(p, q)``."""

    patterns: tuple[Pattern, ...]


@dataclass(eq=False, slots=True)
class Clause:
    """``pattern => body``."""

    pattern: Pattern
    body: Expr


@dataclass(eq=False, slots=True)
class Match(Expr):
    """The body of the first clause whose pattern fits. ``complete`` is False for ``match?``."""

    value: Expr
    clauses: tuple[Clause, ...]
    complete: bool = True


# The program.


@dataclass(slots=True)
class ConstructorDefinition:
    """A constructor and the types of its fields, in which the type's parameters occur."""

    name: str
    fields: tuple[Type, ...] = ()


@dataclass(slots=True)
class TypeDefinition:
    """``type List[A] { Cons(A, List[A]), Nil }``; ``extern`` types have no constructors."""

    name: str
    type_params: tuple[str, ...] = ()
    constructors: tuple[ConstructorDefinition, ...] = ()
    extern: bool = False


@dataclass(slots=True)
class Module:
    """A Relay program. One that is a single function or expression has it as ``main``.

    Attributes
    ----------
    functions: by global name. types: by name. attrs: of the module.
    version: of the TVM that wrote it, (0, 15); None if the file does not say.
    text_version: the header of a text, "0.0.5"; None for JSON and for text without a header.
    source: the file's name, or what stands for it.
    warnings: what was read otherwise than TVM would, or had to be left out; sentences.
    """

    functions: dict[str, Function]
    types: dict[str, TypeDefinition] = field(default_factory=dict)
    attrs: dict[str, Any] = field(default_factory=dict)
    version: tuple[int, int] | None = None
    text_version: str | None = None
    source: str = "<text>"
    warnings: list[str] = field(default_factory=list)


def operands(value: Expr) -> list[Expr]:
    """Return what an expression uses in its own scope, in the order of evaluation."""
    match value:
        case Call(op=op, args=args):
            return [op, *args]
        case Tuple(fields=fields):
            return list(fields)
        case TupleGetItem(value=inner) | RefCreate(value=inner) | Match(value=inner):
            return [inner]
        case RefRead(ref=ref):
            return [ref]
        case RefWrite(ref=ref, value=inner):
            return [ref, inner]
        case If(condition=condition):
            return [condition]
        case Let(value=inner, body=body):
            return [inner, body]
    return []


def scopes(value: Expr) -> list[tuple[tuple[Var, ...], Expr]]:
    """Return the inner scopes of an expression: what each binds, and the expression in it."""
    match value:
        case If(then_branch=then, else_branch=other):
            return [((), then), ((), other)]
        case Function(params=params, body=body):
            return [(params, body)]
        case Match(clauses=clauses):
            return [(tuple(pattern_variables(c.pattern)), c.body) for c in clauses]
    return []


def subexpressions(value: Expr) -> list[Expr]:
    """Return all direct subexpressions: operands, those in attributes, and inner scopes."""
    inner = [body for _, body in scopes(value)]
    return [*operands(value), *attribute_expressions(value), *inner]


def pattern_variables(pattern: Pattern) -> Iterator[Var]:
    """Yield the variables that a pattern binds, from left to right."""
    stack = [pattern]
    while stack:
        found = stack.pop()
        if isinstance(found, PatternVar):
            yield found.var
        elif isinstance(found, PatternConstructor | PatternTuple):
            stack += reversed(found.patterns)


def attribute_expressions(value: Expr) -> list[Expr]:
    """Return the expressions in the attributes of a call or function, but for constants."""
    found: list[Expr] = []
    work: list[Any] = []
    match value:
        case Function(attrs=fields) | Call(attrs=Attrs(fields=fields)):
            work = list(reversed(fields.values()))
    while work:
        part = work.pop()
        if isinstance(part, tuple | list):
            work.extend(reversed(part))
        elif isinstance(part, Expr) and not isinstance(part, Constant):
            found.append(part)
    return found


def free_variables(expression: Expr) -> tuple[Var, ...]:
    """Return the variables that an expression uses and does not bind, in the order of their first
    use. A variable is bound in one place only: it is known by its node, not by its name.
    """
    used: dict[Var, None] = {}
    bound: set[Var] = set()
    seen: set[Expr] = set()
    stack = [expression]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        if isinstance(current, Var):
            used[current] = None
            continue
        bound.update(var for variables, _ in scopes(current) for var in variables)
        if isinstance(current, Let):
            bound.add(current.var)
        stack.extend(reversed(subexpressions(current)))
    return tuple(v for v in used if v not in bound)
