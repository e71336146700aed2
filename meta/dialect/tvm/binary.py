"""Elementwise operators of two operands in TE. Half precision is computed in float32.

Shared terms are repeated, not bound with `tirx.Let`: TVM 0.27 miscompiles one that holds bfloat16.
"""

import operator

from tvm import te, tirx

from meta import op
from meta.base.dtype import is_float
from meta.dialect.tvm.broadcast import (
    broadcast,
    cast,
    computing,
    constant,
    elementwise,
    is_nan,
    operand_dtype,
    unfolded,
)
from meta.dialect.tvm.broadcast import not_equal as not_equal_elements
from meta.dialect.tvm.compute import BROADCAST, compute


def _where_true(function, x1, x2, otherwise, where, out):
    if otherwise is None:
        return elementwise(function, x1, x2, dtype=out.dtype)
    own = operand_dtype(x1, x2, otherwise)  # in which the sum is rounded before otherwise takes it
    inner = computing(own)

    def choose(a, b, old, condition):
        value = cast(function(cast(a, inner), cast(b, inner)), own)
        return tirx.Select(cast(condition, "bool"), cast(value, out.dtype), old)

    condition = tirx.const(True, "bool") if where is None else where
    return broadcast(choose, x1, x2, otherwise, condition, dtype=out.dtype)


@compute(op.add, BROADCAST)
def add(x1, x2, otherwise, where, out):
    return _where_true(operator.add, x1, x2, otherwise, where, out)


@compute(op.subtract, BROADCAST)
def subtract(x1, x2, otherwise, where, out):
    return _where_true(operator.sub, x1, x2, otherwise, where, out)


@compute(op.multiply, BROADCAST)
def multiply(x1, x2, out):
    def product(a, b):
        return unfolded(a) * unfolded(b)

    return elementwise(product, x1, x2, dtype=out.dtype)


@compute(op.divide, BROADCAST)
def divide(x1, x2, out):
    def quotient(a, b):
        return tirx.div(unfolded(a), unfolded(b))

    return elementwise(quotient, x1, x2, dtype=out.dtype)


def _whole(call):
    if is_float(call.outputs[0].dtype):
        return None
    return "powers of integers take a loop over the bits of the exponent for each element"


@compute(op.power, BROADCAST, when=_whole)
def power(x1, x2, out):
    def power(a, b):
        if isinstance(x2, te.Tensor):
            return tirx.power(a, b)
        # The condition does not change in the loop, and the square needs no call for each element.
        return tirx.if_then_else(tirx.EQ(b, constant(2, b)), a * a, tirx.power(a, b))

    return elementwise(power, x1, x2, dtype=out.dtype)


@compute(op.maximum, BROADCAST)
def maximum(x1, x2, out):
    def larger(a, b):
        return tirx.Select(tirx.Or(a >= b, is_nan(a)), a, b)

    return elementwise(larger, x1, x2, dtype=out.dtype)


@compute(op.minimum, BROADCAST)
def minimum(x1, x2, out):
    def smaller(a, b):
        return tirx.Select(tirx.Or(a <= b, is_nan(a)), a, b)

    return elementwise(smaller, x1, x2, dtype=out.dtype)


def _fmod(x1, x2, dtype):
    """C's fmod (`vector_math` has it for LLVM), a stage: its value is used several times."""
    return elementwise(tirx.fmod, x1, x2, dtype=computing(dtype))


def _signs_differ(remainder, b):
    zero = constant(0, b)
    return tirx.And(
        tirx.NE(remainder, zero),
        tirx.NE((remainder < zero).astype("int8"), (b < zero).astype("int8")),
    )


def _int_division(a, b):
    """Return (divisor, trapped): a divisor that no processor traps on, and the quotient if b does.

    Division by 0, and of the smallest integer by -1, would end the process.
    """
    zero, one = constant(0, b), constant(1, b)
    by_zero = tirx.EQ(b, zero)
    if str(b.ty.dtype).startswith("uint"):
        return tirx.Select(by_zero, one, b), by_zero, zero
    minus = tirx.EQ(b, constant(-1, b))
    trapped = tirx.Or(by_zero, minus)
    return tirx.Select(trapped, one, b), trapped, tirx.Select(by_zero, zero, zero - a)


@compute(op.floor_divide, BROADCAST)
def floor_divide(x1, x2, out):
    def of_ints(a, b):
        divisor, trapped, instead = _int_division(a, b)
        return tirx.Select(trapped, instead, tirx.floordiv(a, divisor))

    def of_floats(a, b, remainder):
        # Python's algorithm: floor(a / b) is one too large where the quotient was rounded up.
        zero, one = constant(0, a), constant(1, a)
        a, b = unfolded(a), unfolded(b)
        quotient = (a - remainder) / b
        quotient = tirx.Select(_signs_differ(remainder, b), quotient - one, quotient)
        floor = tirx.floor(quotient)
        floor = tirx.Select(quotient - floor > constant(0.5, a), floor + one, floor)
        # A zero has the sign of a / b, which is at most 1 then.
        signed = tirx.trunc(a / b * constant(0.5, a))
        floor = tirx.Select(tirx.EQ(quotient, zero), signed, floor)
        return tirx.Select(tirx.EQ(b, zero), a / b, floor)

    if is_float(out.dtype):
        return elementwise(of_floats, x1, x2, _fmod(x1, x2, out.dtype), dtype=out.dtype)
    return elementwise(of_ints, x1, x2, dtype=out.dtype)


@compute(op.mod, BROADCAST)
def mod(x1, x2, out):
    def of_ints(a, b):
        divisor, trapped, _ = _int_division(a, b)
        return tirx.Select(trapped, constant(0, a), tirx.floormod(a, divisor))

    def of_floats(remainder, b):
        return tirx.Select(_signs_differ(remainder, b), remainder + b, remainder)

    if is_float(out.dtype):
        return elementwise(of_floats, _fmod(x1, x2, out.dtype), x2, dtype=out.dtype)
    return elementwise(of_ints, x1, x2, dtype=out.dtype)


def _compare(function, x1, x2):
    """Compare in the tensors' dtype; a Python int is not squeezed into a narrow integer dtype."""
    own = operand_dtype(x1, x2)
    numbers = [x for x in (x1, x2) if not isinstance(x, te.Tensor)]
    if numbers and not is_float(own) and own != "bool":
        own = "int64"
    inner = computing(own)

    def compared(a, b):
        return function(cast(cast(a, own), inner), cast(cast(b, own), inner))

    return broadcast(compared, x1, x2, dtype="bool")


@compute(op.less, BROADCAST)
def less(x1, x2):
    return _compare(tirx.LT, x1, x2)


@compute(op.less_equal, BROADCAST)
def less_equal(x1, x2):
    return _compare(tirx.LE, x1, x2)


@compute(op.greater, BROADCAST)
def greater(x1, x2):
    return _compare(tirx.GT, x1, x2)


@compute(op.greater_equal, BROADCAST)
def greater_equal(x1, x2):
    return _compare(tirx.GE, x1, x2)


@compute(op.equal, BROADCAST)
def equal(x1, x2):
    return _compare(tirx.EQ, x1, x2)


@compute(op.not_equal, BROADCAST)
def not_equal(x1, x2):
    return _compare(not_equal_elements, x1, x2)


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
