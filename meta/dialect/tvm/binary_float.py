"""More elementwise operators of two operands in TE. Half precision is computed in float32."""

import math

from tvm import te, tirx
from tvm.tirx import min_value

from meta import op
from meta.base.dtype import bits, is_float
from meta.dialect.tvm.broadcast import broadcast, cast, computing, constant, elementwise, is_nan
from meta.dialect.tvm.c_math import libm, log1p, of_libm
from meta.dialect.tvm.compute import BROADCAST, compute


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


@compute(op.copysign, BROADCAST)
def copysign(x1, x2, out):
    return elementwise(of_libm("copysign"), x1, x2, dtype=out.dtype)


@compute(op.hypot, BROADCAST)
def hypot(x1, x2, out):
    return elementwise(of_libm("hypot"), x1, x2, dtype=out.dtype)


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


@compute(op.ldexp, BROADCAST)
def ldexp(x1, x2, out):
    return elementwise(lambda a, b: a * libm("exp2", b), x1, x2, dtype=out.dtype)


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
