"""What an expression of Relay stands for while a program is converted, and `Context`, what all
parts of a conversion share.

A tensor is a `Symbol`, or an `ndarray` where its value is known; a tuple is a Python tuple; data
values, references and functions of the IR are `Value`s. The classes here are what has no place in
the IR yet: functions that are known, and data values whose type is still open.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from meta.base.call_context import use
from meta.base.source import Span, user_span
from meta.frontend.relay import ast
from meta.frontend.relay.convert.program import Order, RelayProgram, Scope
from meta.frontend.relay.convert.types import Bindings, DataTypes, tuple_type
from meta.frontend.relay.errors import RelayError
from meta.ir import Constant, Type
from meta.ir.literals import MAX_NESTING
from meta.op.core.call import array_type
from meta.op.core.tracing import Symbol, Trace, Value
from meta.runtime.ndarray import ndarray


class Env:
    """Values, and the types of type parameters, in an evaluation of a scope and those around."""

    __slots__ = ("order", "parent", "types", "values")

    def __init__(self, parent: Env | Order, types: Bindings | None = None) -> None:
        self.parent = parent if isinstance(parent, Env) else None
        self.order: Order = parent.order if isinstance(parent, Env) else parent
        self.values: dict[ast.Expr, Any] = {}
        self.types: Bindings = types or (self.parent.types if self.parent is not None else {})

    def find(self, node: ast.Expr) -> Any:
        """Return the value of a node, None if it has none."""
        env: Env | None = self
        while env is not None:
            if node in env.values:
                return env.values[node]
            env = env.parent
        return None


@dataclass(eq=False, slots=True)
class Instance:
    """A function of the IR that a closure became for arguments of certain types.

    ``captured``: the values of the code around, which a call gives after the arguments. ``result``
    is None while the body is traced, unless the type is declared; ``done`` says that it is not.
    """

    name: str
    params: tuple[Type, ...]
    result: Type | None
    captured: list[Value] = field(default_factory=list)
    done: bool = False


@dataclass(eq=False, slots=True)
class Closure:
    """A function of the program that is known; ``env`` is empty for a global one.

    ``inline``: a call of it is replaced by its body. ``types``: what else the program declares it
    to be, beside what it says itself.
    """

    name: str
    node: ast.Function
    scope: Scope
    env: Env
    inline: bool
    types: list[ast.Type | None]
    instances: dict[Any, Instance] = field(default_factory=dict)


KnownFunction = Closure | ast.Op | ast.Constructor
"""A function of the program, an operator, or a constructor with fields, as a value."""


@dataclass(eq=False, slots=True)
class PartiallyTypedData:
    """A data value whose type arguments are not all known, ``Nil``; ``types``: of ``declared``."""

    constructor: ast.Constructor
    fields: tuple[Any, ...]
    declared: ast.Type | None
    types: Bindings


def type_of(value: Any) -> Type | None:
    """Return the type of a value, None for one that has no place in the IR yet."""
    if isinstance(value, tuple):
        return tuple_type([type_of(v) for v in value])
    if isinstance(value, ndarray):
        return array_type(value.key)
    if isinstance(value, Value):
        found: Type = value.type
        return found
    return None


MAX_LEAVES = 1 << 14
"""A value of more leaves is refused, as one that nests deeper than a tuple of the IR may."""
MAX_INLINED = 1 << 14
"""Calls that may be replaced by the body of what they call."""


class Context:
    """A conversion under way; bindings go to ``trace`` now, and began to go to ``root``.

    A value is a tree here, while the program that makes it is a DAG: ``%1 = (%0, %0)``, ``%2 = (%1,
    %1)`` and so on. A program of few lines may double a value in each. Whatever walks a value
    relies on the bounds of `bounded`.
    """

    def __init__(self, program: RelayProgram, trace: Trace, training: bool) -> None:
        self.program, self.trace, self.training = program, trace, training
        self.root = trace
        self.types = DataTypes(program.module.types, trace)
        self.place: ast.Location | None = None
        self._constants: dict[ast.Constant, ndarray] = {}
        self._sizes: dict[int, tuple[Any, int, int]] = {}
        self._inlined = 0

    @contextmanager
    def within(self, trace: Trace) -> Iterator[None]:
        """Let bindings go to ``trace``, with the source's lines."""
        outer, site = self.trace, trace.site
        self.trace = trace
        trace.site = self.span
        try:
            with use(trace):
                yield
        finally:
            self.trace, trace.site = outer, site

    def span(self) -> Span | None:
        """Return the line of the source, or the user's where the source has no lines."""
        if self.place is None or self.place.line is None:
            return user_span()
        return Span(self.place.source, self.place.line)

    def error(self, what: str, **details: Any) -> RelayError:
        """Return an error at the current place."""
        return RelayError(what, place=self.place, span=self.span(), **details)

    def require_equal(self, what: str, expected: object, found: object) -> None:
        """Raise RelayError, ``what``, where something else is found than is expected."""
        if expected != found:
            raise self.error(what, expected=expected, found=found)

    def inlined(self, name: str) -> None:
        """Count a call that is replaced by a body; RelayError for too many."""
        self._inlined += 1
        if self._inlined > MAX_INLINED:
            raise self.error(
                "functions that are to be inlined call one another too often",
                expected=f"at most {MAX_INLINED:,} calls in all",
                found=f"one more, of {name}",
            )

    def bounded(self, value: Any) -> Any:
        """Return a value; RelayError for one that holds too much, or nests too deep."""
        leaves, depth = self._size(value)
        if leaves > MAX_LEAVES:
            raise self.error(
                "a tuple or data value holds too much",
                expected=f"at most {MAX_LEAVES} values in all",
                found=leaves,
            )
        if depth > MAX_NESTING:
            raise self.error(
                "tuples or data values are nested too deep",
                expected=f"at most {MAX_NESTING} levels",
                found=depth,
            )
        return value

    def _size(self, value: Any) -> tuple[int, int]:
        """Return the number of leaves and the depth, which are computed once for a value."""
        if not isinstance(value, tuple | PartiallyTypedData):
            return 1, 0
        known = self._sizes.get(id(value))
        if known is None:
            fields = value.fields if isinstance(value, PartiallyTypedData) else value
            parts = [self._size(f) for f in fields]
            leaves = 1 + sum(n for n, _ in parts)
            depth = 1 + max((d for _, d in parts), default=0)
            # The value is kept, so that its id stays its own.
            known = self._sizes[id(value)] = (value, leaves, depth)
        return known[1:]

    def constant(self, node: ast.Constant) -> ndarray:
        """Return a constant of the program as an array on the trace's device."""
        found = self._constants.get(node)
        if found is None:
            found = self.program.constant(node)
            if found.device != self.root.device:
                found = found.to(device=self.root.device)
            self._constants[node] = found
            # The program owns its constants: there is no need of a copy.
            held = Constant(found.tensor)
            outermost = self.root
            while (outer := getattr(outermost, "outer", None)) is not None:
                outermost = outer
            outermost.bind(found, Symbol(outermost, held, held.type))
        return found
