"""Which function values may be where: the closures that a variable may hold are those of its kind.

Where a value may come from two places, the kinds of both are one, with what is given to its
functions and what these return. After B. Steensgaard, "Points-to analysis in almost linear time",
POPL 1996.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from meta.ir import (
    UNKNOWN,
    Block,
    Call,
    Dim,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    If,
    Module,
    Primitive,
    RefType,
    SymbolicDim,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    bindings,
)
from meta.ir.types import call_type, either_type, without_names
from meta.passes.call_graph import used_as_values

Kinds = Any
"""The kinds in a type: a `ClosureKind` for a function type, a tuple of these for a tuple or a
reference, None for what holds no function, or is a data type, whose fields have kinds of their own.
"""


@dataclass(eq=False, slots=True)
class ClosureKind:
    """The function values that may be in one place.

    ``makers``: closures, by the variables that they are bound to, and functions of the module by
    name. ``params``, ``result``: the kinds in what they take and return.
    """

    type: FuncType
    params: tuple[Kinds, ...]
    result: Kinds
    makers: list[Var | str] = field(default_factory=list)
    merged: ClosureKind | None = None

    @property
    def root(self) -> ClosureKind:
        """The kind that this one is a part of."""
        kind = self
        while kind.merged is not None:
            kind = kind.merged
        return kind


class ClosureFlow:
    """The kinds of a module's variables and of the fields of its data types."""

    def __init__(self, module: Module) -> None:
        self.module = module
        self._of: dict[Var, Kinds] = {}
        self._fields: dict[tuple[str, str, int], Kinds] = {
            (name, constructor.name, i): _kinds(type_)
            for name, definition in module.types.items()
            for constructor in definition.constructors
            for i, type_ in enumerate(constructor.fields)
        }
        # Functions of the module that are values themselves.
        self._globals: dict[str, ClosureKind] = {}
        for name in sorted(used_as_values(module)):
            type_ = module.functions[name].type
            assert type_ is not None
            kind = self._globals[name] = _kinds(type_)
            kind.makers.append(name)
            self._function(module.functions[name], kind)
        for function in module.functions.values():
            self._block(function.body)

    def of(self, atom: Expr) -> Kinds:
        """Return the kinds in the type of an atom."""
        match atom:
            case Var():
                if atom not in self._of:
                    self._of[atom] = _kinds(atom.type)
                return self._of[atom]
            case Tuple():
                return tuple(map(self.of, atom.fields))
            case GlobalVar():
                return self._globals[atom.name]
        return None

    def field(self, type_name: str, constructor: str, index: int) -> Kinds:
        """Return the kinds in a field of a data type."""
        return self._fields[type_name, constructor, index]

    def _block(self, block: Block) -> None:
        for binding in block.bindings:
            self._value(binding.value, self.of(binding.var), binding.var)

    def _value(self, value: Expr, kinds: Kinds, var: Var) -> None:
        match value:
            case Call(callee=GlobalVar() as callee):
                function = self.module.functions[callee.name]
                for param, arg in zip(function.params, value.args, strict=True):
                    self._meet(self.of(param), self.of(arg))
                self._meet(kinds, self.of(function.body.result))
            case Call(callee=Var() as callee):
                kind = self.of(callee).root
                for param, arg in zip(kind.params, value.args, strict=True):
                    self._meet(param, self.of(arg))
                self._meet(kinds, kind.root.result)
            case Call():
                pass
            case Function():
                kinds.root.makers.append(var)
                self._function(value, kinds)
                self._block(value.body)
            case If():
                for block in (value.then_block, value.else_block):
                    self._block(block)
                    self._meet(kinds, self.of(block.result))
            case TupleGetItem():
                owner = self.of(value.value)
                self._meet(kinds, owner[value.index])
            case Primitive():
                self._primitive(value, kinds)
            case _:
                self._meet(kinds, self.of(value))

    def _function(self, function: Function, kind: ClosureKind) -> None:
        for param, kinds in zip(function.params, kind.params, strict=True):
            self._meet(self.of(param), kinds)
        self._meet(self.of(function.body.result), kind.root.result)

    def _primitive(self, value: Primitive, kinds: Kinds) -> None:
        operands = [self.of(operand) for operand in value.operands]
        match value.name:
            case "construct":
                name = value.type.name  # type: ignore[union-attr]
                for i, operand in enumerate(operands):
                    self._meet(self.field(name, value.details[0], i), operand)
            case "get_field":
                name = value.operands[0].type.name  # type: ignore[attr-defined]
                self._meet(kinds, self.field(name, *value.details))
            case "make_ref":
                self._meet(kinds[0], operands[0])
            case "read_ref":
                self._meet(kinds, operands[0][0])
            case "write_ref":
                self._meet(operands[0][0], operands[1])

    def _meet(self, a: Kinds, b: Kinds) -> None:
        """Let two places hold the same function values."""
        if isinstance(a, tuple) and isinstance(b, tuple):
            for x, y in zip(a, b, strict=True):
                self._meet(x, y)
        elif isinstance(a, ClosureKind) and isinstance(b, ClosureKind):
            a, b = a.root, b.root
            if a is b:
                return
            b.merged = a
            a.makers += b.makers
            type_ = either_type(a.type, b.type)
            assert isinstance(type_, FuncType)
            a.type = type_
            for x, y in zip((*a.params, a.result), (*b.params, b.result), strict=True):
                self._meet(x, y)


def calls_unknown(module: Module) -> bool:
    """Whether a function value is called that is not known by its name."""
    values = (b.value for f in module.functions.values() for b in bindings(f))
    return any(isinstance(v, Call) and isinstance(v.callee, Var) for v in values)


def _kinds(type_: Type | None) -> Kinds:
    match type_:
        case FuncType():
            named = _with_own_names(type_)
            return ClosureKind(named, tuple(map(_kinds, type_.params)), _kinds(type_.result))
        case TupleType():
            return tuple(map(_kinds, type_.fields))
        case RefType():
            return (_kinds(type_.value),)
    return None


def _with_own_names(type_: FuncType) -> FuncType:
    """Return a function type whose symbolic dimensions are those that arguments bind, under names
    that do not depend on the code around; others are unknown.
    """
    names: dict[str, Dim] = {}

    def own(param: Type) -> Type:
        match param:
            case TensorType():
                shape = (_own_dim(d, names) for d in param.shape)
                return param.with_shape(tuple(shape))
            case TupleType():
                return TupleType(tuple(map(own, param.fields)))
        return without_names(param)

    params = tuple(map(own, type_.params))
    return FuncType(params, call_type(FuncType(type_.params, type_.result), params))


def _own_dim(dim: Dim, names: dict[str, Dim]) -> Dim:
    if not isinstance(dim, SymbolicDim):
        return dim
    if dim.name is None:
        return UNKNOWN
    return names.setdefault(dim.name, SymbolicDim(f"d{len(names)}"))
