"""Reads types, dimensions and names.

Types are ``float32[3, 2*n, ?]``, ``(A, B)``, ``(A,)``, ``fn(A, B) -> R``, ``type List`` and
``ref(A)``.
"""

from __future__ import annotations

from meta.base.dtype import DTYPES
from meta.base.registry import nearest
from meta.ir.dims import UNKNOWN, Dim, SymbolicDim, is_quotient
from meta.ir.lexer import Cursor
from meta.ir.literals import MAX_NESTING
from meta.ir.names import is_identifier
from meta.ir.types import DataType, FuncType, RefType, TensorType, TupleType, Type

MAX_DIGITS = 100
"""More digits are refused: reading a decimal number takes quadratic time."""


def read_type(cursor: Cursor, depth: int = 0) -> Type:
    """Read one type."""
    if depth > MAX_NESTING:
        cursor.fail(f"types nested at most {MAX_NESTING} deep")
    if cursor.kind == "(":
        return TupleType(read_types(cursor, depth + 1))
    if cursor.accept_name("fn"):
        params = read_types(cursor, depth + 1)
        cursor.expect("->")
        return FuncType(params, read_type(cursor, depth + 1))
    if cursor.accept_name("type"):
        return DataType(read_name(cursor, "a data type's name"))
    if cursor.accept_name("ref"):
        cursor.expect("(")
        value = read_type(cursor, depth + 1)
        cursor.expect(")")
        return RefType(value)
    return read_tensor_type(cursor)


def read_types(cursor: Cursor, depth: int = 0) -> tuple[Type, ...]:
    """Read ``(A, B)``, with or without a last comma."""
    return cursor.items(lambda: read_type(cursor, depth))


def read_name(cursor: Cursor, what: str) -> str:
    """Read a name, which is quoted if it is no identifier."""
    at = cursor.start
    if cursor.kind == "string":
        return cursor.unquoted(cursor.advance(), at)
    if cursor.kind != "name" or not is_identifier(cursor.text):
        cursor.fail(what)
    return cursor.advance()


def read_tensor_type(cursor: Cursor) -> TensorType:
    """Read ``dtype[dim, ...]``."""
    if cursor.kind != "name":
        cursor.fail("a type")
    if cursor.text not in DTYPES:
        cursor.fail("a dtype", hint=nearest(cursor.text, DTYPES))
    dtype = cursor.advance()
    return TensorType(cursor.items(lambda: _read_dim(cursor), "[", "]"), dtype)


def _read_dim(cursor: Cursor) -> Dim:
    at = cursor.start
    if cursor.accept("?"):
        return UNKNOWN
    dim = read_sum(cursor)
    if isinstance(dim, int) and not 0 <= dim < 1 << 63:
        cursor.fail("a dimension from 0 to 2**63 - 1", str(dim), at=at)
    return dim


def read_sum(cursor: Cursor, depth: int = 0) -> int | SymbolicDim:
    """Read a number or a symbolic dimension: ``n``, ``4*n + 1``, ``((n + 1) // 2) - 1``."""
    total = -_read_product(cursor, depth) if cursor.accept("-") else _read_product(cursor, depth)
    while True:
        if cursor.accept("+"):
            total = total + _read_product(cursor, depth)
        elif cursor.accept("-"):
            total = total - _read_product(cursor, depth)
        else:
            return total


def _read_product(cursor: Cursor, depth: int) -> int | SymbolicDim:
    result = _read_factor(cursor, depth)
    while cursor.accept("*"):
        result = result * _read_factor(cursor, depth)
    return result


def _read_factor(cursor: Cursor, depth: int) -> int | SymbolicDim:
    at = cursor.start
    if cursor.kind == "name":
        return SymbolicDim(cursor.advance())
    if cursor.kind == "string":
        return SymbolicDim(cursor.unquoted(cursor.advance(), at))
    if cursor.kind == "(":
        return _read_quotient(cursor, depth + 1)
    if cursor.kind != "number":
        cursor.fail("a dimension: a number, a name, a quotient or '?'")
    return read_int(cursor)


def _read_quotient(cursor: Cursor, depth: int) -> int | SymbolicDim:
    """Read ``((sum) // number)``."""
    if depth > MAX_NESTING:
        cursor.fail(f"quotients nested at most {MAX_NESTING} deep")
    at = cursor.start
    cursor.expect("(")
    cursor.expect("(")
    numerator = read_sum(cursor, depth)
    cursor.expect(")")
    cursor.expect("//")
    divisor = read_int(cursor)
    cursor.expect(")")
    if divisor < 1 or isinstance(numerator, int) or not is_quotient(numerator // divisor):
        cursor.fail("a quotient in lowest terms", at=at)
    return numerator // divisor


def read_int(cursor: Cursor) -> int:
    """Read an integer."""
    text = cursor.text
    if cursor.kind != "number" or not text.lstrip("-").isdigit():
        cursor.fail("an integer")
    if len(text) > MAX_DIGITS:
        cursor.fail(f"a number of at most {MAX_DIGITS} digits")
    return int(cursor.advance())
