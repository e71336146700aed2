"""Elementwise functions of one tensor and casts in TE.

Half precision is computed in float32.
"""

import math

import torch
from tvm import te, tirx

from meta import op
from meta.base.dtype import TO_TORCH, is_float
from meta.dialect.tvm.broadcast import broadcast, constant, elementwise, is_nan, times_derivative
from meta.dialect.tvm.broadcast import cast as convert
from meta.dialect.tvm.c_math import expm1, log1p, of_libm
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, compute, table
from meta.dialect.tvm.reduce import truth
from meta.op.elementwise import replacements

table(
    {
        op.sqrt: tirx.sqrt,
        op.exp: tirx.exp,
        op.log: tirx.log,
        op.rsqrt: lambda v: constant(1, v) / tirx.sqrt(v),
        op.log2: of_libm("log2"),
        op.log10: of_libm("log10"),
        op.log1p: log1p,
        op.expm1: expm1,
        op.reciprocal: lambda v: constant(1, v) / v,
        op.frac: lambda v: v - tirx.trunc(v),
        op.sin: of_libm("sin"),
        op.cos: of_libm("cos"),
        op.tan: of_libm("tan"),
        op.asin: of_libm("asin"),
        op.acos: of_libm("acos"),
        op.atan: of_libm("atan"),
        op.sinh: of_libm("sinh"),
        op.cosh: of_libm("cosh"),
        op.asinh: of_libm("asinh"),
        op.acosh: of_libm("acosh"),
        op.atanh: of_libm("atanh"),
        op.deg2rad: lambda v: v * constant(math.pi / 180, v),
        op.rad2deg: lambda v: v * constant(180 / math.pi, v),
        op.exp2: of_libm("exp2"),
        op.square: lambda v: v * v,
    }
)


@compute(op.sqrt_dx, ELEMWISE)
def sqrt_dx(x, y, dy, out):
    def by_y(r, d):
        return d / (r + r)

    return times_derivative(lambda v, d: by_y(tirx.sqrt(v), d), by_y, x, y, dy, out)


@compute(op.copy, ELEMWISE)
def copy(x, out):
    return broadcast(lambda v: v, x, dtype=out.dtype)


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


@compute(op.atan2, BROADCAST)
def atan2(x1, x2, out):
    return elementwise(of_libm("atan2"), x1, x2, dtype=out.dtype)


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
