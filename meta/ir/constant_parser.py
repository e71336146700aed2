"""Reads the constants of program text that are written where they stand."""

from __future__ import annotations

from meta.base.dtype import is_real
from meta.ir.constants import from_values
from meta.ir.expr import Constant
from meta.ir.lexer import Cursor
from meta.ir.type_parser import read_int, read_tensor_type
from meta.ir.types import TensorType


def read_static_type(cursor: Cursor) -> TensorType:
    """Read a tensor type without symbolic or unknown dimensions."""
    at, found = cursor.start, read_tensor_type(cursor)
    if not found.is_static:
        cursor.fail("a type without unknown dimensions", str(found), at=at)
    return found


def read_constant(cursor: Cursor) -> Constant:
    """Read ``float32[2] [1.0, 2.5]`` or ``float32[] 1.0``."""
    at, found = cursor.start, read_static_type(cursor)
    values: list[float | int | bool] = []
    if not found.shape:
        values.append(_read_element(cursor, found.dtype))
    else:
        cursor.expect("[")
        while not cursor.accept("]"):
            values.append(_read_element(cursor, found.dtype))
            if not cursor.accept(","):
                cursor.expect("]", "',' or ']'")
                break
    try:
        return Constant(from_values(values, found.static_shape, found.dtype))
    except ValueError as error:
        cursor.fail(f"a constant of type {found}", str(error), at=at)


def _read_element(cursor: Cursor, dtype: str) -> float | int | bool:
    if dtype == "bool":
        if cursor.text not in ("True", "False"):
            cursor.fail("True or False")
        return cursor.advance() == "True"
    if not is_real(dtype):
        return read_int(cursor)
    if cursor.kind != "number" and cursor.text not in ("nan", "inf"):
        cursor.fail("a number")
    return float(cursor.advance())
