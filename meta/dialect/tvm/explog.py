"""Exponentials, logarithms and the reciprocal in TE. Half precision is computed in float32."""

from meta import op
from meta.dialect.tvm import c_math
from meta.dialect.tvm.broadcast import constant, elementwise
from meta.dialect.tvm.compute import ELEMWISE, compute


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
