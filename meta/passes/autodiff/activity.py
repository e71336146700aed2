"""Activity: which leaves depend differentiably on those that gradients are wanted of.

*Leaves* are the tensors of which a value consists, nested tuples flattened. A gradient belongs to a
leaf. That of a variable is written ``(variable, number)``; a tensor is its own leaf 0. Functions,
data values and references count as leaves that no gradient flows to.

The analysis is a least fixed point over the functions of a module. A function has one set of active
parameters, the union over all calls, so it is differentiated once. So has a constructor of a data
type one set of active fields, the union over all values that it makes. A data value depends on all
that it holds; and once something active was put into a reference, every reference may hold it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from meta.base.dtype import has_gradient
from meta.base.errors import GradientError, IRError
from meta.dialect.core.ir_calls import base_op, leaf_types
from meta.grad.core import rule_of
from meta.ir import (
    Binding,
    Block,
    Call,
    DataType,
    Effect,
    Expr,
    Function,
    FuncType,
    GlobalVar,
    If,
    Module,
    Primitive,
    RefType,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    binders,
    bindings,
    free_vars,
    operands,
    type_of,
)
from meta.ir.primitives import field_types
from meta.passes.autodiff.custom_rule import (
    CustomRule,
    closed_over_error,
    custom_rule,
    missing_error,
)

Leaf = tuple[Var, int]

Target = Leaf | list[Leaf]
"""What one gradient is of: a leaf, or several, whose gradients are then a tuple."""


def known_type(expr: Expr) -> Type:
    """Return an expression's type; IRError if it has none."""
    type_ = type_of(expr)
    if type_ is None:
        raise IRError(
            "a gradient needs the types of all values",
            found=getattr(expr, "name", type(expr).__name__),
            hint="run infer_type first",
        )
    return type_


def result_type(function: Function) -> Type:
    """Return the type of what a function returns."""
    return function.result_type or known_type(function.body.result)


def leaves(value: Any) -> list[Leaf | None]:
    """Return the leaves of an atom or of a field, by the variables that hold them.

    None stands for a constant's; a literal has no leaves.
    """
    match value:
        case Var():
            return [(value, i) for i in range(len(leaf_types(known_type(value))))]
        case Tuple():
            return [leaf for f in value.fields for leaf in leaves(f)]
        case TupleGetItem():
            owner = known_type(value.value)
            assert isinstance(owner, TupleType)
            before, mine = (
                sum(len(leaf_types(f)) for f in owner.fields[:end])
                for end in (value.index, value.index + 1)
            )
            return leaves(value.value)[before:mine]
        case Expr():
            return [None]
        case _:
            return []


def leaf_type(leaf: Leaf) -> Type:
    """Return the type of one leaf of a variable."""
    return leaf_types(known_type(leaf[0]))[leaf[1]]


def path(type_: Type, number: int) -> Iterator[int]:
    """Yield the field indices that lead to one leaf of a type."""
    while isinstance(type_, TupleType):
        for i, field in enumerate(type_.fields):
            count = len(leaf_types(field))
            if number < count:
                yield i
                type_ = field
                break
            number -= count


def carries_gradient(type_: Type) -> bool:
    """Whether a tensor of this type has a gradient: floating point and complex ones do."""
    return isinstance(type_, TensorType) and has_gradient(type_.dtype)


def may_lead_to_gradient(type_: Type) -> bool:
    """Whether a gradient may depend on a leaf of this type: also on what a closure captured, or a
    data value or a reference holds.
    """
    return carries_gradient(type_) or isinstance(type_, FuncType | DataType | RefType)


def target_leaves(target: Target) -> list[Leaf]:
    """Return the leaves of a target."""
    return target if isinstance(target, list) else [target]


def target_of(param: Var) -> Target:
    """Return what a gradient is wanted of: a tensor's only leaf, or a tuple's that have one."""
    type_ = known_type(param)
    types = leaf_types(type_)
    found: list[Leaf] = [(param, i) for i, t in enumerate(types) if carries_gradient(t)]
    if not found:
        raise GradientError(
            f"parameter {param.name!r} of main has no gradient",
            expected="floating point numbers",
            found=type_,
        )
    return found if isinstance(type_, TupleType) else found[0]


class Activity:
    """The active leaves of a module.

    functions: those that main reaches with an active argument, in the order of discovery.
    ruled: those among what is reached that have a derivative of their own, by name.
    """

    def __init__(self, module: Module, wrt: Iterable[Leaf]) -> None:
        self.module = module
        self.functions: dict[str, Function] = {}
        self.ruled: dict[str, CustomRule] = {}
        self._active: set[Leaf] = set(wrt)
        self._results: dict[str, set[int]] = {}
        # By data type and constructor: a field's number, and that of its leaf.
        self._held: dict[tuple[str, str], set[tuple[int, int]]] = {}
        values = (b.value for f in module.functions.values() for b in bindings(f))
        self._has_refs = any(v.effect is Effect.NEW for v in values)
        self._refs_are_active = False
        fields = (f for d in module.types.values() for c in d.constructors for f in c.fields)
        held = [leaf for field in fields for leaf in leaf_types(field)]
        self._data_holds_refs = any(isinstance(t, RefType | FuncType) for t in held)
        bound = (v for f in module.functions.values() for v in binders(f))
        self._places = {v: i for i, v in enumerate(bound)}
        size = -1
        while size != self._size():
            size = self._size()
            self._block(module.main.body)
            for name, function in list(self.functions.items()):
                self._block(function.body)
                self._results[name].update(
                    i for i, leaf in enumerate(leaves(function.body.result)) if self.is_active(leaf)
                )

    def _size(self) -> int:
        found = len(self._active) + len(self.functions) + sum(map(len, self._results.values()))
        return found + sum(map(len, self._held.values())) + self._refs_are_active

    def is_active(self, leaf: Leaf | None) -> bool:
        """Whether a leaf depends on what gradients are wanted of."""
        if leaf in self._active:
            return True
        return self._refs_are_active and leaf is not None and self._may_hold_ref(leaf_type(leaf))

    def _may_hold_ref(self, type_: Type) -> bool:
        """Whether a value of this type, or what a value of it holds, may be a reference."""
        if isinstance(type_, DataType):
            return self._data_holds_refs
        return isinstance(type_, RefType | FuncType)

    def carries(self, type_: Type, around: tuple[DataType, ...] = ()) -> bool:
        """Whether a leaf of this type has a gradient: of a data type if a value of it, not counting
        values of the types ``around`` it, holds what has one.
        """
        if not isinstance(type_, DataType):
            return carries_gradient(type_)
        inside = (*around, type_)
        return type_ not in around and any(
            self.carries(self.held_type(type_, c.name, at), inside)
            for c in self.module.types[type_.name].constructors
            for at in self._held.get((type_.name, c.name), ())
        )

    def held(self, type_: DataType, constructor: str) -> list[tuple[int, int]]:
        """Return the fields of a constructor that have a gradient, each with the number of a leaf
        in it.
        """
        found = sorted(self._held.get((type_.name, constructor), ()))
        return [at for at in found if self.carries(self.held_type(type_, constructor, at))]

    def held_type(self, type_: DataType, constructor: str, at: tuple[int, int]) -> Type:
        """Return the type of a leaf of a field."""
        fields = field_types(type_, constructor, self.module.types)
        return leaf_types(fields[at[0]])[at[1]]

    def of(self, atom: Expr) -> list[Leaf]:
        """Return the leaves of an atom that need a gradient."""
        return [a for a in leaves(atom) if a in self._active and self.carries(leaf_type(a))]

    def outputs(self, var: Var) -> list[int]:
        """Return the numbers of a variable's leaves that need a gradient."""
        return [number for _, number in self.of(var)]

    def results(self, name: str) -> list[int]:
        """Return the numbers of a function's result leaves that need a gradient."""
        function = self.module.functions[name]
        types = leaf_types(result_type(function))
        return [i for i in sorted(self._results[name]) if self.carries(types[i])]

    def captured(self, blocks: Iterable[Block]) -> list[Leaf]:
        """Return the outer leaves with a gradient that blocks use, in the order of binding."""
        found = {v for block in blocks for v in free_vars(block)}
        return [
            leaf for var in sorted(found, key=self._places.__getitem__) for leaf in self.of(var)
        ]

    def _block(self, block: Block) -> None:
        for binding in block.bindings:
            self._active.update(self._reached(binding))

    def _reached(self, binding: Binding) -> list[Leaf]:
        """Return the leaves of the variable that become active."""
        value, own = binding.value, leaves(binding.var)
        match value:
            case Call():
                return self._call(value, binding)
            case Function():
                captured = any(self._any(v) for v in free_vars(value))
                return own if captured else []  # type: ignore[return-value]
            case If():
                blocks = (value.then_block, value.else_block)
                for block in blocks:
                    self._block(block)
                return [
                    (binding.var, i)
                    for block in blocks
                    for i, leaf in enumerate(leaves(block.result))
                    if self.is_active(leaf)
                ]
            case _ if value.opaque:
                return self._data(value, binding.var)
            case _:
                return [
                    (binding.var, i) for i, leaf in enumerate(leaves(value)) if self.is_active(leaf)
                ]

    def _data(self, value: Expr, var: Var) -> list[Leaf]:
        active = any(map(self._any, operands(value)))
        match value:
            case Primitive("construct", fields, (constructor,), DataType() as type_):
                held = self._held.setdefault((type_.name, constructor), set())
                held.update(
                    (i, n)
                    for i, field in enumerate(fields)
                    for n, leaf in enumerate(leaves(field))
                    if self.is_active(leaf)
                )
            case Primitive("get_field", (whole,), (constructor, index)):
                owner = known_type(whole)
                assert isinstance(owner, DataType)
                held = self._held.get((owner.name, constructor), set())
                return [(var, n) for i, n in held if active and i == index]
        if value.effect in (Effect.NEW, Effect.WRITE):
            self._refs_are_active |= any(map(self._any, value.stored))
        types = leaf_types(known_type(var))
        return [(var, i) for i, t in enumerate(types) if active and may_lead_to_gradient(t)]

    def _call(self, call: Call, binding: Binding) -> list[Leaf]:
        if not any(map(self._any, (call.callee, *call.args))):
            return []
        types = leaf_types(known_type(binding.var))
        following = [(binding.var, i) for i, t in enumerate(types) if may_lead_to_gradient(t)]
        op = base_op(call.callee)
        if op is not None:
            return following if following and rule_of(op).function is not None else []
        # A closure may put what it is given, and what it captured, into a reference.
        self._refs_are_active |= self._has_refs and not isinstance(call.callee, GlobalVar)
        if isinstance(call.callee, GlobalVar):
            rule = custom_rule(self.module, call.callee.name)
            if rule is not None:
                return self._ruled(rule, call, binding, types)
            return [(binding.var, i) for i in self._enter(call.callee.name, call)]
        if following:
            raise GradientError(
                "a gradient would have to flow through a closure that is not known where it is "
                "called",
                found=f"a call of %{getattr(call.callee, 'name', '')}",
                hint="let main neither take nor return functions; write a function that calls an "
                "operator in place of the operator",
                span=binding.span,
            )
        return []

    def _ruled(
        self, rule: CustomRule, call: Call, binding: Binding, types: list[Type]
    ) -> list[Leaf]:
        """Return the leaves that a rule gives a derivative, whatever the function does."""
        if any(map(self._any, rule.closed_args(call))):
            raise closed_over_error(rule, binding)
        if not any(map(self._any, rule.own_args(call))):
            return []
        if rule.missing is not None:
            raise missing_error(rule, binding.span)
        self.ruled[rule.name] = rule
        return [(binding.var, i) for i, t in enumerate(types) if carries_gradient(t)]

    def _any(self, argument: object) -> bool:
        return any(map(self.is_active, leaves(argument)))

    def _enter(self, name: str, call: Call) -> set[int]:
        """Mark the parameters of a called function; return what is known of its result."""
        function = self.functions.setdefault(name, self.module.functions[name])
        for param, arg in zip(function.params, call.args, strict=True):
            for i, leaf in enumerate(leaves(arg)):
                if self.is_active(leaf):
                    self._active.add((param, i))
        return self._results.setdefault(name, set())
