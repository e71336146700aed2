"""The types that follow from the shape of a program alone; those of operator calls do not.

Each node kind says how (`Expr.type_by`); here is which types go together. `verify.py` compares them
with the declared ones; `BlockBuilder` fills them in.
"""

from __future__ import annotations

from collections.abc import Sequence

from meta.ir.node import Expr
from meta.ir.types import (
    UNKNOWN,
    Dim,
    FuncType,
    RefType,
    SymbolicDim,
    TensorType,
    TupleType,
    Type,
    UnknownDim,
)

BOOL = TensorType((), "bool")


def type_of(expr: Expr) -> Type | None:
    """Return an expression's type, or None where an operator or an untyped variable decides it."""
    return expr.type_by(type_of)


def either_type(a: Type | None, b: Type | None) -> Type | None:
    """Return the type of a value of one of two compatible types: dimensions that differ are
    unknown. What is not known, or does not fit (which `verify` says), is as in the other type.
    """
    match a, b:
        case TensorType(), TensorType() if compatible(a, b):
            dims = zip(a.shape, b.shape, strict=True)
            return a.with_shape(tuple(x if x == y else UNKNOWN for x, y in dims))
        case (TupleType() | FuncType(), TupleType() | FuncType()) if compatible(a, b):
            return _either_parts(a, b)
        case RefType(), RefType() if compatible(a, b):
            value = either_type(a.value, b.value)
            return a if value is None else RefType(value)
        case _:
            return b if a is None else a


def _either_parts(a: TupleType | FuncType, b: TupleType | FuncType) -> Type:
    def each(mine: Sequence[Type], others: Sequence[Type]) -> tuple[Type, ...]:
        found = (either_type(x, y) for x, y in zip(mine, others, strict=True))
        return tuple(t for t in found if t is not None)

    if isinstance(a, TupleType) and isinstance(b, TupleType):
        return TupleType(each(a.fields, b.fields))
    assert isinstance(a, FuncType) and isinstance(b, FuncType)
    *params, result = each((*a.params, a.result), (*b.params, b.result))
    return FuncType(tuple(params), result)


def compatible(a: Type | None, b: Type | None) -> bool:
    """Tell whether one value may have both types; unknown types and dimensions fit anything."""
    match a, b:
        case (None, _) | (_, None):
            return True
        case TensorType(), TensorType():
            dims = zip(a.shape, b.shape, strict=False)
            return a.dtype == b.dtype and a.ndim == b.ndim and all(_same_dim(*d) for d in dims)
        case TupleType(), TupleType():
            return _all_compatible(a.fields, b.fields)
        case FuncType(), FuncType():
            return _all_compatible(a.params, b.params) and compatible(a.result, b.result)
        case RefType(), RefType():
            return compatible(a.value, b.value)
        case _:
            return a == b


def _all_compatible(a: Sequence[Type], b: Sequence[Type]) -> bool:
    return len(a) == len(b) and all(compatible(x, y) for x, y in zip(a, b, strict=True))


def _same_dim(a: Dim, b: Dim) -> bool:
    return isinstance(a, UnknownDim) or isinstance(b, UnknownDim) or a == b


def bind_dims(param: Type, arg: Type | None, symbols: dict[str, Dim]) -> bool:
    """Tell whether an argument fits a parameter, whose symbolic dimensions it binds.

    ``float32[n, n]`` accepts ``float32[3, 3]`` and not ``float32[3, 4]``.
    """
    match param, arg:
        case TensorType(), TensorType():
            if param.ndim != arg.ndim:
                return False
            for p, a in zip(param.shape, arg.shape, strict=True):
                name = p.name if isinstance(p, SymbolicDim) else None
                if name is not None and not _same_dim(symbols.setdefault(name, a), a):
                    return False
            return compatible(_replace_dims(param, symbols), arg)
        case TupleType(), TupleType():
            return len(param.fields) == len(arg.fields) and all(
                bind_dims(p, a, symbols) for p, a in zip(param.fields, arg.fields, strict=True)
            )
        case FuncType(), FuncType():
            # The inner function's own symbols are not this call's to bind.
            return compatible(_replace_dims(param, symbols), _replace_dims(arg, {}))
        case RefType(), RefType():
            return bind_dims(param.value, arg.value, symbols)
        case _:
            return compatible(param, arg)


def call_type(function: FuncType, args: Sequence[Type | None]) -> Type:
    """Return the type of a call: symbolic dimensions that no argument binds become unknown."""
    symbols: dict[str, Dim] = {}
    for param, arg in zip(function.params, args, strict=False):
        bind_dims(param, arg, symbols)
    return _replace_dims(function.result, symbols)


def _replace_dims(type_: Type, symbols: dict[str, Dim]) -> Type:
    match type_:
        case TensorType():
            dims = (
                d.substitute(lambda name: symbols.get(name, UNKNOWN))
                if isinstance(d, SymbolicDim)
                else d
                for d in type_.shape
            )
            return type_.with_shape(tuple(dims))
        case TupleType():
            return TupleType(tuple(_replace_dims(f, symbols) for f in type_.fields))
        case FuncType():
            params = tuple(_replace_dims(p, symbols) for p in type_.params)
            return FuncType(params, _replace_dims(type_.result, symbols))
        case RefType():
            return RefType(_replace_dims(type_.value, symbols))
        case _:
            return type_
