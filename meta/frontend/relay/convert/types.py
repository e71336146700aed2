"""Types: those that a Relay program declares, against those that values really have.

Types of values flow from the inputs. What the program declares may leave dimensions open, has type
parameters, and is checked.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from meta.base.dtype import DTYPES
from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.ir import UNKNOWN, Dim, FuncType, TensorType, TupleType, Type, compatible
from meta.ir.expr import ConstructorDefinition, TypeDefinition
from meta.ir.types import DataType, RefType, either_type
from meta.op.core.tracing import Trace

Bindings = dict[str, Type]
"""The types that type parameters stand for."""


def all_or_none(types: Sequence[Type | None]) -> tuple[Type, ...] | None:
    """Return types of which each is known, or None."""
    known = tuple(t for t in types if t is not None)
    return known if len(known) == len(types) else None


def tuple_type(fields: Sequence[Type | None]) -> TupleType | None:
    """Return the type of a tuple, or None where that of a field is not known."""
    known = all_or_none(fields)
    return None if known is None else TupleType(known)


def _dim(dim: ast.Dim) -> Dim:
    return dim if isinstance(dim, int) else UNKNOWN


def element_type(dtype: str) -> str:
    """Return `meta`'s name of a dtype; RelayError if it has none."""
    name = {"uint1": "bool"}.get(dtype, dtype)
    if name not in DTYPES:
        raise RelayError(
            f"tensors of {dtype} are not supported", expected=", ".join(DTYPES), found=dtype
        )
    return name


def join_types(a: Type | None, b: Type | None) -> Type | None:
    """Return the type of either: unknown where extents differ; None where more differs."""
    match a, b:
        case TensorType(), TensorType() if a.dtype == b.dtype and a.ndim == b.ndim:
            dims = zip(a.shape, b.shape, strict=True)
            return a.with_shape(tuple(x if x == y else UNKNOWN for x, y in dims))
        case TupleType(), TupleType() if len(a.fields) == len(b.fields):
            return tuple_type([join_types(x, y) for x, y in zip(a.fields, b.fields, strict=True)])
        case _:
            return either_type(a, b) if a is not None and compatible(a, b) else None


def relay_text(type_: Any) -> str:
    """Write a declared type as Relay does, ``Tensor[(2, ?), float32]``."""

    def each(types: tuple[ast.Type, ...]) -> str:
        return ", ".join(map(relay_text, types))

    match type_:
        case ast.TensorType():
            dims = ", ".join(map(str, type_.shape))
            return f"Tensor[({dims}), {type_.dtype}]" if type_.shape else type_.dtype
        case ast.TupleType():
            return f"({each(type_.fields)}{',' if len(type_.fields) == 1 else ''})"
        case ast.FuncType():
            return f"fn ({each(type_.params)}) -> {relay_text(type_.result)}"
        case ast.TypeVar():
            return str(type_.name)
        case ast.DataType():
            return f"{type_.name}[{each(type_.args)}]"
        case ast.RefType():
            return f"ref({relay_text(type_.value)})"
        case _:
            return "_"


MAX_SELF_NESTING = 8
"""A data type may contain itself with so many other arguments; one that contains ever larger ones
of itself has no end.
"""


class DataTypes:
    """The data types of one program that is being converted; they are defined in its trace."""

    def __init__(self, definitions: Mapping[str, ast.TypeDefinition], trace: Trace) -> None:
        self._definitions, self._trace = definitions, trace
        self._made: dict[tuple[str, tuple[Type, ...]], DataType] = {}
        self._sources: dict[str, tuple[str, tuple[Type, ...]]] = {}
        # What is to be defined, each with the data types that it is inside of, and those of now.
        self._todo: list[tuple[str, tuple[Type, ...], tuple[str, ...]]] = []
        self._around: tuple[str, ...] = ()

    def definition(self, name: str) -> ast.TypeDefinition:
        """Return a definition; RelayError if there is none."""
        found = self._definitions.get(name)
        if found is None:
            raise RelayError(f"the program does not define the data type {name}")
        return found

    def fields(self, constructor: ast.Constructor) -> tuple[ast.Type, ...]:
        """Return the declared types of a constructor's fields."""
        for found in self.definition(constructor.data_type).constructors:
            if found.name == constructor.name:
                return found.fields
        raise RelayError(f"{constructor.data_type} has no constructor {constructor.name}")

    def instance(self, name: str, args: tuple[Type, ...]) -> DataType:
        """Return the IR type of a data type with these arguments."""
        if (name, args) not in self._made:
            self._name(name, args)
            self._todo.append((name, args, self._around))
            if not self._around:
                self._define()
        return self._made[name, args]

    def _define(self) -> None:
        """Define a type, and those that its fields need: a list, not a recursion."""
        while self._todo:
            name, args, around = self._todo.pop()
            if around.count(name) > MAX_SELF_NESTING:
                raise RelayError(f"{name} contains types of itself without end")
            self._around = (*around, name)
            definition = self.definition(name)
            bindings = dict(zip(definition.type_params, args, strict=True))
            constructors = []
            for c in definition.constructors:
                known = all_or_none([self.to_ir(f, bindings) for f in c.fields])
                if known is None:
                    raise RelayError(f"a field of {name}.{c.name} has no known type")
                constructors.append(ConstructorDefinition(c.name, known))
            full = TypeDefinition(self._made[name, args].name, tuple(constructors))
            self._trace.define(full)
        self._around = ()

    def _name(self, name: str, args: tuple[Type, ...]) -> None:
        definition = self.definition(name)
        if definition.extern:
            raise RelayError(f"{name} is an extern type: what it consists of is not known")
        if len(definition.type_params) != len(args):
            raise RelayError(
                f"{name} has another number of type arguments",
                expected=len(definition.type_params),
                found=len(args),
            )
        text = f"{name}[{', '.join(map(str, args))}]" if args else name
        self._made[name, args] = DataType(text)
        self._sources[text] = (name, args)

    def arguments(self, name: str) -> tuple[str, tuple[Type, ...]]:
        """Return the data type and the arguments that the IR type of a name was made for."""
        return self._sources[name]

    def to_ir(self, type_: ast.Type | None, bindings: Bindings) -> Type | None:
        """Return a declared type, None where more than dimensions is open; RelayError for its
        dtype.
        """

        def each(types: tuple[ast.Type, ...]) -> tuple[Type, ...] | None:
            return all_or_none([self.to_ir(t, bindings) for t in types])

        match type_:
            case ast.TensorType():
                return TensorType(tuple(map(_dim, type_.shape)), element_type(type_.dtype))
            case ast.TupleType():
                fields = each(type_.fields)
                return None if fields is None else TupleType(fields)
            case ast.FuncType():
                types = None if type_.type_params else each((*type_.params, type_.result))
                return None if types is None else FuncType(types[:-1], types[-1])
            case ast.TypeVar():
                return bindings.get(type_.name)
            case ast.DataType():
                args = each(type_.args)
                return None if args is None else self.instance(type_.name, args)
            case ast.RefType():
                value = self.to_ir(type_.value, bindings)
                return None if value is None else RefType(value)
            case _:
                return None

    def unify(self, declared: ast.Type | None, actual: Type, bindings: Bindings) -> bool:
        """Tell whether a value fits a declared type, and bind the type parameters in it."""

        def each(types: tuple[ast.Type, ...], found: tuple[Type, ...]) -> bool:
            return len(types) == len(found) and all(
                self.unify(t, f, bindings) for t, f in zip(types, found, strict=True)
            )

        match declared, actual:
            case (None | ast.UnknownType(), _):
                return True
            case ast.TypeVar(), _:
                known = bindings.get(declared.name)
                if known is not None and not compatible(known, actual):
                    return False
                joined = either_type(known, actual)
                assert joined is not None
                bindings[declared.name] = joined
                return True
            case ast.TensorType(), TensorType():
                return compatible(self.to_ir(declared, bindings), actual)
            case ast.TupleType(), TupleType():
                return each(declared.fields, actual.fields)
            case ast.FuncType(), FuncType():
                if declared.type_params:
                    return len(declared.params) == len(actual.params)
                return each((*declared.params, declared.result), (*actual.params, actual.result))
            case ast.DataType(), DataType():
                name, args = self.arguments(actual.name)
                return name == declared.name and each(declared.args, args)
            case ast.RefType(), RefType():
                return self.unify(declared.value, actual.value, bindings)
            case _:
                return False
