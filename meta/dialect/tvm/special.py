"""Special functions and the Fourier transform in TE.

Half precision is computed in float32.
"""

import math
from math import pi

from tvm import te, tirx

from meta import op
from meta.dialect.tvm import c_math, gamma
from meta.dialect.tvm.bessel import scaled_bessel
from meta.dialect.tvm.broadcast import (
    broadcast,
    constant,
    elementwise,
    is_nan,
    let,
    times_derivative,
    widened,
)
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, OPAQUE, compute, table

table(
    {
        op.erfc: c_math.of_libm("erfc"),
        op.lgamma: c_math.of_libm("lgamma"),
        op.erf: tirx.erf,
    }
)


def _bound(function, x, out):
    """function(x), in which elements are bound by `let`, for each element."""
    if str(x.dtype) == "bfloat16" and not isinstance(x.op, te.PlaceholderOp):
        # One that is computed in the same kernel TVM makes a float32 of, but for what is bound.
        x = elementwise(lambda v: v, x, dtype="float32")

    def element(v):
        wide = widened(v) if str(x.dtype).startswith(("float", "bfloat")) else v.astype(out.dtype)
        return let(wide, function)

    return broadcast(element, x, dtype=out.dtype)


@compute(op.erfinv, ELEMWISE)
def erfinv(x, out):
    return _bound(gamma.erfinv, x, out)


@compute(op.digamma, ELEMWISE)
def digamma(x, out):
    return _bound(gamma.digamma, x, out)


@compute(op.trigamma, ELEMWISE)
def trigamma(x, out):
    return _bound(gamma.trigamma, x, out)


@compute(op.sinc, ELEMWISE)
def sinc(x, out):
    def sinc(v):
        angle = v * constant(math.pi, v)
        return tirx.Select(
            tirx.EQ(v, constant(0, v)), constant(1, v), c_math.libm("sin", angle) / angle
        )

    return elementwise(sinc, x, dtype=out.dtype)


@compute(op.logit, ELEMWISE)
def logit(x, eps, out):
    def logit(v):
        if eps is not None:  # comparisons with a NaN are false, which keeps it
            low, high = constant(eps, v), constant(1 - eps, v)
            v = tirx.Select(v < low, low, tirx.Select(v > high, high, v))
        return tirx.log(v / (constant(1, v) - v))

    return elementwise(logit, x, dtype=out.dtype)


def _times(log, x1, x2, out):
    """x1 * log(x2), 0 where x1 is 0 and x2 no NaN."""

    def product(a, b):
        zero = tirx.And(tirx.EQ(a, constant(0, a)), tirx.Not(is_nan(b)))
        return tirx.Select(zero, constant(0, a), a * log(b))

    return elementwise(product, x1, x2, dtype=out.dtype)


@compute(op.xlogy, BROADCAST)
def xlogy(x1, x2, out):
    return _times(tirx.log, x1, x2, out)


@compute(op.xlog1py, BROADCAST)
def xlog1py(x1, x2, out):
    return _times(c_math.log1p, x1, x2, out)


@compute(op.entr, ELEMWISE)
def entr(x, out):
    def entr(v):
        zero = constant(0, v)
        below = tirx.Select(v < zero, constant(-math.inf, v), v)  # a NaN stays, and 0
        return tirx.Select(v > zero, (zero - v) * tirx.log(v), below)

    return elementwise(entr, x, dtype=out.dtype)


@compute(op.ndtr, ELEMWISE)
def ndtr(x, out):
    def ndtr(v):
        tail = c_math.libm("erfc", v * constant(-math.sqrt(0.5), v))
        return constant(0.5, v) * tail

    return elementwise(ndtr, x, dtype=out.dtype)


def _unscaled(order):
    return lambda v: scaled_bessel(order, v, lambda y: y * tirx.exp(tirx.abs(v)))


@compute(op.i0, ELEMWISE)
def i0(x, out):
    return _bound(_unscaled(0), x, out)


@compute(op.i0e, ELEMWISE)
def i0e(x, out):
    return _bound(lambda v: scaled_bessel(0, v, lambda y: y), x, out)


@compute(op.i1, ELEMWISE)
def i1(x, out):
    return _bound(_unscaled(1), x, out)


@compute(op.i1e, ELEMWISE)
def i1e(x, out):
    return _bound(lambda v: scaled_bessel(1, v, lambda y: y), x, out)


@compute(op.dft, OPAQUE)
def dft(re, im, inverse):
    *lead, extent = re.shape
    dtype = str(re.dtype)

    def table(function, name):
        """Return function(2 pi t / n) for all t below n."""

        def entry(t):
            angle = tirx.Cast("float64", t) * tirx.const(2 * pi, "float64")
            return tirx.Cast(dtype, function(angle / tirx.Cast("float64", extent)))

        return te.compute((extent,), entry, name=name)

    cosine, sine = table(tirx.cos, "cosine"), table(tirx.sin, "sine")

    def part(along, across, sign, name):
        """Return the sum of along * cos + sign * across * sin."""
        k = te.reduce_axis((0, extent), name="k")

        def term(*index):
            *at, j = index
            wide = tirx.Cast("int64", j) * tirx.Cast("int64", k)
            turn = tirx.Cast("int32", tirx.floormod(wide, tirx.Cast("int64", extent)))
            product = across(*at, k) * sine(turn)
            value = along(*at, k) * cosine(turn)
            return te.sum(value + product if sign > 0 else value - product, axis=k)

        total = te.compute((*lead, extent), term, name=name)
        if not inverse:
            return total
        count = tirx.Cast(dtype, extent)
        return te.compute(total.shape, lambda *i: total(*i) / count, name=f"{name}_mean")

    forward = -1 if inverse else 1
    return [part(re, im, forward, "re"), part(im, re, -forward, "im")]


@compute(op.erf_dx, ELEMWISE)
def erf_dx(x, y, dy, out):
    def by_x(v, d):
        return d * constant(2 / math.sqrt(math.pi), v) * tirx.exp(constant(0, v) - v * v)

    return times_derivative(by_x, None, x, y, dy, out)
