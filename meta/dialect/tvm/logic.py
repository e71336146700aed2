"""Comparisons, logical operators, bits and classes of floats in TE.

A class of floats is tested by comparisons, which are the same on all targets; one with a NaN is
false.
"""

import math

from tvm import te, tirx

from meta import op
from meta.base.dtype import bits, is_float
from meta.dialect.tvm.broadcast import (
    broadcast,
    cast,
    computing,
    constant,
    elementwise,
    is_nan,
    not_equal,
    operand_dtype,
)
from meta.dialect.tvm.c_math import libm
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, compute, table

table(
    {
        op.bitwise_and: tirx.bitwise_and,
        op.bitwise_or: tirx.bitwise_or,
        op.bitwise_xor: tirx.bitwise_xor,
    },
    BROADCAST,
)


@compute(op.bitwise_not, ELEMWISE)
def bitwise_not(x, out):
    if out.dtype == "bool":
        return elementwise(tirx.Not, x, dtype="bool", within="bool")
    return elementwise(tirx.bitwise_not, x, dtype=out.dtype)


def _shift(function, x1, x2, out):
    """function(value, amount, inside) with an amount that the processor defines.

    The amount is compared in its own dtype, where a number is not squeezed into a narrow one.
    """
    size = bits(out.dtype)

    def shifted(value, amount):
        if str(amount.ty.dtype) == "bool":
            amount = amount.astype(out.dtype)
        inside = amount < constant(size, amount)
        if not str(amount.ty.dtype).startswith("uint"):
            inside = tirx.And(amount >= constant(0, amount), inside)
        value = cast(value, out.dtype)
        return function(
            value, cast(tirx.Select(inside, amount, constant(0, amount)), out.dtype), inside
        )

    return broadcast(shifted, x1, x2, dtype=out.dtype)


@compute(op.left_shift, BROADCAST)
def left_shift(x1, x2, out):
    def left(value, amount, inside):
        return tirx.Select(inside, tirx.shift_left(value, amount), constant(0, value))

    return _shift(left, x1, x2, out)


@compute(op.right_shift, BROADCAST)
def right_shift(x1, x2, out):
    def right(value, amount, inside):
        beyond = constant(0, value)
        if not out.dtype.startswith("uint"):
            beyond = tirx.Select(value < beyond, constant(-1, value), beyond)
        return tirx.Select(inside, tirx.shift_right(value, amount), beyond)

    return _shift(right, x1, x2, out)


@compute(op.reinterpret, ELEMWISE)
def reinterpret(x, out):
    same = str(x.dtype) == out.dtype
    return te.compute(
        x.shape,
        lambda *i: x(*i) if same else tirx.reinterpret(out.dtype, x(*i)),
        name="reinterpret",
    )


def _answer(function, x, of_ints):
    dtype = str(x.dtype)
    if not is_float(dtype):
        return elementwise(lambda v: tirx.const(of_ints, "bool"), x, dtype="bool")
    return elementwise(function, x, dtype="bool", within=computing(dtype))


def _infinity(v):
    return constant(math.inf, v)


@compute(op.isnan, ELEMWISE)
def isnan(x):
    return _answer(is_nan, x, False)


@compute(op.isinf, ELEMWISE)
def isinf(x):
    return _answer(lambda v: tirx.EQ(tirx.abs(v), _infinity(v)), x, False)


@compute(op.isfinite, ELEMWISE)
def isfinite(x):
    return _answer(lambda v: tirx.abs(v) < _infinity(v), x, True)


@compute(op.isposinf, ELEMWISE)
def isposinf(x):
    return _answer(lambda v: tirx.EQ(v, _infinity(v)), x, False)


@compute(op.isneginf, ELEMWISE)
def isneginf(x):
    return _answer(lambda v: tirx.EQ(v, constant(-math.inf, v)), x, False)


@compute(op.signbit, ELEMWISE)
def signbit(x):
    if is_float(str(x.dtype)):
        return _answer(lambda v: libm("copysign", constant(1, v), v) < constant(0, v), x, False)
    return elementwise(lambda v: v < constant(0, v), x, dtype="bool", within=computing(x.dtype))


def _compared(function):
    """Compare in the tensors' dtype; a Python int is not squeezed into a narrow integer dtype."""

    def kernel(x1, x2):
        own = operand_dtype(x1, x2)
        numbers = [x for x in (x1, x2) if not isinstance(x, te.Tensor)]
        if numbers and not is_float(own) and own != "bool":
            own = "int64"
        inner = computing(own)

        def compared(a, b):
            return function(cast(cast(a, own), inner), cast(cast(b, own), inner))

        return broadcast(compared, x1, x2, dtype="bool")

    return kernel


for _base, _function in {
    op.less: tirx.LT,
    op.less_equal: tirx.LE,
    op.greater: tirx.GT,
    op.greater_equal: tirx.GE,
    op.equal: tirx.EQ,
    op.not_equal: not_equal,
}.items():
    compute(_base, BROADCAST)(_compared(_function))


@compute(op.logical_and, BROADCAST)
def logical_and(x1, x2):
    return elementwise(tirx.And, x1, x2, dtype="bool", within="bool")


@compute(op.logical_or, BROADCAST)
def logical_or(x1, x2):
    return elementwise(tirx.Or, x1, x2, dtype="bool", within="bool")


@compute(op.logical_xor, BROADCAST)
def logical_xor(x1, x2):
    def differ(a, b):
        return tirx.And(tirx.Or(a, b), tirx.Not(tirx.And(a, b)))

    return elementwise(differ, x1, x2, dtype="bool", within="bool")


@compute(op.where, BROADCAST)
def where(condition, x, y, out):
    def choose(c, a, b):
        return tirx.Select(cast(c, "bool"), cast(a, out.dtype), cast(b, out.dtype))

    return broadcast(choose, condition, x, y, dtype=out.dtype)


@compute(op.isclose, BROADCAST)
def isclose(x1, x2, rtol, atol, equal_nan):
    dtype = next(str(x.dtype) for x in (x1, x2) if isinstance(x, te.Tensor))
    within = computing(dtype) if is_float(dtype) else "float64"

    def close(a, b, rtol, atol):
        distance = tirx.abs(a - b)
        near = tirx.And(distance <= atol + rtol * tirx.abs(b), distance < constant(math.inf, a))
        found = tirx.Or(tirx.EQ(a, b), near)
        return tirx.Or(found, tirx.And(is_nan(a), is_nan(b))) if equal_nan else found

    return elementwise(close, x1, x2, rtol, atol, dtype="bool", within=within)


@compute(op.logical_not, ELEMWISE)
def logical_not(x):
    return elementwise(tirx.Not, x, dtype="bool", within="bool")
