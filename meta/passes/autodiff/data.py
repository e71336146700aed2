"""Gradients of data values.

The gradient of a value that ``C`` made is a value that a constructor ``C`` of another data type
made, of the gradients of the fields that have one; or it is zero, of a constructor without fields.
A field that is read gives a gradient that is zero elsewhere. Those of one block are put together
where they are known (`BackwardSweep`), so that each value is made once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from meta import op
from meta.ir import (
    Block,
    BlockBuilder,
    Call,
    ConstructorDefinition,
    DataType,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    If,
    Primitive,
    TensorType,
    TupleType,
    Type,
    TypeDefinition,
    Var,
)
from meta.ir.names import Names
from meta.ir.primitives import field_types
from meta.op.core.tracing import BlockTrace, Trace, Value
from meta.passes.autodiff.activity import Activity, path
from meta.passes.match_constructor import match_constructor

FieldGradients = Mapping[tuple[int, int], Value]
"""Gradients of fields, each by its number and that of a leaf in it."""


class DataGradients:
    """The data types of gradients, and functions that add their values, as they are asked for.

    Attributes
    ----------
    types: definitions by name. functions: by name, unique beside ``names``.
    """

    def __init__(self, activity: Activity, names: Names) -> None:
        self.activity, self._names = activity, names
        self.types: dict[str, TypeDefinition] = {}
        self.functions: dict[str, Function] = {}
        self._type_names = Names(activity.module.types)
        self._of: dict[DataType, DataType] = {}
        self._zeros: dict[DataType, str] = {}
        self._adders: dict[DataType, str] = {}

    def type_of(self, type_: Type) -> Type:
        """Return the type of the gradient of a leaf."""
        if not isinstance(type_, DataType):
            return type_
        if type_ not in self._of:
            made = self._of[type_] = DataType(self._type_names.unique(f"{type_.name}_grad"))
            old = self.activity.module.types[type_.name].constructors
            zero = self._zeros[made] = Names(c.name for c in old).unique("zero")
            constructors = [ConstructorDefinition(zero, ())]
            for c in old:
                held = self.activity.held(type_, c.name)
                types = (self.activity.held_type(type_, c.name, at) for at in held)
                constructors.append(ConstructorDefinition(c.name, tuple(map(self.type_of, types))))
            self.types[made.name] = TypeDefinition(made.name, tuple(constructors))
        return self._of[type_]

    def zero(self, trace: Trace, type_: DataType) -> Value:
        """Return the zero gradient of a value of a data type."""
        made = self._made(type_)
        return _construct(trace, made, self._zeros[made], ())

    def whole(
        self, trace: Trace, type_: DataType, constructor: str, parts: FieldGradients, value: Expr
    ) -> Value:
        """Return the gradient of a value that a constructor made, by those of some of its fields:
        of the others it is zero.
        """
        fields = []
        for at in self.activity.held(type_, constructor):
            part = parts.get(at)
            if part is None:
                part = self._zero_of_field(trace, type_, constructor, at, value)
            fields.append(part)
        return _construct(trace, self._made(type_), constructor, fields)

    def _zero_of_field(
        self, trace: Trace, type_: DataType, constructor: str, at: tuple[int, int], value: Expr
    ) -> Value:
        held, (number, leaf) = self.activity.held_type(type_, constructor, at), at
        if isinstance(held, DataType):
            return self.zero(trace, held)
        field = field_types(type_, constructor, self.activity.module.types)[number]
        like = trace.emit(Primitive("get_field", (value,), (constructor, number), field), field)
        for i in path(field, leaf):
            like = like[i]
        return self._zeros_like(trace, like)

    def fields(
        self,
        trace: Trace,
        type_: DataType,
        constructor: str,
        gradient: Value,
        values: Mapping[int, Value],
    ) -> list[Value]:
        """Return the gradients of ``values``, fields of what a constructor made, by the gradient of
        that. Each is given by its place among the fields that have a gradient (`Activity.held`).
        """
        made = self._made(type_)
        types = [self.type_of(v.type) for v in values.values()]
        is_zero = Primitive("is_variant", (gradient.atom,), (self._zeros[made],))
        condition = trace.emit(is_zero, TensorType((), "bool"))
        zeros, others = BlockTrace(trace), BlockTrace(trace)
        zeros.site = others.site = trace.site
        zero = [
            self.zero(zeros, v.type)
            if isinstance(v.type, DataType)
            else zeros.run(op.zeros_like, v)
            for v in values.values()
        ]
        other = [
            others.emit(Primitive("get_field", (gradient.atom,), (constructor, i), t), t)
            for i, t in zip(values, types, strict=True)
        ]
        both = If(condition.atom, zeros.finish(zero), others.finish(other))
        return list(trace.emit(both, TupleType(tuple(types))))

    def _zeros_like(self, trace: Trace, value: Value) -> Value:
        if isinstance(value.type, DataType):
            return self.zero(trace, value.type)
        found: Value = trace.run(op.zeros_like, value)
        return found

    def add(self, trace: Trace, a: Value, b: Value) -> Value:
        """Return the sum of two gradients of a data value."""
        type_ = FuncType((a.type, a.type), a.type)
        call = Call(GlobalVar(self._adder(a.type), type_), (a.atom, b.atom))
        found: Value = trace.emit(call, a.type)
        return found

    def _adder(self, made: DataType) -> str:
        if made not in self._adders:
            name = self._adders[made] = self._names.unique(f"add_{made.name}")
            constructors = self.types[made.name].constructors
            fields = {c.name: c.fields for c in constructors}
            names = [c.name for c in constructors if c.name != self._zeros[made]]
            added = partial(self._added, made, fields)
            params = [("a", made), ("b", made)]
            zero = self._zeros[made]
            order = [zero, *names]
            self.functions |= match_constructor(name, self._names, params, made, order, added)
        return self._adders[made]

    def _added(
        self,
        made: DataType,
        types: Mapping[str, tuple[Type, ...]],
        constructor: str,
        params: tuple[Var, ...],
    ) -> Block:
        """Return the sum of two gradients, the first of which a constructor made."""
        a, b = params
        if constructor == self._zeros[made]:
            return BlockBuilder().finish(b)
        trace, sums = Trace(), list[Any]()
        is_zero = Primitive("is_variant", (b,), (self._zeros[made],))
        condition = trace.emit(is_zero, TensorType((), "bool"))
        both = BlockTrace(trace)
        for i, type_ in enumerate(types[constructor]):
            x, y = (
                both.emit(Primitive("get_field", (v,), (constructor, i), type_), type_)
                for v in params
            )
            data = isinstance(type_, DataType)
            sums.append(self.add(both, x, y) if data else both.run(op.add, x, y))
        total = _construct(both, made, constructor, sums)
        chosen = If(condition.atom, BlockBuilder().finish(a), both.finish(total))
        return trace.finish(trace.emit(chosen, made))

    def _made(self, type_: DataType) -> DataType:
        made = self.type_of(type_)
        assert isinstance(made, DataType)
        return made


def _construct(trace: Trace, type_: DataType, name: str, fields: Sequence[Value]) -> Value:
    value = Primitive("construct", tuple(f.atom for f in fields), (name,), type_)
    found: Value = trace.emit(value, type_)
    return found
