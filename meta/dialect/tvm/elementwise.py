"""Elementwise functions of one tensor and casts in TE.

Half precision is computed in float32.
"""

import math

import torch
from tvm import te, tirx

from meta import op
from meta.base.dtype import TO_TORCH, is_float
from meta.dialect.tvm.broadcast import cast as convert
from meta.dialect.tvm.broadcast import constant, is_nan
from meta.dialect.tvm.c_math import expm1, log1p, of_libm
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, compute, pointwise, table
from meta.dialect.tvm.reduce import truth
from meta.op.elementwise import replacements

table(
    {
        op.sqrt: tirx.sqrt,
        op.exp: tirx.exp,
        op.log: tirx.log,
        op.rsqrt: lambda v: constant(1, v) / tirx.sqrt(v),
        op.log1p: log1p,
        op.expm1: expm1,
        op.reciprocal: lambda v: constant(1, v) / v,
        op.frac: lambda v: v - tirx.trunc(v),
        op.deg2rad: lambda v: v * constant(math.pi / 180, v),
        op.rad2deg: lambda v: v * constant(180 / math.pi, v),
        op.square: lambda v: v * v,
    }
)

_OF_LIBM = (
    "acos", "acosh", "asin", "asinh", "atan", "atanh", "cos", "cosh", "exp2", "log10", "log2",
    "sin", "sinh", "tan",
)  # fmt: skip
table({getattr(op, name): of_libm(name) for name in _OF_LIBM})
table({op.atan2: of_libm("atan2")}, BROADCAST)
table({op.copy: lambda v: v, op.detach: lambda v: v}, raw=True)


@pointwise(op.sqrt_dx)
def sqrt_dx(v, r, d):
    r = tirx.sqrt(v) if r is None else r
    return d / (r + r)


def _of_floats(function):
    return lambda v: function(v) if is_float(str(v.ty.dtype)) else v


table(
    {
        op.ceil: _of_floats(tirx.ceil),
        op.floor: _of_floats(tirx.floor),
        # Halves to even under IEEE 754's usual mode, which nothing here changes.
        op.round: _of_floats(tirx.nearbyint),
        op.trunc: _of_floats(tirx.trunc),
    }
)


@pointwise(op.sign)
def sign(v):
    zero, one = constant(0, v), constant(1, v)
    positive = tirx.Select(v > zero, one, zero)
    if str(v.ty.dtype).startswith("uint"):
        return positive
    known = tirx.Select(v < zero, constant(-1, v), positive)
    return tirx.Select(is_nan(v), v, known) if "float" in str(v.ty.dtype) else known


@pointwise(op.nan_to_num)
def nan_to_num(v, *, nan, posinf, neginf, out):
    if not is_float(out.dtype):
        return v
    largest = torch.finfo(TO_TORCH[out.dtype]).max
    of_nan, above, below = (constant(n, v) for n in replacements(nan, posinf, neginf, largest))
    infinite = tirx.Select(v > constant(0, v), above, below)
    other = tirx.Select(is_nan(v), of_nan, infinite)
    return tirx.Select(tirx.abs(v) < constant(math.inf, v), v, other)


@compute(op.astype, ELEMWISE)
def astype(x, dtype):
    def element(*i):
        value = x(*i)
        if dtype == "bool":
            return truth(value, str(x.dtype)) != 0
        return convert(value, dtype)

    return te.compute(x.shape, element, name="astype")


@compute(op.cast_like, ELEMWISE, static=True)
def cast_like(x, out):
    return astype(x, out.dtype)


@compute(op.group_cast, ELEMWISE, static=True)
def group_cast(tensor_list, out):
    return [astype(t, type_.dtype) for t, type_ in zip(tensor_list, out, strict=True)]
