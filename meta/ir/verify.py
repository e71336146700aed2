"""Checks the rules that every pass relies on.

- A variable is bound once in the whole module, before its uses, in a block around them.
- Arguments, results, conditions and fields are atoms or literals; other values are bound.
- A global name is that of a function of the module; a function gets as many arguments as it has
  parameters, an operator as it has slots.
- A data type has a definition; what is made and what is taken apart fits it.
- Declared types fit what follows from tuples, fields, conditionals, calls and results.
- Nothing nests deeper than `MAX_NESTING`, so that every program prints and parses.

The fields of a node are checked as its kind declares them (`fields.py`), then the node as a whole
(`Expr.verify`). Whether an operator accepts its arguments is the business of the pass that infers
types.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

from meta.base.dtype import DTYPES, FROM_TORCH
from meta.base.errors import IRError
from meta.base.registry import nearest
from meta.ir.expr import (
    Binding,
    Block,
    Constant,
    Function,
    GlobalVar,
    Module,
    OpNode,
    Tuple,
    TypeDefinition,
    Var,
)
from meta.ir.literals import MAX_NESTING, is_literal
from meta.ir.names import name_text
from meta.ir.node import Expr
from meta.ir.operators import slots_of
from meta.ir.printer import atom_text, first_line, global_text
from meta.ir.types import (
    DataType,
    Dim,
    FuncType,
    RefType,
    TensorType,
    TupleType,
    Type,
    bind_dims,
    compatible,
)


def verify(module: Module, *, typed: bool = False) -> None:
    """Raise IRError, naming function, binding and the user's line, if a rule is broken.

    ``typed`` also asks that every variable and every result has a type.

    >>> function = meta.ir.parse_function("fn(%x: float32[3]) { %y = exp(%x) return %y }")
    >>> unbound = meta.ir.Function((), function.body)
    >>> try:
    ...     meta.ir.verify(meta.ir.Module({"main": unbound}))
    ... except meta.errors.IRError as error:
    ...     print(error.what)
    in @main: argument 0, %x, is used before it is bound or outside of the block that binds it
    """
    verifier = Verifier(module, typed)
    verifier.definitions()
    for name, function in module.functions.items():
        verifier.top_level(name, function)


class Verifier:
    """Checks one module. Field kinds and node kinds ask it what they rely on.

    Attributes
    ----------
    typed: whether everything must have a type. where: the function or data type that is checked.
    """

    def __init__(self, module: Module, typed: bool) -> None:
        self.module, self.typed = module, typed
        self.where = ""
        self._good_types: set[Type] = set()
        self._bound: set[Var] = set()
        self._scope: set[Var] = set()
        self._root = Function((), Block((), Tuple(())))
        self._binding: Binding | None = None
        self._depth = -1  # how many blocks are around

    def fail(self, what: str, **details: Any) -> NoReturn:
        """Raise IRError at the current binding."""
        span = None
        if self._binding is not None:
            span = self._binding.span
            details["found"] = first_line(self._root, self._binding)
        raise IRError(f"in {self.where}: {what}", span=span, **details)

    def show(self, atom: Expr) -> str:
        """Return the text of an atom."""
        return atom_text(self._root, atom)

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

    def top_level(self, name: str, function: Function) -> None:
        """Check a function of the module."""
        self.where, self._root, self._binding = global_text(name), function, None
        self._node(function)
        self._scope.clear()

    def block(self, block: Block) -> None:
        """Check a block, whose variables are in scope in it only."""
        owner = self._binding
        self._depth += 1
        if self._depth > MAX_NESTING:
            self.fail(f"blocks are nested more than {MAX_NESTING} deep")
        for binding in block.bindings:
            self._binding = binding
            self._value(binding.value)
            self.bind(binding.var)
            self.declared(self.type_of(binding.value))
        self._binding = owner
        self.atom(block.result, "the result")
        self._scope.difference_update(b.var for b in block.bindings)
        self._depth -= 1

    def bind(self, var: Var) -> None:
        """Put a variable in scope."""
        if var in self._bound:
            self.fail(f"{self.show(var)} is bound twice", hint="copy with with_fresh_vars")
        if self.typed and var.type is None:
            self.fail(f"{self.show(var)} has no type")
        self.check_type(var.type)
        self._bound.add(var)
        self._scope.add(var)

    def _value(self, value: Expr) -> None:
        """Check what a binding binds."""
        if isinstance(value, Expr) and not value.spec.is_atom:
            self._node(value)
        else:
            self.atom(value, "the value")

    def _node(self, node: Expr) -> None:
        for name, field in node.spec.fields:
            field.check(getattr(node, name), self)
        node.verify(self)
        if node.spec.binds is not None:
            self._scope.difference_update(getattr(node, node.spec.binds))

    def atom(self, atom: Any, role: str, depth: int = 0) -> None:
        """Check one atom: in scope, in the module, made of atoms."""
        match atom:
            case Var():
                if atom not in self._scope:
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
            case OpNode():
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

    def argument(self, argument: Any, role: str) -> None:
        """Check an atom or a literal."""
        if isinstance(argument, Expr):
            self.atom(argument, role)
        elif not is_literal(argument):
            self.fail(
                f"{role} is a {type(argument).__name__}",
                expected="an atom or a literal: None, bool, int, float, str, a tuple of these",
            )

    # Types.

    def type_of(self, expr: Expr) -> Type | None:
        """Return an expression's type; that of a global name is its function's."""
        if isinstance(expr, GlobalVar):
            return self.module.functions[expr.name].type
        return expr.type_by(self.type_of)

    def declared(self, found: Type | None) -> None:
        """Check that a type of the current binding's value is the one that its variable has."""
        if self._binding is not None:
            self.fits(self._binding.var.type, found, "the value has type")

    def fits(self, expected: Type | None, found: Type | None, what: str) -> None:
        """Check that one value may have both types; ``what`` the second is the type of."""
        if not compatible(expected, found):
            self.fail(f"{what} {found}", expected=expected)

    def check_type(self, type_: Type | None, depth: int = 0) -> None:
        """Check that a type can be written down: known dtypes, no negative dimension."""
        if type_ is None or type_ in self._good_types:
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
        self._good_types.add(type_)

    def defined(self, type_: DataType) -> TypeDefinition:
        """Return the definition of a data type, which must be there."""
        if type_.name not in self.module.types:
            hint = nearest(type_.name, self.module.types)
            self.fail(f"there is no data type {name_text(type_.name)}", hint=hint)
        return self.module.types[type_.name]

    # Calls.

    def call(self, callee: Expr, args: Sequence[Any]) -> None:
        """Check the number of arguments, and their types as far as the callee has some."""
        slots = slots_of(callee)
        if slots is not None and len(slots) != len(args):
            self.fail(
                f"{self.show(callee)} has {len(slots)} slots and is given {len(args)} arguments",
                expected=", ".join(s.name for s in slots),
            )
        type_ = None if isinstance(callee, OpNode) else self.type_of(callee)
        if type_ is None:
            return
        if not isinstance(type_, FuncType):
            self.fail(f"{self.show(callee)} is called and is no function: {type_}")
        if len(type_.params) != len(args):
            self.fail(
                f"{self.show(callee)} has {len(type_.params)} parameters and is given "
                f"{len(args)} arguments",
                expected=type_,
            )
        symbols: dict[str, Dim] = {}
        for i, (param, arg) in enumerate(zip(type_.params, args, strict=True)):
            found = self.type_of(arg) if isinstance(arg, Expr) else None
            if not bind_dims(param, found, symbols):
                self.fail(f"argument {i} has type {found}", expected=param)
