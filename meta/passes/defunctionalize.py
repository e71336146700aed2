"""Closures become data: a value says which function it is, and holds what that captured.

After J. C. Reynolds, "Definitional interpreters for higher-order programming languages", 1972.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from meta.ir import (
    Binding,
    Block,
    BlockBuilder,
    Call,
    ConstructorDefinition,
    DataType,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    Module,
    OpNode,
    Primitive,
    RefType,
    TupleType,
    Type,
    TypeDefinition,
    Var,
    bindings,
    type_of,
    with_fresh_vars,
)
from meta.ir.names import Names
from meta.ir.types import call_type, without_names
from meta.ir.visit import map_atoms, used_atoms
from meta.passes.call_graph import used_as_values
from meta.passes.closure_flow import ClosureFlow, ClosureKind, Kinds
from meta.passes.match_constructor import match_constructor
from meta.passes.rewrite import with_blocks
from meta.passes.symbolic_extents import captured_vars


def defunctionalize(module: Module) -> Module:
    """Replace function values by data values, and calls of them by calls of functions that ask
    which function is meant.

    For the function values that may be in one place there is a data type with a constructor for
    each of them, whose fields are what it captured. A closure becomes a function of the module that
    takes these last. To be run after `lambda_lift`, which leaves only function values that are
    chosen when the program runs. All values need types.

    A module is returned as it is without such values, where main takes or returns functions, and
    where operators are values.

    >>> from meta.ir import parse
    >>> print(meta.passes.defunctionalize(parse('''
    ... func @main(%x: float32[2], %p: bool[]) -> float32[2] {
    ...   %f: fn(float32[2]) -> float32[2] = if %p {
    ...     %g: fn(float32[2]) -> float32[2] = fn(%a: float32[2]) -> float32[2] {
    ...       %b: float32[2] = multiply(%a, %x)
    ...       return %b
    ...     }
    ...     yield %g
    ...   } else {
    ...     yield @exp
    ...   }
    ...   %y: float32[2] = %f(%x)
    ...   return %y
    ... }
    ... func @exp(%x: float32[2]) -> float32[2] {
    ...   %y: float32[2] = exp(%x)
    ...   return %y
    ... }''')))
    type closure {
      g(float32[2])
      exp()
    }
    <BLANKLINE>
    func @main(%x: float32[2], %p: bool[]) -> float32[2] {
      %f: type closure = if %p {
        %g: type closure = construct g(%x) -> type closure
        yield %g
      } else {
        %0: type closure = construct exp() -> type closure
        yield %0
      }
      %y: float32[2] = @closure_call(%f, %x)
      return %y
    }
    <BLANKLINE>
    func @exp(%x: float32[2]) -> float32[2] {
      %y: float32[2] = exp(%x)
      return %y
    }
    <BLANKLINE>
    func @g(%a: float32[2], %x: float32[2]) -> float32[2] {
      %b: float32[2] = multiply(%a, %x)
      return %b
    }
    <BLANKLINE>
    func @closure_call(%closure: type closure, %x0: float32[2]) -> float32[2] {
      %0: bool[] = is_variant g(%closure)
      %1: float32[2] = if %0 {
        %2: float32[2] = get_field g.0(%closure) -> float32[2]
        %3: float32[2] = @g(%x0, %2)
        yield %3
      } else {
        %4: float32[2] = @exp(%x0)
        yield %4
      }
      return %1
    }
    """
    values = (b.value for f in module.functions.values() for b in bindings(f))
    if not any(isinstance(v, Function) for v in values) and not used_as_values(module):
        return module
    if _is_open(module):
        return module
    return _Defunctionalizer(module).module()


def _is_open(module: Module) -> bool:
    """Whether function values come from outside, leave the program, or are operators."""
    main = module.main
    types = [*(p.type for p in main.params), main.result_type or type_of(main.body.result)]
    if any(_holds_functions(t, module, set()) for t in types):
        return True
    for function in module.functions.values():
        callees = {id(b.value.callee) for b in bindings(function) if isinstance(b.value, Call)}
        if any(isinstance(a, OpNode) and id(a) not in callees for a in used_atoms(function)):
            return True
    return False


def _holds_functions(type_: Type | None, module: Module, seen: set[str]) -> bool:
    match type_:
        case FuncType():
            return True
        case TupleType():
            return any(_holds_functions(f, module, seen) for f in type_.fields)
        case RefType():
            return _holds_functions(type_.value, module, seen)
        case DataType() if type_.name not in seen:
            seen.add(type_.name)
            constructors = module.types[type_.name].constructors
            return any(_holds_functions(f, module, seen) for c in constructors for f in c.fields)
    return False


@dataclass(frozen=True, slots=True)
class _LiftedFunction:
    """A function of the module that a function value stands for, and the types it captures."""

    name: str
    captures: tuple[Type, ...] = ()


class _Defunctionalizer:
    def __init__(self, old: Module) -> None:
        self.old, self.flow = old, ClosureFlow(old)
        self._names, self._types = Names(old.functions), Names(old.types)
        self._functions: dict[str, Function] = {}
        self._mapping: dict[Expr, Expr] = {}
        # By kind, in the order in which they are met: the data type and the function that calls.
        self._data: dict[ClosureKind, str] = {}
        self._callers: dict[ClosureKind, str] = {}
        self._lifted: dict[Var | str, _LiftedFunction] = {}
        # The variables that may be used where the walk is, outermost first.
        self._scope: list[Var] = []

    def module(self) -> Module:
        self._functions = dict(self.old.functions)  # in this order, before those of closures
        for name, function in self.old.functions.items():
            params = tuple(map(self._var, function.params))
            self._scope = list(params)
            body = self._block(function.body)
            result = self._result(function)
            self._functions[name] = Function(params, body, result, dict(function.attrs))
        types = {name: self._converted(name) for name in self.old.types}
        done = 0
        while done < len(self._data):
            # What they capture may be of types that were not met before.
            for kind, name in list(self._data.items())[done:]:
                types[name] = self._definition(kind, name)
                done += 1
        for kind, name in self._callers.items():
            self._functions |= self._caller(kind, name)
        return self.old.with_functions(self._functions, types)

    # Types.

    def _type(self, type_: Type, kinds: Kinds) -> Type:
        """Return a type with data types for those of functions."""
        match type_:
            case FuncType():
                return DataType(self._data_name(kinds.root))
            case TupleType():
                pairs = zip(type_.fields, kinds, strict=True)
                return TupleType(tuple(self._type(f, k) for f, k in pairs))
            case RefType():
                return RefType(self._type(type_.value, kinds[0]))
        return type_

    def _data_name(self, kind: ClosureKind) -> str:
        if kind not in self._data:
            self._data[kind] = self._types.unique("closure")
        return self._data[kind]

    def _result(self, function: Function) -> Type:
        type_ = function.result_type or type_of(function.body.result)
        assert type_ is not None
        return self._type(type_, self.flow.of(function.body.result))

    def _converted(self, name: str) -> TypeDefinition:
        constructors = tuple(
            replace(c, fields=tuple(
                self._type(f, self.flow.field(name, c.name, i)) for i, f in enumerate(c.fields)
            ))
            for c in self.old.types[name].constructors
        )  # fmt: skip
        return TypeDefinition(name, constructors)

    def _makers(self, kind: ClosureKind) -> list[_LiftedFunction]:
        return [self._lifted.get(m) or _LiftedFunction(str(m)) for m in kind.makers]

    def _definition(self, kind: ClosureKind, name: str) -> TypeDefinition:
        constructors = (
            ConstructorDefinition(m.name, tuple(map(without_names, m.captures)))
            for m in self._makers(kind)
        )
        return TypeDefinition(name, tuple(constructors))

    # Values.

    def _var(self, var: Var) -> Var:
        """Return the variable that stands for another one, which has no function in its type."""
        if var not in self._mapping:
            assert var.type is not None
            type_ = self._type(var.type, self.flow.of(var))
            self._mapping[var] = var if type_ == var.type else Var(var.name, type_)
        found = self._mapping[var]
        assert isinstance(found, Var)
        return found

    def _atom(self, atom: Any, builder: BlockBuilder) -> Any:
        """Return an atom without functions; those of the module are made values before."""

        def new(leaf: Expr) -> Expr:
            if isinstance(leaf, GlobalVar):
                type_ = DataType(self._data_name(self.flow.of(leaf).root))
                return builder.emit(Primitive("construct", (), (leaf.name,), type_), type=type_)
            return self._mapping.get(leaf, leaf)

        return map_atoms(atom, new) if isinstance(atom, Expr) else atom

    def _block(self, block: Block) -> Block:
        builder, outside = BlockBuilder(), len(self._scope)
        for binding in block.bindings:
            value = self._value(binding, builder)
            builder.append(Binding(self._var(binding.var), value, binding.span))
            self._scope.append(self._var(binding.var))
        del self._scope[outside:]
        return builder.finish(self._atom(block.result, builder))

    def _value(self, binding: Binding, builder: BlockBuilder) -> Expr:
        value = binding.value
        match value:
            case Function():
                return self._closure(binding.var, value)
            case Call():
                args = [self._atom(a, builder) for a in value.args]
                return self._call(value.callee, args)
            case Primitive() if value.type is not None:
                operands = tuple(self._atom(a, builder) for a in value.operands)
                type_ = self._type(value.type, self.flow.of(binding.var))
                return replace(value, operands=operands, type=type_)
        return with_blocks(self._atom(value, builder), self._block)

    def _closure(self, var: Var, closure: Function) -> Expr:
        """Make a function of a closure; return the value that stands for it."""
        params, outside = tuple(map(self._var, closure.params)), len(self._scope)
        self._scope += params
        made = Function(
            params, self._block(closure.body), self._result(closure), dict(closure.attrs)
        )
        del self._scope[outside:]
        captured = captured_vars(made, self._scope)
        name = self._names.unique(var.name or "closure")
        self._functions[name] = with_fresh_vars(replace(made, params=(*params, *captured)))
        types = tuple(v.type for v in captured if v.type is not None)
        self._lifted[var] = _LiftedFunction(name, types)
        type_ = DataType(self._data_name(self.flow.of(var).root))
        return Primitive("construct", captured, (name,), type_)

    def _call(self, callee: Expr, args: list[Any]) -> Call:
        if isinstance(callee, GlobalVar):
            function = self.old.functions[callee.name]
            given = [self._type(p.type, self.flow.of(p)) for p in function.params if p.type]
            type_ = FuncType(tuple(given), self._result(function))
            return Call(GlobalVar(callee.name, type_), tuple(args))
        if not isinstance(callee, Var):
            return Call(callee, tuple(args))
        kind = self.flow.of(callee).root
        if kind not in self._callers:
            self._callers[kind] = self._names.unique(f"{self._data_name(kind)}_call")
        params, result = self._signature(kind)
        type_ = FuncType((DataType(self._data_name(kind)), *params), result)
        return Call(GlobalVar(self._callers[kind], type_), (self._mapping[callee], *args))

    def _signature(self, kind: ClosureKind) -> tuple[list[Type], Type]:
        pairs = zip(kind.type.params, kind.params, strict=True)
        return [self._type(p, k) for p, k in pairs], self._type(kind.type.result, kind.result)

    def _caller(self, kind: ClosureKind, name: str) -> dict[str, Function]:
        """Return the function that is called in place of function values."""
        makers = {m.name: m for m in self._makers(kind)}
        given, result = self._signature(kind)
        params = [
            ("closure", DataType(self._data[kind])),
            *((f"x{i}", t) for i, t in enumerate(given)),
        ]

        def called(constructor: str, variables: tuple[Var, ...]) -> Block:
            maker, builder = makers[constructor], BlockBuilder()
            fields = []
            for i, capture in enumerate(maker.captures):
                type_ = without_names(capture)
                got = Primitive("get_field", variables[:1], (constructor, i), type_)
                fields.append(builder.emit(got, type=type_))
            callee = GlobalVar(constructor, self._functions[constructor].type)
            args = (*variables[1:], *fields)
            assert isinstance(callee.type, FuncType)
            type_ = call_type(callee.type, [type_of(a) for a in args])
            return builder.finish(builder.emit(Call(callee, args), type=type_))

        return match_constructor(name, self._names, params, result, list(makers), called)
