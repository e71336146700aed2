"""Arithmetic of several operands in TE.

Shared terms are repeated, not bound with `tirx.Let`: TVM 0.27 miscompiles one that holds bfloat16.
"""

import math
import operator
from functools import partial

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
    number_in,
    operand_dtype,
    unfolded,
)
from meta.dialect.tvm.c_math import libm, log1p, of_libm
from meta.dialect.tvm.compute import BROADCAST, INJECTIVE, OPAQUE, compute, pointwise, table


def _logaddexp(scale, a, b):
    """max(a, b) + log(1 + e**-|scale * (a - b)|) / scale, which never overflows."""
    scaled = tirx.abs(a - b) * constant(-scale, a)
    rest = log1p(tirx.exp(scaled)) * constant(1 / scale, a)
    # Where they are equal they may be infinite, and their difference NaN.
    equal = a + constant(math.log(2) / scale, a)
    return tirx.Select(tirx.EQ(a, b), equal, tirx.Select(a > b, a, b) + rest)


table(
    {
        op.multiply: lambda a, b: unfolded(a) * unfolded(b),
        op.divide: lambda a, b: tirx.div(unfolded(a), unfolded(b)),
        op.maximum: lambda a, b: tirx.Select(tirx.Or(a >= b, is_nan(a)), a, b),
        op.minimum: lambda a, b: tirx.Select(tirx.Or(a <= b, is_nan(a)), a, b),
        op.fmax: lambda a, b: tirx.Select(tirx.Or(a >= b, is_nan(b)), a, b),
        op.fmin: lambda a, b: tirx.Select(tirx.Or(a <= b, is_nan(b)), a, b),
        op.copysign: of_libm("copysign"),
        op.hypot: of_libm("hypot"),
        op.ldexp: lambda a, b: a * libm("exp2", b),
        op.logaddexp: partial(_logaddexp, 1.0),
        op.logaddexp2: partial(_logaddexp, math.log(2)),
        op.addcmul: lambda v, a, b, factor: v + factor * a * b,
        op.addcdiv: lambda v, a, b, factor: v + factor * a / b,
    },
    BROADCAST,
)


def _where_true(function):
    """Return the kernel of ``function``, or of ``otherwise`` where ``where`` is false."""

    def kernel(x1, x2, otherwise, where, out):
        if otherwise is None:
            return elementwise(function, x1, x2, dtype=out.dtype)
        # In this dtype the sum is rounded before otherwise takes it.
        own = operand_dtype(x1, x2, otherwise)
        inner = computing(own)

        def choose(a, b, old, condition):
            value = cast(function(cast(a, inner), cast(b, inner)), own)
            return tirx.Select(cast(condition, "bool"), cast(value, out.dtype), old)

        return broadcast(choose, x1, x2, otherwise, where, dtype=out.dtype)

    return kernel


compute(op.add, BROADCAST)(_where_true(operator.add))
compute(op.subtract, BROADCAST)(_where_true(operator.sub))


def _rounded_quotient(call):
    if is_float(call.outputs[0].dtype):
        return None
    return "powers of integers take a loop over the bits of the exponent for each element"


@compute(op.pow, BROADCAST, when=_rounded_quotient)
def pow(x1, x2, out):
    def power(a, b):  # not tirx.power, which warns of exponents of 3 and more
        return tirx.call_intrin(str(a.ty.dtype), "tirx.pow", a, b)

    def element(a, b):
        if isinstance(x2, te.Tensor):
            return power(a, b)
        if isinstance(b, tirx.FloatImm) and b.value in (2, 3):  # products, as ATen has them
            return a * a if b.value == 2 else a * a * a
        # The condition does not change in the loop, and the square needs no call for each element.
        return tirx.if_then_else(tirx.EQ(b, constant(2, b)), a * a, power(a, b))

    return elementwise(element, number_in(x1, out.dtype), number_in(x2, out.dtype), dtype=out.dtype)


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


def _divided(of_ints, of_floats, x1, x2, out):
    """Return of_ints(a, b), or of_floats(a, b, remainder) with the remainder of C's fmod."""
    if not is_float(out.dtype):
        return elementwise(of_ints, x1, x2, dtype=out.dtype)
    x1 = number_in(x1, out.dtype)
    # A stage (`vector_math` has it for LLVM): its value is used several times.
    remainder = elementwise(tirx.fmod, x1, x2, dtype=computing(out.dtype))
    return elementwise(of_floats, x1, x2, remainder, dtype=out.dtype)


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

    return _divided(of_ints, of_floats, x1, x2, out)


@compute(op.remainder, BROADCAST)
def remainder(x1, x2, out):
    x2 = number_in(x2, out.dtype)

    def of_ints(a, b):
        divisor, trapped, _ = _int_division(a, b)
        return tirx.Select(trapped, constant(0, a), tirx.floormod(a, divisor))

    def of_floats(_, b, remainder):
        return tirx.Select(_signs_differ(remainder, b), remainder + b, remainder)

    return _divided(of_ints, of_floats, x1, x2, out)


@compute(op.fmod, BROADCAST)
def fmod(x1, x2, out):
    def element(a, b):
        if is_float(out.dtype):
            return libm("fmod", a, b)
        return tirx.truncmod(a, _int_division(a, b)[0])

    x1, x2 = number_in(x1, out.dtype), number_in(x2, out.dtype)
    return elementwise(element, x1, x2, dtype=out.dtype)


@pointwise(op.heaviside, BROADCAST)
def heaviside(a, b):
    zero, one = constant(0, a), constant(1, a)
    return tirx.Select(tirx.EQ(a, zero), b, tirx.Select(a > zero, one, zero))


# Alone: TVM would look at the bits of what is inlined, of a bfloat16 as those of a float32.
@pointwise(op.nextafter, OPAQUE, raw=True)
def nextafter(a, b, *, out):
    # Bits without the sign count the numbers by magnitude.
    whole, inner = f"int{bits(out.dtype)}", computing(out.dtype)
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


@pointwise(op.lerp, BROADCAST)
def lerp(v, e, w):
    # From the nearer end, which makes both exact.
    from_end = e + (e - v) * unfolded(w - constant(1, w))
    return tirx.Select(tirx.abs(w) < constant(0.5, w), v + w * (e - v), from_end)


BEYOND = 32
"""The shift to the right from which on every product rounds to 0."""


def _int64(value):
    return tirx.const(value, "int64")


@pointwise(op.fixed_point_multiply, BROADCAST, within="int64")
def fixed_point_multiply(value, factor, exponent, *, rounding):
    def rounded(product, less):
        right = tirx.min(tirx.max(_int64(0) - exponent, _int64(0)), _int64(BEYOND))
        half = tirx.shift_left(_int64(1), right + _int64(30)) - less
        return tirx.shift_right(product + half, right + _int64(31))

    product = tirx.shift_left(value, tirx.max(exponent, _int64(0))) * factor
    if rounding == "upward":
        return rounded(product, _int64(0))
    # Less than a half is added to a negative product: a half of it goes down.
    return let(product, lambda p: rounded(p, cast(p < _int64(0), "int64")))


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


@pointwise(op.negative)
def negative(v, *, out):
    # 0 - v would give 0 a wrong sign.
    return v * constant(-1, v) if is_float(out.dtype) else constant(0, v) - v


@pointwise(op.abs)
def abs(v, *, out):
    if is_float(out.dtype):
        return tirx.abs(v)
    return tirx.Select(v < constant(0, v), constant(0, v) - v, v)
