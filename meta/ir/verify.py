"""Checks the rules that every pass relies on. One method per rule's subject.

- A variable is bound once in the whole module, before its uses, in a block around them.
- Arguments, results, conditions and fields are atoms or literals; other values are bound.
- A global name is that of a function of the module; a function gets as many arguments as it has
  parameters, an operator as it has slots.
- A data type has a definition; what is made and what is taken apart fits it.
- Declared types fit what follows from tuples, fields, conditionals, calls and results.
- Nothing nests deeper than `MAX_NESTING`, so that every program prints and parses.

Whether an operator accepts its arguments is the business of the pass that infers types.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NoReturn

from meta.base.dtype import DTYPES, FROM_TORCH
from meta.base.errors import IRError
from meta.base.registry import nearest
from meta.ir.expr import (
    Binding,
    Block,
    Call,
    Constant,
    Construct,
    ConstructorDefinition,
    Expr,
    Fail,
    Function,
    GetField,
    GlobalVar,
    If,
    IsVariant,
    MakeRef,
    Module,
    Op,
    ReadRef,
    Tuple,
    TupleGetItem,
    TypeDefinition,
    Var,
    WriteRef,
)
from meta.ir.literals import MAX_NESTING, is_literal
from meta.ir.operators import slots_of
from meta.ir.printer import atom_text, first_line, global_text, name_text
from meta.ir.typeof import BOOL, bind_dims, call_type, compatible, type_of
from meta.ir.types import DataType, Dim, FuncType, RefType, TensorType, TupleType, Type


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


def verify(module: Module, *, typed: bool = False) -> None:
    """Raise IRError, naming function, binding and the user's line, if a rule is broken.

    ``typed`` also asks that every variable and every result has a type.
    """
    verifier = _Verifier(module, typed)
    verifier.definitions()
    for name, function in module.functions.items():
        verifier.top_level(name, function)


class _Verifier(DataVerifier):
    def __init__(self, module: Module, typed: bool) -> None:
        super().__init__(module)
        self.typed = typed
        self.bound: set[Var] = set()
        self.scope: set[Var] = set()
        self.root = Function((), Block((), Tuple(())))
        self.binding: Binding | None = None

    def fail(self, what: str, **details: Any) -> NoReturn:
        """Raise IRError at the current binding."""
        span = None
        if self.binding is not None:
            span = self.binding.span
            details["found"] = first_line(self.root, self.binding)
        raise IRError(f"in {self.where}: {what}", span=span, **details)

    def show(self, atom: Expr) -> str:
        return atom_text(self.root, atom)

    def top_level(self, name: str, function: Function) -> None:
        self.where, self.root, self.binding = global_text(name), function, None
        self.function(function, 0)
        self.scope.clear()

    def function(self, function: Function, depth: int) -> None:
        owner = self.binding
        for param in function.params:
            self.bind(param)
        if self.typed and function.result_type is None:
            self.fail("a function has no result type")
        self.check_type(function.result_type)
        for key, value in function.attrs.items():
            if not isinstance(key, str) or not is_literal(value):
                self.fail(f"the attribute {key!r} is not a literal", expected="name=literal")
        self.block(function.body, depth)
        self.binding = owner
        result = self.type_of(function.body.result)
        if not compatible(function.result_type, result):
            self.fail(
                f"the result {self.show(function.body.result)} has type {result}",
                expected=function.result_type,
            )
        self.scope.difference_update(function.params)

    def block(self, block: Block, depth: int) -> None:
        owner = self.binding
        if depth > MAX_NESTING:
            self.fail(f"blocks are nested more than {MAX_NESTING} deep")
        for binding in block.bindings:
            self.binding = binding
            self.value(binding.value, depth)
            # The value of an `If` or a closure has moved on to its inner bindings.
            self.binding = binding
            self.bind(binding.var)
            self.check_value_type(binding)
        self.binding = owner
        self.atom(block.result, "the result")
        self.scope.difference_update(b.var for b in block.bindings)

    def bind(self, var: Var) -> None:
        if var in self.bound:
            self.fail(f"{self.show(var)} is bound twice", hint="copy with with_fresh_vars")
        if self.typed and var.type is None:
            self.fail(f"{self.show(var)} has no type")
        self.check_type(var.type)
        self.bound.add(var)
        self.scope.add(var)

    def value(self, value: Expr, depth: int) -> None:
        """Check what a binding binds."""
        match value:
            case Call():
                self.call(value)
            case TupleGetItem():
                self.field(value)
            case If():
                self.conditional(value, depth)
            case Function():
                self.function(value, depth + 1)
            case Construct():
                self.construct(value)
            case IsVariant():
                self.variant(value.value, value.constructor)
            case GetField():
                self.get_field(value)
            case MakeRef():
                self.atom(value.value, "what the reference holds")
            case ReadRef():
                self.reference(value.ref)
            case WriteRef():
                self.write(value)
            case Fail():
                self.check_type(value.type)
            case _:
                self.atom(value, "the value")

    def atom(self, atom: Any, role: str, depth: int = 0) -> None:
        """Check one atom: in scope, in the module, made of atoms."""
        match atom:
            case Var():
                if atom not in self.scope:
                    self.fail(
                        f"{role}, {self.show(atom)}, is used before it is bound or outside of "
                        "the block that binds it"
                    )
            case GlobalVar():
                if atom.name not in self.module.functions:
                    self.fail(
                        f"there is no function {global_text(atom.name)}",
                        hint=nearest(atom.name, self.module.functions),
                    )
            case Constant():
                if atom.data.dtype not in FROM_TORCH:
                    self.fail(f"a constant has the element type {atom.data.dtype}")
            case Op():
                pass
            case Tuple():
                if depth >= MAX_NESTING:
                    self.fail(f"tuples are nested more than {MAX_NESTING} deep")
                for field in atom.fields:
                    self.atom(field, "a field of a tuple", depth + 1)
            case _:
                self.fail(
                    f"{role} is a {type(atom).__name__}",
                    expected="an atom: a variable, a constant, a global name, an operator or a "
                    "tuple of these",
                    hint="bind it to a variable first",
                )

    def type_of(self, atom: Expr) -> Type | None:
        """Return an atom's type; that of a global name is the function's, which is never stale."""
        if isinstance(atom, GlobalVar):
            return self.module.functions[atom.name].type
        return type_of(atom)

    def call(self, call: Call) -> None:
        self.atom(call.callee, "the callee")
        if isinstance(call.callee, (Constant, Tuple)):
            self.fail("the callee is not a function", expected="an operator or a function")
        for i, arg in enumerate(call.args):
            if isinstance(arg, Expr):
                self.atom(arg, f"argument {i}")
            elif not is_literal(arg):
                self.fail(
                    f"argument {i} is a {type(arg).__name__}",
                    expected="an atom or a literal: None, bool, int, float, str, a tuple of these",
                )
        slots = slots_of(call.callee)
        if slots is not None and len(slots) != len(call.args):
            self.fail(
                f"{self.show(call.callee)} has {len(slots)} slots and is given "
                f"{len(call.args)} arguments",
                expected=", ".join(s.name for s in slots),
            )
        self.function_arguments(call)

    def function_arguments(self, call: Call) -> None:
        """Check the arguments of a call of a closure or a global function."""
        if isinstance(call.callee, Op):
            return
        type_ = self.type_of(call.callee)
        if type_ is None:
            return
        if not isinstance(type_, FuncType):
            self.fail(f"{self.show(call.callee)} is called and is no function: {type_}")
        if len(type_.params) != len(call.args):
            self.fail(
                f"{self.show(call.callee)} has {len(type_.params)} parameters and is given "
                f"{len(call.args)} arguments",
                expected=type_,
            )
        symbols: dict[str, Dim] = {}
        for i, (param, arg) in enumerate(zip(type_.params, call.args, strict=True)):
            found = self.type_of(arg) if isinstance(arg, Expr) else None
            if not bind_dims(param, found, symbols):
                self.fail(f"argument {i} has type {found}", expected=param)

    def field(self, value: TupleGetItem) -> None:
        self.atom(value.value, "the tuple")
        owner = self.type_of(value.value)
        if owner is None:
            return
        if not isinstance(owner, TupleType):
            self.fail(f"a field is taken of {self.show(value.value)}, which is {owner}")
        if not 0 <= value.index < len(owner.fields):
            self.fail(
                f"there is no field {value.index}",
                expected=f"0 <= index < {len(owner.fields)}",
            )

    def conditional(self, value: If, depth: int) -> None:
        self.atom(value.condition, "the condition")
        type_ = self.type_of(value.condition)
        if not compatible(type_, BOOL):
            self.fail(f"the condition has type {type_}", expected=BOOL)
        owner = self.binding
        for block in (value.then_block, value.else_block):
            self.binding = owner
            self.block(block, depth + 1)
        self.binding = owner
        then, other = (self.type_of(b.result) for b in (value.then_block, value.else_block))
        if not compatible(then, other):
            self.fail(f"the blocks yield {then} and {other}", expected="one type")

    def check_value_type(self, binding: Binding) -> None:
        """Check that the declared type is the one that follows from the value."""
        value = binding.value
        found: list[Type | None]
        match value:
            case If():
                found = [self.type_of(b.result) for b in (value.then_block, value.else_block)]
            case Call(callee=GlobalVar() as callee):
                function = self.type_of(callee)
                args = [self.type_of(a) if isinstance(a, Expr) else None for a in value.args]
                known = isinstance(function, FuncType)
                found = [call_type(function, args)] if known else []  # type: ignore[arg-type]
            case _:
                found = [self.type_of(value)]
        for type_ in found:
            if not compatible(binding.var.type, type_):
                self.fail(f"the value has type {type_}", expected=binding.var.type)
