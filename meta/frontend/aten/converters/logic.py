"""Comparisons, logical operators, operators on bits, and choosing by a condition."""

from meta import op
from meta.base.dtype import COMPLEX
from meta.frontend.aten.arguments import (
    as_tensor,
    device_of,
    is_number,
    promote,
    result_dtype,
)
from meta.frontend.aten.registry import aten


@aten("isreal", op.equal, op.imag, op.ones_like)
def isreal(x):
    return op.equal(op.imag(x), 0.0) if x.dtype in COMPLEX else op.ones_like(x, "bool")


@aten("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar", op.where)
def where(condition, x, y):
    if is_number(x) and is_number(y):
        dtype = result_dtype(x, y)
        x, y = (as_tensor(v, dtype, device_of(condition)) for v in (x, y))
    return op.where(condition, *promote(x, y))


@aten("isin.Tensor_Tensor", op.isin, ignore=("assume_unique",))
def isin(x, values, *, invert):
    return op.isin(*promote(x, values), invert=invert)


@aten("isin.Tensor_Scalar", op.equal, op.not_equal, ignore=("assume_unique",))
def isin_number(x, value, *, invert):
    compared = op.not_equal if invert else op.equal
    return compared(*promote(x, value))


@aten("isin.Scalar_Tensor", op.equal, op.any, op.logical_not, ignore=("assume_unique",))
def number_isin(value, values, *, invert):
    found = op.any(op.equal(*promote(values, value)))
    return op.logical_not(found) if invert else found


@aten("_is_all_true", op.all)
def is_all_true(x):
    return op.all(x)


@aten("_is_any_true", op.any)
def is_any_true(x):
    return op.any(x)


aten.refuse(
    *("allclose", "equal"),
    why="its result is a bool of Python's, which a program decides by before the values are there",
)
