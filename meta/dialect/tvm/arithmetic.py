"""Arithmetic of several operands in TE.

Shared terms are repeated, not bound with `tirx.Let`: TVM 0.27 miscompiles one that holds bfloat16.
"""

import math
import operator

from tvm import te, tirx
from tvm.tirx import min_value

from meta import op
from meta.base.dtype import bits, is_float
from meta.dialect.tvm.broadcast import (
    broadcast,
    cast,
    computing,
    constant,
    elementwise,
    is_nan,
    let,
    operand_dtype,
    unfolded,
)
from meta.dialect.tvm.c_math import libm, log1p, of_libm
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, INJECTIVE, compute, table

table(
    {
        op.copysign: of_libm("copysign"),
        op.hypot: of_libm("hypot"),
        op.ldexp: lambda a, b: a * libm("exp2", b),
    },
    BROADCAST,
)


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


@compute(op.fmod, BROADCAST)
def fmod(x1, x2, out):
    def of_ints(a, b):
        # Division by 0, and of the least integer by -1, would end the process.
        trapped = tirx.EQ(b, constant(0, b))
        if not out.dtype.startswith("uint"):
            trapped = tirx.Or(trapped, tirx.EQ(b, constant(-1, b)))
        return tirx.truncmod(a, tirx.Select(trapped, constant(1, b), b))

    function = of_libm("fmod") if is_float(out.dtype) else of_ints
    return elementwise(function, x1, x2, dtype=out.dtype)


@compute(op.fmax, BROADCAST)
def fmax(x1, x2, out):
    def larger(a, b):
        return tirx.Select(tirx.Or(a >= b, is_nan(b)), a, b)

    return elementwise(larger, x1, x2, dtype=out.dtype)


@compute(op.fmin, BROADCAST)
def fmin(x1, x2, out):
    def smaller(a, b):
        return tirx.Select(tirx.Or(a <= b, is_nan(b)), a, b)

    return elementwise(smaller, x1, x2, dtype=out.dtype)


def _logaddexp(scale, x1, x2, out):
    """max(a, b) + log(1 + e**-|scale * (a - b)|) / scale, which never overflows."""

    def sum_of_powers(a, b):
        scaled = tirx.abs(a - b) * constant(-scale, a)
        rest = log1p(tirx.exp(scaled)) * constant(1 / scale, a)
        # Where they are equal they may be infinite, and their difference NaN.
        equal = a + constant(math.log(2) / scale, a)
        return tirx.Select(tirx.EQ(a, b), equal, tirx.Select(a > b, a, b) + rest)

    return elementwise(sum_of_powers, x1, x2, dtype=out.dtype)


@compute(op.logaddexp, BROADCAST)
def logaddexp(x1, x2, out):
    return _logaddexp(1.0, x1, x2, out)


@compute(op.logaddexp2, BROADCAST)
def logaddexp2(x1, x2, out):
    return _logaddexp(math.log(2), x1, x2, out)


@compute(op.heaviside, BROADCAST)
def heaviside(x1, x2, out):
    def step(a, b):
        zero, one = constant(0, a), constant(1, a)
        return tirx.Select(tirx.EQ(a, zero), b, tirx.Select(a > zero, one, zero))

    return elementwise(step, x1, x2, dtype=out.dtype)


@compute(op.nextafter, BROADCAST)
def nextafter(x1, x2, out):
    whole = f"int{bits(out.dtype)}"
    inner = computing(out.dtype)

    def follow(a, b):
        # Bits without the sign count the numbers by magnitude.
        own, wide_a, wide_b = tirx.reinterpret(whole, a), cast(a, inner), cast(b, inner)
        zero, one, least = tirx.const(0, inner), tirx.const(1, whole), min_value(whole)
        grows = tirx.Select(wide_a > zero, wide_a < wide_b, wide_a > wide_b)
        stepped = tirx.Select(grows, own + one, own - one)
        from_zero = tirx.Select(wide_b > zero, one, least + one)
        found = tirx.Select(tirx.EQ(wide_a, zero), from_zero, stepped)
        moved = tirx.reinterpret(out.dtype, found)
        unordered = tirx.Or(is_nan(a), is_nan(b))
        still = tirx.Select(unordered, cast(wide_a + wide_b, out.dtype), b)
        return tirx.Select(tirx.Or(tirx.EQ(wide_a, wide_b), unordered), still, moved)

    return broadcast(follow, x1, x2, dtype=out.dtype)


@compute(op.addcmul, BROADCAST)
def addcmul(x, tensor1, tensor2, value, out):
    def added(v, a, b, factor):
        return v + factor * a * b

    return elementwise(added, x, tensor1, tensor2, value, dtype=out.dtype)


@compute(op.addcdiv, BROADCAST)
def addcdiv(x, tensor1, tensor2, value, out):
    def added(v, a, b, factor):
        return v + factor * (a / b)

    return elementwise(added, x, tensor1, tensor2, value, dtype=out.dtype)


@compute(op.lerp, BROADCAST)
def lerp(x, end, weight, out):
    def between(v, e, w):
        # From the nearer end, which makes both exact.
        from_end = e - (e - v) * (constant(1, w) - w)
        return tirx.Select(tirx.abs(w) < constant(0.5, w), v + w * (e - v), from_end)

    return elementwise(between, x, end, weight, dtype=out.dtype)


BEYOND = 32
"""The shift to the right from which on every product rounds to 0."""


def _int64(value):
    return tirx.const(value, "int64")


@compute(op.fixed_point_multiply, BROADCAST)
def fixed_point_multiply(x, multiplier, shift, rounding):
    def scaled(value, factor, exponent):
        product = tirx.shift_left(value, tirx.max(exponent, _int64(0))) * factor
        if rounding == "upward":
            return rounded(product, _int64(0), exponent)
        # Less than a half is added to a negative product: a half of it goes down.
        return let(product, lambda p: rounded(p, cast(p < _int64(0), "int64"), exponent))

    def rounded(product, less, exponent):
        right = tirx.min(tirx.max(_int64(0) - exponent, _int64(0)), _int64(BEYOND))
        half = tirx.shift_left(_int64(1), right + _int64(30)) - less
        return tirx.shift_right(product + half, right + _int64(31))

    def element(value, factor, exponent):
        return scaled(*[cast(v, "int64") for v in (value, factor, exponent)])

    return broadcast(element, x, multiplier, shift, dtype="int32")


FRACTION = 52
"""Bits of a float64 behind the leading one."""


@compute(op.fixed_point_number, INJECTIVE)
def fixed_point_number(x):
    def parts(*index):
        """Return the leading 31 bits of the significand, rounded, and its exponent."""
        bits = tirx.reinterpret("int64", x(*index))
        field = tirx.bitwise_and(tirx.shift_right(bits, _int64(FRACTION)), _int64(0x7FF))
        fraction = tirx.bitwise_and(bits, _int64((1 << FRACTION) - 1))
        whole = tirx.bitwise_or(fraction, _int64(1 << FRACTION))
        dropped = FRACTION + 1 - 31
        kept = tirx.shift_right(whole + _int64(1 << (dropped - 1)), _int64(dropped))
        return bits, field, kept

    def multiplier(*index):
        bits, field, kept = parts(*index)
        kept = tirx.min(kept, _int64(1 << 31))
        kept = tirx.Select(kept == _int64(1 << 31), _int64(1 << 30), kept)
        signed = tirx.Select(bits < _int64(0), _int64(0) - kept, kept)
        return tirx.Select(field == _int64(0), _int64(0), signed).astype("int32")

    def shift(*index):
        _, field, kept = parts(*index)
        carry = tirx.Select(kept == _int64(1 << 31), _int64(1), _int64(0))
        exponent = field - _int64(1022) + carry
        return tirx.Select(field == _int64(0), _int64(0), exponent).astype("int32")

    return [
        te.compute(x.shape, multiplier, name="multiplier"),
        te.compute(x.shape, shift, name="shift"),
    ]


@compute(op.bias_add, BROADCAST)
def bias_add(x, bias, axis):
    wide = computing(x.dtype)
    axis %= len(x.shape)

    def element(*i):
        return cast(cast(x(*i), wide) + cast(bias(i[axis]), wide), x.dtype)

    return te.compute(x.shape, element, name="bias_add")


@compute(op.negative, ELEMWISE)
def negative(x, out):
    def minus(v):
        # 0 - v would give 0 a wrong sign.
        return v * constant(-1, v) if is_float(out.dtype) else constant(0, v) - v

    return elementwise(minus, x, dtype=out.dtype)


@compute(op.abs, ELEMWISE)
def abs(x, out):
    def magnitude(v):
        if is_float(out.dtype):
            return tirx.abs(v)
        return tirx.Select(v < constant(0, v), constant(0, v) - v, v)

    return elementwise(magnitude, x, dtype=out.dtype)
