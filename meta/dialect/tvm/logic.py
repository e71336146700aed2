"""Comparisons, logical operators, bits and classes of floats in TE.

A class of floats is tested by comparisons, which are the same on all targets; one with a NaN is
false.
"""

import math
from functools import partial

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
from meta.dialect.tvm.compute import BROADCAST, compute, pointwise, table

table(
    {
        op.bitwise_and: tirx.bitwise_and,
        op.bitwise_or: tirx.bitwise_or,
        op.bitwise_xor: tirx.bitwise_xor,
    },
    BROADCAST,
)


def _differ(a, b):
    return tirx.And(tirx.Or(a, b), tirx.Not(tirx.And(a, b)))


table(
    {op.logical_and: tirx.And, op.logical_or: tirx.Or, op.logical_xor: _differ},
    BROADCAST,
    within="bool",
)
table({op.logical_not: tirx.Not}, within="bool")


@pointwise(op.bitwise_invert, raw=True)
def bitwise_invert(v):
    return (tirx.Not if str(v.ty.dtype) == "bool" else tirx.bitwise_not)(v)


def _shift(value, amount, dtype):
    """Return value and amount in a dtype, an amount that the processor defines, and whether it is
    the one that was asked for.

    The amount is compared in its own dtype, where a number is not squeezed into a narrow one.
    """
    if str(amount.ty.dtype) == "bool":
        amount = amount.astype(dtype)
    if str(amount.ty.dtype) == "uint64":
        # Of 2**63 and more, which are too large, negative; to TVM a cast would not be.
        amount = tirx.reinterpret("int64", amount)
    elif str(amount.ty.dtype) == "uint32":
        amount = amount.astype("int64")  # TVM makes 0 - 32 of the comparison, and refuses that
    inside = amount < constant(bits(dtype), amount)
    if not str(amount.ty.dtype).startswith("uint"):
        inside = tirx.And(amount >= constant(0, amount), inside)
    defined = tirx.Select(inside, amount, constant(0, amount))
    return cast(value, dtype), cast(defined, dtype), inside


@pointwise(op.bitwise_left_shift, BROADCAST, raw=True)
def bitwise_left_shift(value, amount, *, out):
    value, amount, inside = _shift(value, amount, out.dtype)
    return tirx.Select(inside, tirx.shift_left(value, amount), constant(0, value))


@pointwise(op.bitwise_right_shift, BROADCAST, raw=True)
def bitwise_right_shift(value, amount, *, out):
    value, amount, inside = _shift(value, amount, out.dtype)
    beyond = constant(0, value)
    if not out.dtype.startswith("uint"):
        beyond = tirx.Select(value < beyond, constant(-1, value), beyond)
    return tirx.Select(inside, tirx.shift_right(value, amount), beyond)


@pointwise(op.reinterpret, raw=True)
def reinterpret(v, *, out):
    return v if str(v.ty.dtype) == out.dtype else tirx.reinterpret(out.dtype, v)


def _of_floats(test, of_ints=False):
    """Return a test of floats that says ``of_ints`` of integers."""

    def answer(v):
        dtype = str(v.ty.dtype)
        return test(cast(v, computing(dtype))) if is_float(dtype) else tirx.const(of_ints, "bool")

    return answer


def _infinity(v):
    return constant(math.inf, v)


table(
    {
        op.isnan: _of_floats(is_nan),
        op.isinf: _of_floats(lambda v: tirx.EQ(tirx.abs(v), _infinity(v))),
        op.isfinite: _of_floats(lambda v: tirx.abs(v) < _infinity(v), True),
        op.isposinf: _of_floats(lambda v: tirx.EQ(v, _infinity(v))),
        op.isneginf: _of_floats(lambda v: tirx.EQ(v, constant(-math.inf, v))),
    },
    raw=True,
)


@pointwise(op.signbit, raw=True)
def signbit(v):
    dtype = str(v.ty.dtype)
    v = cast(v, computing(dtype))
    return (libm("copysign", constant(1, v), v) if is_float(dtype) else v) < constant(0, v)


def _unsigned(function, number_first, a, b):
    """Compare numbers of 64 bits without a sign with a Python int, which may be negative."""
    zero, below = tirx.const(0, "int64"), tirx.const(-1, "int64")
    number = cast(a if number_first else b, "int64")
    of_negative = function(below, zero) if number_first else function(zero, below)
    return tirx.Select(number < zero, of_negative, function(cast(a, "uint64"), cast(b, "uint64")))


def _compared(function):
    """Compare in the tensors' dtype; a Python int is not squeezed into a narrow integer dtype."""

    def kernel(x1, x2):
        own = operand_dtype(x1, x2)
        numbers = [x for x in (x1, x2) if not isinstance(x, te.Tensor)]
        if numbers and not is_float(own) and own != "bool":
            own = "int64"
        if numbers and operand_dtype(x1, x2) == "uint64":
            return broadcast(partial(_unsigned, function, numbers[0] is x1), x1, x2, dtype="bool")
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


@pointwise(op.where, BROADCAST, raw=True)
def where(c, a, b, *, out):
    return tirx.Select(cast(c, "bool"), cast(a, out.dtype), cast(b, out.dtype))


@compute(op.isclose, BROADCAST)
def isclose(x1, x2, rtol, atol, equal_nan):
    dtype = operand_dtype(x1, x2)
    within = computing(dtype) if is_float(dtype) else "float64"

    def close(a, b, rtol, atol):
        distance = tirx.abs(a - b)
        near = tirx.And(distance <= atol + rtol * tirx.abs(b), distance < constant(math.inf, a))
        found = tirx.Or(tirx.EQ(a, b), near)
        return tirx.Or(found, tirx.And(is_nan(a), is_nan(b))) if equal_nan else found

    return elementwise(close, x1, x2, rtol, atol, dtype="bool", within=within)
