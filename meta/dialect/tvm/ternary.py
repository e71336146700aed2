"""Elementwise operators of three operands in TE. Half precision is computed in float32."""

from tvm import tirx

from meta import op
from meta.dialect.tvm.broadcast import constant, elementwise
from meta.dialect.tvm.compute import BROADCAST, compute


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
