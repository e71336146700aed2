"""Bitwise operators and shifts in TE. Bools, of which each is 0 or 1, are computed as uint8."""

from tvm import tirx

from meta import op
from meta.base.dtype import bits
from meta.dialect.tvm.broadcast import broadcast, cast, constant, elementwise
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, compute


@compute(op.bitwise_and, BROADCAST)
def bitwise_and(x1, x2, out):
    return elementwise(tirx.bitwise_and, x1, x2, dtype=out.dtype)


@compute(op.bitwise_or, BROADCAST)
def bitwise_or(x1, x2, out):
    return elementwise(tirx.bitwise_or, x1, x2, dtype=out.dtype)


@compute(op.bitwise_xor, BROADCAST)
def bitwise_xor(x1, x2, out):
    return elementwise(tirx.bitwise_xor, x1, x2, dtype=out.dtype)


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
