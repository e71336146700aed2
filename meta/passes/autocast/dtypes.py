"""Types whose dtypes change while their structure stays."""

from __future__ import annotations

from collections.abc import Iterator

from meta.base.dtype import is_float, promote
from meta.ir import TensorType, TupleType, Type

Dtypes = tuple[str | None, ...]
"""The dtypes of a type's leaves, nested tuples flattened; None for what is no tensor."""


def leaf_types(type_: Type) -> Iterator[Type]:
    """Yield a type, or the types in a nested tuple."""
    if isinstance(type_, TupleType):
        for field in type_.fields:
            yield from leaf_types(field)
    else:
        yield type_


def dtypes_of(type_: Type) -> Dtypes:
    """Return the dtypes of a type's leaves."""
    return tuple(t.dtype if isinstance(t, TensorType) else None for t in leaf_types(type_))


def with_dtypes(type_: Type, dtypes: Dtypes) -> Type:
    """Return a type of the same structure and shapes with other dtypes."""
    return _filled(type_, iter(dtypes))


def _filled(type_: Type, dtypes: Iterator[str | None]) -> Type:
    if isinstance(type_, TupleType):
        return TupleType(tuple(_filled(f, dtypes) for f in type_.fields))
    dtype = next(dtypes)
    return type_.with_dtype(dtype) if isinstance(type_, TensorType) and dtype else type_


def with_floats(type_: Type, dtype: str) -> Type:
    """Return a type with this dtype for every floating point tensor in it."""
    return with_dtypes(
        type_, tuple(dtype if d is not None and is_float(d) else d for d in dtypes_of(type_))
    )


def meet(a: Dtypes, b: Dtypes) -> Dtypes:
    """Return, leaf by leaf, the narrowest dtype that holds both: of a value of one of two types."""
    return tuple(
        x if x == y or x is None or y is None else promote(x, y) for x, y in zip(a, b, strict=True)
    )
