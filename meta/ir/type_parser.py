"""Reads types: ``float32[3, n, ?]``, ``(A, B)``, ``(A,)``, ``fn(A, B) -> R``."""

from __future__ import annotations

from meta.base.dtype import DTYPES
from meta.base.registry import nearest
from meta.ir.lexer import Cursor
from meta.ir.literals import MAX_NESTING
from meta.ir.types import UNKNOWN, Dim, FuncType, SymbolicDim, TensorType, TupleType, Type

_MAX_DIGITS = 100
"""More digits are refused: reading a decimal number takes quadratic time."""


def read_type(cursor: Cursor, depth: int = 0) -> Type:
    """Read one type."""
    if depth > MAX_NESTING:
        cursor.fail(f"types nested at most {MAX_NESTING} deep")
    if cursor.kind == "(":
        return TupleType(_read_list(cursor, depth))
    if cursor.accept_name("fn"):
        params = _read_list(cursor, depth)
        cursor.expect("->")
        return FuncType(params, read_type(cursor, depth + 1))
    return read_tensor_type(cursor)


def _read_list(cursor: Cursor, depth: int) -> tuple[Type, ...]:
    cursor.expect("(")
    types: list[Type] = []
    while not cursor.accept(")"):
        types.append(read_type(cursor, depth + 1))
        if not cursor.accept(","):
            cursor.expect(")", "',' or ')'")
            break
    return tuple(types)


def read_tensor_type(cursor: Cursor) -> TensorType:
    """Read ``dtype[dim, ...]``."""
    if cursor.kind != "name":
        cursor.fail("a type")
    if cursor.text not in DTYPES:
        cursor.fail("a dtype", hint=nearest(cursor.text, DTYPES))
    dtype = cursor.advance()
    cursor.expect("[")
    shape: list[Dim] = []
    while not cursor.accept("]"):
        shape.append(_read_dim(cursor))
        if not cursor.accept(","):
            cursor.expect("]", "',' or ']'")
            break
    return TensorType(tuple(shape), dtype)


def _read_dim(cursor: Cursor) -> Dim:
    at = cursor.start
    if cursor.accept("?"):
        return UNKNOWN
    if cursor.kind == "name":
        return SymbolicDim(cursor.advance())
    if cursor.kind == "string":
        return SymbolicDim(cursor.unquoted(cursor.advance(), at))
    if cursor.kind != "number":
        cursor.fail("a dimension: a number, a name or '?'")
    dim = read_int(cursor)
    if dim < 0:
        cursor.fail("a dimension that is not negative", str(dim), at=at)
    return dim


def read_int(cursor: Cursor) -> int:
    """Read an integer."""
    text = cursor.text
    if cursor.kind != "number" or not text.lstrip("-").isdigit():
        cursor.fail("an integer")
    if len(text) > _MAX_DIGITS:
        cursor.fail(f"a number of at most {_MAX_DIGITS} digits")
    return int(cursor.advance())
