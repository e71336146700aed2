"""Operator calls in the IR: which operator, with which arguments, and with which effects."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from meta import op
from meta.base.device import CPU, Device
from meta.base.errors import IRError
from meta.base.registry import OPERATORS
from meta.dialect.core import DialectOp
from meta.ir import (
    Binding,
    Call,
    Effect,
    Expr,
    Function,
    TensorType,
    Tuple,
    TupleType,
    Type,
    bindings,
    type_of,
)
from meta.op.core import CallValues, Op, View
from meta.op.core.axes import Product

_SAYING = [o for o in map(OPERATORS.__getitem__, OPERATORS) if isinstance(o.axes, Product)]
PRODUCTS = {o: o.axes.equation for o in sorted(_SAYING, key=lambda o: o is op.dense)}
"""By operator, a product of two matrices as an equation of `einsum`. `dense`, the name that layers
use for `matmul_nt`, is behind it.
"""


def base_op(callee: Expr) -> Op | None:
    """Return the base operator of a callee, also of a dialect operator; None for functions."""
    if isinstance(callee, DialectOp):
        return callee.base
    return callee if isinstance(callee, Op) else None


def called_op(value: Expr) -> Op | None:
    """Return the base operator that a value calls, dispatched or not; None for other values."""
    return base_op(value.callee) if isinstance(value, Call) else None


def callee_name(value: Expr) -> str:
    """Return the name of the base operator or the function that a value calls; of another value
    what kind it is.
    """
    if not isinstance(value, Call):
        return type(value).__name__
    op = base_op(value.callee)
    name: str = op.name if op is not None else getattr(value.callee, "name", "call")
    return name


@dataclass(frozen=True, slots=True)
class OpCall:
    """A call of a base operator, and its arguments in schema order."""

    op: Op
    args: tuple[Any, ...]


def op_call(value: Expr | None) -> OpCall | None:
    """Read a value that is a call of a base operator, not dispatched; None for any other."""
    if isinstance(value, Call) and isinstance(value.callee, Op):
        return OpCall(value.callee, value.args)
    return None


def new_call(op: Op, *args: Any) -> Call:
    """Return the call of a base operator with these first arguments and defaults for the rest."""
    return Call(op, (*args, *(slot.default for slot in op.slots[len(args) :])))


def tensor_type(atom: object) -> TensorType | None:
    """Return the type of an atom that is a tensor; None for numbers and tuples."""
    type_ = atom_type(atom)
    return type_ if isinstance(type_, TensorType) else None


def tensor_of(atom: object) -> TensorType:
    """Return the type of an atom that is known to be a tensor."""
    type_ = tensor_type(atom)
    assert type_ is not None
    return type_


def atom_type(argument: Any) -> Type | None:
    """Return the type of an atom, None for a literal."""
    return type_of(argument) if isinstance(argument, Expr) else None


def arg_types(op: Op, call: Call) -> tuple[Any, ...]:
    """Return a call's arguments with atoms replaced by their types, as type functions take them."""
    return tuple(_argument(op, a) for a in call.args)


def _argument(op: Op, argument: Any) -> Any:
    if not isinstance(argument, Expr):
        return argument
    type_ = type_of(argument)
    if type_ is None:
        raise IRError("an argument has no type; run infer_type first", op=op.name, found=argument)
    return type_.fields if isinstance(type_, TupleType) else type_


def declared_call(op: Op, call: Call, device: Device) -> CallValues:
    """Return the declared `CallValues` of an operator call in the IR."""
    return op.call_values(arg_types(op, call), device)


def kernel_call(value: Expr, device: Device) -> CallValues | None:
    """Return the declared call of an operator, dispatched or not, that a kernel runs; None for
    views, for what is known now, and for all other values.
    """
    op = called_op(value)
    if op is None or not isinstance(value, Call):
        return None
    call = declared_call(op, value, device)
    return call if call.callee is not None and isinstance(call.out, Type) else None


def named_args(op: Op, call: Call) -> dict[str, Any]:
    """Return a call's arguments by the names of their slots."""
    return dict(zip(op.schema.names, call.args, strict=True))


def flat_atoms(argument: Any) -> tuple[Any, ...]:
    """Return the atoms of one argument: the fields of a tuple, the atom, or nothing."""
    if isinstance(argument, Tuple):
        return argument.fields
    return (argument,) if isinstance(argument, Expr) else ()


def view_source(call: Call) -> Expr | None:
    """Return the atom whose memory the result of a call is seen through, None for a new result."""
    op = base_op(call.callee)
    # Only an operator with a declare of its own can return a view.
    if op is None or op.declare_site is None:
        return None
    slot = viewed_slot(op, arg_types(op, call))
    source: Expr | None = None if slot is None else flat_atoms(call.args[slot])[0]
    return source


@lru_cache(maxsize=4096)
def viewed_slot(op: Op, args: tuple[Any, ...]) -> int | None:
    """Return which argument the result of a call of these types is a view of."""
    out = op.call_values(args, CPU).out
    return out.slot if isinstance(out, View) else None


def full_view_source(call: Call) -> Expr | None:
    """Return the atom all elements of which the result of a call is a view of; None for a part of
    them (`meta.op.own_shard`), and for a new result.
    """
    return None if base_op(call.callee) is op.own_shard else view_source(call)


def written_atoms(op: Op, call: Call) -> Iterator[Any]:
    """Yield the atoms that a call of an operator writes in place."""
    return (atom for slot in op.schema.written for atom in flat_atoms(call.args[slot]))


def written_parameters(function: Function) -> tuple[int, ...]:
    """Return, by number, the parameters of a function that operators in it write in place."""
    written: set[Expr] = set()
    for binding in bindings(function):
        if isinstance(binding.value, Call) and (op := base_op(binding.value.callee)) is not None:
            written.update(written_atoms(op, binding.value))
    return tuple(i for i, p in enumerate(function.params) if p in written)


def has_effect(binding: Binding) -> bool:
    """Whether evaluating a binding does more than compute its value, so that it stays in place."""
    if binding.value.effect in (Effect.WRITE, Effect.FAIL):
        return True
    if not isinstance(binding.value, Call):
        return False
    op = base_op(binding.value.callee)
    return op is None or op.has_effect


def is_pure(binding: Binding) -> bool:
    """Whether a binding may be computed any number of times, at any time, with the same result."""
    if has_effect(binding) or binding.value.effect is not Effect.NONE:
        return False
    op = called_op(binding.value)
    return op is None or not (op.random or op.collective)


def leaf_types(type_: Type) -> list[Type]:
    """Return a type, or the types in a nested tuple, in order."""
    if isinstance(type_, TupleType):
        return [leaf for field in type_.fields for leaf in leaf_types(field)]
    return [type_]
