"""Special functions and the Fourier transform in TE.

Half precision is computed in float32.
"""

import math
from functools import partial

from tvm import te, tirx

from meta import op
from meta.base.dtype import is_float
from meta.dialect.tvm import c_math, gamma
from meta.dialect.tvm.broadcast import broadcast, constant, elementwise, is_nan, let, widened
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, OPAQUE, compute, pointwise, table

table({op.erfc: c_math.of_libm("erfc"), op.lgamma: c_math.of_libm("lgamma"), op.erf: tirx.erf})


def _bound(function):
    """Return the kernel of a function in which elements are bound by `let`."""

    def kernel(x, out):
        if str(x.dtype) == "bfloat16" and not isinstance(x.op, te.PlaceholderOp):
            # One that is computed in the same kernel TVM makes a float32 of, but for what is bound.
            x = elementwise(lambda v: v, x, dtype="float32")

        def element(v):
            return let(widened(v) if is_float(str(x.dtype)) else v.astype(out.dtype), function)

        return broadcast(element, x, dtype=out.dtype)

    return kernel


for _base, _function in {
    op.erfinv: gamma.erfinv,
    op.digamma: gamma.digamma,
    op.trigamma: gamma.trigamma,
    op.i0: partial(gamma.bessel, 0),
    op.i0e: partial(gamma.scaled_bessel, 0),
    op.i1: partial(gamma.bessel, 1),
    op.i1e: partial(gamma.scaled_bessel, 1),
}.items():
    compute(_base, ELEMWISE)(_bound(_function))


@pointwise(op.sinc)
def sinc(v):
    angle = v * constant(math.pi, v)
    return tirx.Select(
        tirx.EQ(v, constant(0, v)), constant(1, v), c_math.libm("sin", angle) / angle
    )


@pointwise(op.logit)
def logit(v, *, eps):
    if eps is not None:  # comparisons with a NaN are false, which keeps it
        low, high = constant(eps, v), constant(1 - eps, v)
        v = tirx.Select(v < low, low, tirx.Select(v > high, high, v))
    return tirx.log(v / (constant(1, v) - v))


def _times(log, a, b):
    """a * log(b), 0 where a is 0 and b no NaN."""
    zero = tirx.And(tirx.EQ(a, constant(0, a)), tirx.Not(is_nan(b)))
    return tirx.Select(zero, constant(0, a), a * log(b))


table({op.xlogy: partial(_times, tirx.log), op.xlog1py: partial(_times, c_math.log1p)}, BROADCAST)


@pointwise(op.entr)
def entr(v):
    zero = constant(0, v)
    below = tirx.Select(v < zero, constant(-math.inf, v), v)  # a NaN stays, and 0
    return tirx.Select(v > zero, (zero - v) * tirx.log(v), below)


@pointwise(op.ndtr)
def ndtr(v):
    tail = c_math.libm("erfc", v * constant(-math.sqrt(0.5), v))
    return constant(0.5, v) * tail


@compute(op.dft, OPAQUE)
def dft(re, im, inverse):
    *lead, extent = re.shape
    dtype = str(re.dtype)

    def table(function, name):
        """Return function(2 pi t / n) for all t below n."""

        def entry(t):
            angle = tirx.Cast("float64", t) * tirx.const(2 * math.pi, "float64")
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


@pointwise(op.erf_dx)
def erf_dx(v, _, d):
    return d * constant(2 / math.sqrt(math.pi), v) * tirx.exp(constant(0, v) - v * v)
