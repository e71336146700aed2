"""Leaves: the tensors of which a value consists, nested tuples flattened.

A gradient belongs to a leaf. That of a variable is written ``(variable, number)``; a tensor is its
own leaf 0. Functions, data values and references count as leaves that no gradient flows to.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from meta.base.dtype import is_float
from meta.base.errors import IRError
from meta.ir import (
    DataType,
    Expr,
    FuncType,
    RefType,
    TensorType,
    Tuple,
    TupleGetItem,
    TupleType,
    Type,
    Var,
    type_of,
)

Leaf = tuple[Var, int]

Target = Leaf | list[Leaf]
"""What one gradient is of: a leaf, or several, whose gradients are then a tuple."""


def leaf_types(type_: Type) -> list[Type]:
    """Return the types of a type's leaves, in order."""
    if isinstance(type_, TupleType):
        return [leaf for f in type_.fields for leaf in leaf_types(f)]
    return [type_]


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
    """Whether a leaf of this type has a gradient: floating point tensors do."""
    return isinstance(type_, TensorType) and is_float(type_.dtype)


def may_lead_to_gradient(type_: Type) -> bool:
    """Whether a gradient may depend on a leaf of this type: also on what a closure captured, or a
    data value or a reference holds.
    """
    return carries_gradient(type_) or isinstance(type_, FuncType | DataType | RefType)


def target_leaves(target: Target) -> list[Leaf]:
    """Return the leaves of a target."""
    return target if isinstance(target, list) else [target]


def target_type(target: Target) -> Type:
    """Return the type of a target's gradient."""
    if isinstance(target, list):
        return TupleType(tuple(map(leaf_type, target)))
    return leaf_type(target)
