"""Elementwise functions of one tensor, and casts in TE.

Half precision is computed in float32.
"""

import math

import torch
from tvm import te, tirx

from meta import op
from meta.base.dtype import TO_TORCH, is_float
from meta.dialect.tvm import c_math
from meta.dialect.tvm.broadcast import broadcast, constant, elementwise, is_nan, times_derivative
from meta.dialect.tvm.broadcast import cast as convert
from meta.dialect.tvm.c_math import of_libm
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, compute
from meta.dialect.tvm.reduce import truth
from meta.op.elementwise import replacements


@compute(op.sqrt, ELEMWISE)
def sqrt(x, out):
    return elementwise(tirx.sqrt, x, dtype=out.dtype)


@compute(op.sqrt_dx, ELEMWISE)
def sqrt_dx(x, y, dy, out):
    def by_y(r, d):
        return d / (r + r)

    return times_derivative(lambda v, d: by_y(tirx.sqrt(v), d), by_y, x, y, dy, out)


@compute(op.exp, ELEMWISE)
def exp(x, out):
    return elementwise(tirx.exp, x, dtype=out.dtype)


@compute(op.log, ELEMWISE)
def log(x, out):
    return elementwise(tirx.log, x, dtype=out.dtype)


@compute(op.rsqrt, ELEMWISE)
def rsqrt(x, out):
    return elementwise(lambda v: constant(1, v) / tirx.sqrt(v), x, dtype=out.dtype)


@compute(op.copy, ELEMWISE)
def copy(x, out):
    return broadcast(lambda v: v, x, dtype=out.dtype)


@compute(op.log2, ELEMWISE)
def log2(x, out):
    return elementwise(c_math.of_libm("log2"), x, dtype=out.dtype)


@compute(op.log10, ELEMWISE)
def log10(x, out):
    return elementwise(c_math.of_libm("log10"), x, dtype=out.dtype)


@compute(op.log1p, ELEMWISE)
def log1p(x, out):
    return elementwise(c_math.log1p, x, dtype=out.dtype)


@compute(op.expm1, ELEMWISE)
def expm1(x, out):
    return elementwise(c_math.expm1, x, dtype=out.dtype)


@compute(op.reciprocal, ELEMWISE)
def reciprocal(x, out):
    return elementwise(lambda v: constant(1, v) / v, x, dtype=out.dtype)


def _rounded(function, x, out):
    return elementwise(function if is_float(out.dtype) else lambda v: v, x, dtype=out.dtype)


@compute(op.ceil, ELEMWISE)
def ceil(x, out):
    return _rounded(tirx.ceil, x, out)


@compute(op.floor, ELEMWISE)
def floor(x, out):
    return _rounded(tirx.floor, x, out)


@compute(op.round, ELEMWISE)
def round(x, out):
    # Halves to even under IEEE 754's usual mode, which nothing here changes.
    return _rounded(tirx.nearbyint, x, out)


@compute(op.trunc, ELEMWISE)
def trunc(x, out):
    return _rounded(tirx.trunc, x, out)


@compute(op.sign, ELEMWISE)
def sign(x, out):
    def sign(v):
        zero, one = constant(0, v), constant(1, v)
        positive = tirx.Select(v > zero, one, zero)
        if str(v.ty.dtype).startswith("uint"):
            return positive
        return tirx.Select(v < zero, constant(-1, v), positive)

    return elementwise(sign, x, dtype=out.dtype)


@compute(op.frac, ELEMWISE)
def frac(x, out):
    return elementwise(lambda v: v - tirx.trunc(v), x, dtype=out.dtype)


@compute(op.sin, ELEMWISE)
def sin(x, out):
    return elementwise(of_libm("sin"), x, dtype=out.dtype)


@compute(op.cos, ELEMWISE)
def cos(x, out):
    return elementwise(of_libm("cos"), x, dtype=out.dtype)


@compute(op.tan, ELEMWISE)
def tan(x, out):
    return elementwise(of_libm("tan"), x, dtype=out.dtype)


@compute(op.asin, ELEMWISE)
def asin(x, out):
    return elementwise(of_libm("asin"), x, dtype=out.dtype)


@compute(op.acos, ELEMWISE)
def acos(x, out):
    return elementwise(of_libm("acos"), x, dtype=out.dtype)


@compute(op.atan, ELEMWISE)
def atan(x, out):
    return elementwise(of_libm("atan"), x, dtype=out.dtype)


@compute(op.sinh, ELEMWISE)
def sinh(x, out):
    return elementwise(of_libm("sinh"), x, dtype=out.dtype)


@compute(op.cosh, ELEMWISE)
def cosh(x, out):
    return elementwise(of_libm("cosh"), x, dtype=out.dtype)


@compute(op.asinh, ELEMWISE)
def asinh(x, out):
    return elementwise(of_libm("asinh"), x, dtype=out.dtype)


@compute(op.acosh, ELEMWISE)
def acosh(x, out):
    return elementwise(of_libm("acosh"), x, dtype=out.dtype)


@compute(op.atanh, ELEMWISE)
def atanh(x, out):
    return elementwise(of_libm("atanh"), x, dtype=out.dtype)


@compute(op.atan2, BROADCAST)
def atan2(x1, x2, out):
    return elementwise(of_libm("atan2"), x1, x2, dtype=out.dtype)


@compute(op.deg2rad, ELEMWISE)
def deg2rad(x, out):
    return elementwise(lambda v: v * constant(math.pi / 180, v), x, dtype=out.dtype)


@compute(op.rad2deg, ELEMWISE)
def rad2deg(x, out):
    return elementwise(lambda v: v * constant(180 / math.pi, v), x, dtype=out.dtype)


@compute(op.exp2, ELEMWISE)
def exp2(x, out):
    return elementwise(c_math.of_libm("exp2"), x, dtype=out.dtype)


@compute(op.square, ELEMWISE)
def square(x, out):
    return elementwise(lambda v: v * v, x, dtype=out.dtype)


@compute(op.nan_to_num, ELEMWISE)
def nan_to_num(x, nan, posinf, neginf, out):
    if not is_float(out.dtype):
        return elementwise(lambda v: v, x, dtype=out.dtype)
    largest = torch.finfo(TO_TORCH[out.dtype]).max
    instead = replacements(nan, posinf, neginf, largest)

    def finite(v):
        of_nan, above, below = (constant(n, v) for n in instead)
        infinite = tirx.Select(v > constant(0, v), above, below)
        other = tirx.Select(is_nan(v), of_nan, infinite)
        return tirx.Select(tirx.abs(v) < constant(math.inf, v), v, other)

    return elementwise(finite, x, dtype=out.dtype)


@compute(op.cast, ELEMWISE)
def cast_to(data, dtype):
    def element(*i):
        value = data(*i)
        if dtype == "bool":
            return truth(value, str(data.dtype)) != 0
        return convert(value, dtype)

    return te.compute(data.shape, element, name="cast")


@compute(op.cast_like, ELEMWISE, static=True)
def cast_like(x, out):
    return cast_to(x, out.dtype)


@compute(op.group_cast, ELEMWISE, static=True)
def group_cast(tensor_list, out):
    return [cast_to(t, type_.dtype) for t, type_ in zip(tensor_list, out, strict=True)]
