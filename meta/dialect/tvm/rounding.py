"""Rounding and the sign in TE. Half precision is computed in float32."""

from tvm import tirx

from meta import op
from meta.base.dtype import is_float
from meta.dialect.tvm.broadcast import constant, elementwise
from meta.dialect.tvm.compute import ELEMWISE, compute


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
