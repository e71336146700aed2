"""Checks of types, of the definitions of data types, and of what makes and takes apart data values
and references: a part of `verify.py`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NoReturn

from meta.base.dtype import DTYPES
from meta.base.registry import nearest
from meta.ir.expr import (
    Construct,
    ConstructorDefinition,
    Expr,
    GetField,
    Module,
    TypeDefinition,
    WriteRef,
)
from meta.ir.literals import MAX_NESTING
from meta.ir.printer import name_text
from meta.ir.typeof import compatible
from meta.ir.types import DataType, FuncType, RefType, TensorType, TupleType, Type


class DataVerifier(ABC):
    """The checks that need the module's data types.

    Attributes
    ----------
    where: the function or data type that is being checked.
    """

    def __init__(self, module: Module) -> None:
        self.module = module
        self.good_types: set[Type] = set()
        self.where = ""

    @abstractmethod
    def fail(self, what: str, **details: Any) -> NoReturn:
        """Raise IRError at the current place."""

    @abstractmethod
    def atom(self, atom: Any, role: str, depth: int = 0) -> None:
        """Check one atom."""

    @abstractmethod
    def type_of(self, atom: Expr) -> Type | None:
        """Return an atom's type."""

    def definitions(self) -> None:
        """Check the module's data types: names, and fields whose types can be written down."""
        for name, definition in self.module.types.items():
            self.where = f"the data type {name_text(name)}"
            if definition.name != name:
                self.fail("it is stored under another name", found=definition.name)
            seen: set[str] = set()
            for constructor in definition.constructors:
                if constructor.name in seen:
                    self.fail(f"two constructors have the name {constructor.name!r}")
                seen.add(constructor.name)
                for field in constructor.fields:
                    self.check_type(field)

    def check_type(self, type_: Type | None, depth: int = 0) -> None:
        """Check that a type can be written down: known dtypes, no negative dimension."""
        if type_ is None or type_ in self.good_types:
            return
        if depth > MAX_NESTING:
            self.fail(f"types are nested more than {MAX_NESTING} deep")
        match type_:
            case TensorType():
                if type_.dtype not in DTYPES:
                    self.fail(f"{type_.dtype!r} is no dtype", hint=nearest(type_.dtype, DTYPES))
                if any(isinstance(d, int) and d < 0 for d in type_.shape):
                    self.fail(f"the type {type_} has a negative dimension")
            case TupleType():
                for field in type_.fields:
                    self.check_type(field, depth + 1)
            case FuncType():
                for part in (*type_.params, type_.result):
                    self.check_type(part, depth + 1)
            case RefType():
                self.check_type(type_.value, depth + 1)
            case DataType():
                self.defined(type_)
        self.good_types.add(type_)

    def defined(self, type_: DataType) -> TypeDefinition:
        """Return the definition of a data type, which must be there."""
        if type_.name not in self.module.types:
            hint = nearest(type_.name, self.module.types)
            self.fail(f"there is no data type {name_text(type_.name)}", hint=hint)
        return self.module.types[type_.name]

    def constructor(self, type_: DataType, name: str) -> ConstructorDefinition:
        """Return the definition of a constructor, which must be there."""
        definition = self.defined(type_)
        found = definition.constructor(name)
        if found is None:
            known = [c.name for c in definition.constructors]
            self.fail(f"{type_} has no constructor {name_text(name)}", hint=nearest(name, known))
        return found

    def construct(self, value: Construct) -> None:
        expected = self.constructor(value.type, value.constructor).fields
        if len(expected) != len(value.fields):
            self.fail(
                f"{name_text(value.constructor)} has {len(expected)} fields and is given "
                f"{len(value.fields)}",
                expected=f"({', '.join(map(str, expected))})",
            )
        for i, (field, type_) in enumerate(zip(value.fields, expected, strict=True)):
            self.atom(field, f"field {i}")
            found = self.type_of(field)
            if not compatible(type_, found):
                self.fail(f"field {i} has type {found}", expected=type_)

    def variant(self, value: Expr, constructor: str) -> ConstructorDefinition | None:
        """Check that an atom is of a data type with this constructor; return its definition."""
        self.atom(value, "the data value")
        type_ = self.type_of(value)
        if type_ is None:
            return None
        if not isinstance(type_, DataType):
            self.fail(f"a constructor is asked of a value of type {type_}", expected="a data type")
        return self.constructor(type_, constructor)

    def get_field(self, value: GetField) -> None:
        self.check_type(value.type)
        constructor = self.variant(value.value, value.constructor)
        if constructor is None:
            return
        if not 0 <= value.index < len(constructor.fields):
            self.fail(
                f"there is no field {value.index} of {name_text(value.constructor)}",
                expected=f"0 <= index < {len(constructor.fields)}",
            )
        expected = constructor.fields[value.index]
        if not compatible(value.type, expected):
            self.fail(f"field {value.index} is said to have type {value.type}", expected=expected)

    def reference(self, ref: Expr) -> RefType | None:
        """Check that an atom is a reference; return its type."""
        self.atom(ref, "the reference")
        type_ = self.type_of(ref)
        if type_ is not None and not isinstance(type_, RefType):
            self.fail(f"a value of type {type_} is no reference", expected="ref(...)")
        return type_

    def write(self, value: WriteRef) -> None:
        type_ = self.reference(value.ref)
        self.atom(value.value, "what is written")
        found = self.type_of(value.value)
        if type_ is not None and not compatible(type_.value, found):
            self.fail(f"a value of type {found} is written", expected=type_.value)
