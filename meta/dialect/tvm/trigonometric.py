"""Trigonometric and hyperbolic functions in TE: the C library's, accurate over the whole range.

Half precision is computed in float32.
"""

import math

from meta import op
from meta.dialect.tvm.broadcast import constant, elementwise
from meta.dialect.tvm.c_math import of_libm
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, compute


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
