"""Elementwise operators of one tensor in TE. Half precision is computed in float32."""

import math

from tvm import tirx

from meta import op
from meta.base.dtype import is_float
from meta.dialect.tvm.broadcast import broadcast, constant, elementwise, times_derivative
from meta.dialect.tvm.compute import ELEMWISE, compute


@compute(op.relu, ELEMWISE)
def relu(x, out):
    # The comparison is false for a NaN, which is kept.
    def relu(v):
        return tirx.Select(v < constant(0, v), constant(0, v), v)

    return elementwise(relu, x, dtype=out.dtype)


_GELU_SCALE, _GELU_CUBE = math.sqrt(2 / math.pi), 0.044715


def _gelu_inner(v):
    """tanh's argument in the approximation of gelu."""
    cube = constant(_GELU_CUBE, v) * v * v
    return constant(_GELU_SCALE, v) * v * (constant(1, v) + cube)


@compute(op.gelu, ELEMWISE)
def gelu(x, approximate, out):
    def gelu(v):
        if approximate == "tanh":
            distribution = constant(1, v) + tirx.tanh(_gelu_inner(v))
        else:
            distribution = constant(1, v) + tirx.erf(v * constant(math.sqrt(0.5), v))
        return v * constant(0.5, v) * distribution

    return elementwise(gelu, x, dtype=out.dtype)


@compute(op.tanh, ELEMWISE)
def tanh(x, out):
    return elementwise(tirx.tanh, x, dtype=out.dtype)


@compute(op.sigmoid, ELEMWISE)
def sigmoid(x, out):
    return elementwise(_sigmoid, x, dtype=out.dtype)


def _sigmoid(v):
    # exp overflows to infinity for a large negative v; the quotient is then 0, as it should be.
    one = constant(1, v)
    return one / (one + tirx.exp(constant(0, v) - v))


@compute(op.erf, ELEMWISE)
def erf(x, out):
    return elementwise(tirx.erf, x, dtype=out.dtype)


@compute(op.sqrt, ELEMWISE)
def sqrt(x, out):
    return elementwise(tirx.sqrt, x, dtype=out.dtype)


def _relu_dx(v, d):
    return tirx.Select(v > constant(0, v), d, constant(0, d))


@compute(op.relu_dx, ELEMWISE)
def relu_dx(x, y, dy, out):
    return times_derivative(_relu_dx, _relu_dx, x, y, dy, out)


@compute(op.gelu_dx, ELEMWISE)
def gelu_dx(x, y, dy, approximate, out):
    def exact(v, d):
        below = constant(0.5, v) * (constant(1, v) + tirx.erf(v * constant(math.sqrt(0.5), v)))
        density = tirx.exp(v * v * constant(-0.5, v)) * constant(1 / math.sqrt(2 * math.pi), v)
        return d * (below + v * density)

    def by_tanh(v, d):
        one, half = constant(1, v), constant(0.5, v)
        t = tirx.tanh(_gelu_inner(v))
        cube = constant(3 * _GELU_CUBE, v) * v * v
        slope = constant(_GELU_SCALE, v) * (one + cube)
        return d * half * (one + t + v * (one - t * t) * slope)

    return times_derivative(by_tanh if approximate == "tanh" else exact, None, x, y, dy, out)


@compute(op.tanh_dx, ELEMWISE)
def tanh_dx(x, y, dy, out):
    def by_y(t, d):
        return d * (constant(1, t) - t * t)

    return times_derivative(lambda v, d: by_y(tirx.tanh(v), d), by_y, x, y, dy, out)


@compute(op.sigmoid_dx, ELEMWISE)
def sigmoid_dx(x, y, dy, out):
    def by_y(s, d):
        return d * s * (constant(1, s) - s)

    return times_derivative(lambda v, d: by_y(_sigmoid(v), d), by_y, x, y, dy, out)


@compute(op.erf_dx, ELEMWISE)
def erf_dx(x, y, dy, out):
    def by_x(v, d):
        return d * constant(2 / math.sqrt(math.pi), v) * tirx.exp(constant(0, v) - v * v)

    return times_derivative(by_x, None, x, y, dy, out)


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


@compute(op.logical_not, ELEMWISE)
def logical_not(x):
    return elementwise(tirx.Not, x, dtype="bool", within="bool")


@compute(op.copy, ELEMWISE)
def copy(x, out):
    return broadcast(lambda v: v, x, dtype=out.dtype)
