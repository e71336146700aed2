"""Data values and references: constructors, values whose type is still open, cells; and `Sizes`.

A value is a tree here, while the program that makes it is a DAG: ``%1 = (%0, %0)``, ``%2 = (%1,
%1)`` and so on. A program of few lines may double a value in each. Whatever walks a value relies on
the bounds of `Sizes`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from meta.frontend.relay import ast
from meta.frontend.relay.convert.context import Context
from meta.frontend.relay.convert.types import Bindings, joined, relay_text
from meta.frontend.relay.convert.values import Env, OpenData, type_of
from meta.ir import TupleType, Type
from meta.ir.expr import Construct, MakeRef, ReadRef, WriteRef
from meta.ir.literals import MAX_NESTING
from meta.ir.types import DataType, RefType
from meta.op.core.tracing import Value

MAX_LEAVES = 1 << 14
"""A value of more leaves is refused, as one that nests deeper than a tuple of the IR may."""


class Sizes:
    """The sizes of the values of one conversion, by identity; each is computed once."""

    def __init__(self, context: Context) -> None:
        self.context = context
        self._known: dict[int, tuple[Any, int, int]] = {}

    def bounded(self, value: Any) -> Any:
        """Return a value; RelayError for one that holds too much, or nests too deep."""
        leaves, depth = self._of(value)
        if leaves > MAX_LEAVES:
            raise self.context.error(
                "a tuple or data value holds too much",
                expected=f"at most {MAX_LEAVES} values in all",
                found=leaves,
            )
        if depth > MAX_NESTING:
            raise self.context.error(
                "tuples or data values are nested too deep",
                expected=f"at most {MAX_NESTING} levels",
                found=depth,
            )
        return value

    def _of(self, value: Any) -> tuple[int, int]:
        """Return the number of leaves and the depth; the fields' own are within bounds."""
        if not isinstance(value, tuple | OpenData):
            return 1, 0
        known = self._known.get(id(value))
        if known is None:
            fields = value.fields if isinstance(value, OpenData) else value
            parts = [self._of(f) for f in fields]
            leaves = 1 + sum(n for n, _ in parts)
            depth = 1 + max((d for _, d in parts), default=0)
            # The value is kept, so that its id stays its own.
            known = self._known[id(value)] = (value, leaves, depth)
        return known[1:]


if TYPE_CHECKING:
    from meta.frontend.relay.convert.functions import Functions


class Data:
    """The data values and references of a conversion."""

    def __init__(self, context: Context, functions: Functions, sizes: Sizes) -> None:
        self.context, self.functions, self.sizes = context, functions, sizes

    def construct(
        self,
        constructor: ast.Constructor,
        args: tuple[Any, ...],
        declared: ast.Type | None,
        env: Env,
    ) -> Any:
        """Return a data value, an open one where its type does not follow from its fields.

        ``declared``: the type that the program states for it, in ``env``.
        """
        types = self.context.types
        fields = types.fields(constructor)
        if len(fields) != len(args):
            raise self.context.error(
                f"{constructor.name} has another number of fields",
                expected=len(fields),
                found=len(args),
            )
        bindings: Bindings = {}
        for i, (field, arg) in enumerate(zip(fields, args, strict=True)):
            if (found := type_of(arg)) is not None:
                what = f"field {i} of {constructor.name}"
                self.functions.check(field, found, bindings, what)
        params = types.definition(constructor.data_type).type_params
        if not all(p in bindings for p in params):
            return self.sizes.bounded(OpenData(constructor, args, declared, env))
        type_ = types.instance(constructor.data_type, tuple(bindings[p] for p in params))
        return self._emit(constructor, args, type_)

    def close(self, value: OpenData, expected: Type | None) -> Value:
        """Return a data value of the expected type; of the declared one, if none is expected."""
        types = self.context.types
        wanted = expected or types.to_ir(value.declared, value.env.types)
        if wanted is None:
            raise self.context.error(
                f"the type arguments of {value.constructor.name} are not known",
                found=relay_text(value.declared),
                hint="declare the type where it is bound: let %x: List[float32] = Nil;",
            )
        if not isinstance(wanted, DataType):
            raise self.context.error(
                f"{value.constructor.name} stands where there is no data value", expected=wanted
            )
        return self._emit(value.constructor, value.fields, wanted)

    def _emit(self, constructor: ast.Constructor, args: tuple[Any, ...], type_: DataType) -> Value:
        types, trace = self.context.types, self.context.trace
        name, arguments = types.arguments(type_.name)
        if name != constructor.data_type:
            raise self.context.error(f"{constructor.name} makes no {type_}")
        bindings = dict(zip(types.definition(name).type_params, arguments, strict=True))
        given = tuple(
            self.functions.coerce(arg, types.to_ir(field, bindings))
            for field, arg in zip(types.fields(constructor), args, strict=True)
        )
        atoms = tuple(trace.atom(v) for v in given)
        found: Value = trace.emit(Construct(type_, constructor.name, atoms), type_)
        return found

    def new_reference(self, node: ast.RefCreate, value: Any, types: Bindings) -> Any:
        """Return a reference. Its declared type may leave dimensions open, so that other sizes can
        be written.
        """
        declared = node.checked_type
        inner = declared.value if isinstance(declared, ast.RefType) else None
        value = self.functions.fit(value, inner, dict(types), "what a reference holds")
        found, type_ = type_of(value), self.context.types.to_ir(inner, types)
        held = found if type_ is None else joined(type_, found)
        assert held is not None
        return self.context.trace.emit(MakeRef(self.context.trace.atom(value)), RefType(held))

    def read(self, ref: Any) -> Any:
        """Return what a reference holds now."""
        cell, type_ = self._reference(ref)
        return self.context.trace.emit(ReadRef(cell.atom), type_.value)

    def write(self, ref: Any, value: Any) -> tuple[()]:
        """Let a reference hold another value."""
        cell, type_ = self._reference(ref)
        trace = self.context.trace
        atom = trace.atom(self.functions.coerce(value, type_.value))
        trace.builder.emit(WriteRef(cell.atom, atom), type=TupleType(()), span=trace.site())
        return ()

    def _reference(self, value: Any) -> tuple[Value, RefType]:
        type_ = type_of(value)
        if not isinstance(type_, RefType):
            raise self.context.error("this is no reference", found=type_)
        return self.context.trace.lift(value), type_
