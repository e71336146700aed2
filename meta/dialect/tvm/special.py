"""Special functions and the Fourier transform in TE.

Half precision is computed in float32.

The derivatives of log(gamma), the inverse error function and Bessel functions on TE elements.

All are straight code without loops, so that they vectorise. Elements are float32 or float64. Each
function is a chain of `let`, one inside the body of the other: TVM 0.27 may refuse a binding
inside the value of another.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from tvm import te, tirx

from meta import op
from meta.base.dtype import is_float
from meta.dialect.tvm import c_math
from meta.dialect.tvm.broadcast import broadcast, constant, elementwise, is_nan, let, widened
from meta.dialect.tvm.c_math import libm, polynomial
from meta.dialect.tvm.compute import BROADCAST, ELEMWISE, OPAQUE, compute, pointwise, table

_STEPS = 10  # after which the asymptotic series has 16 digits


def _of_positive(
    x: Any, power: int, series: Callable[[Any, Any, Any], Any], then: Callable[[Any], Any]
) -> Any:
    """Return then(series(sum of 1 / (x + k)**power for k < _STEPS, y, 1 / y**2)), y = x + _STEPS.

    Where x is negative, 1 - x stands for it.
    """
    one = constant(1, x)

    def shifted(z: Any) -> Any:
        steps = [z, *[z + constant(k, z) for k in range(1, _STEPS)]]
        terms = functools.reduce(operator.add, [one / math.prod([s] * power) for s in steps])
        return let(terms, lambda terms: let(z + constant(_STEPS, z), lambda y: at(terms, y)))

    def at(terms: Any, y: Any) -> Any:
        return let(one / (y * y), lambda r: let(series(terms, y, r), then))

    return let(tirx.Select(x < constant(0, x), one - x, x), shifted)


def _of_negative(x: Any, mirrored: Callable[[Any], Any], value: Any) -> Any:
    """Return the value, or, for x < 0, mirrored(pi * the fraction of x)."""

    def choose(fraction: Any) -> Any:
        # The product is exact enough however large x is.
        there = mirrored(constant(math.pi, x) * fraction)
        return let(tirx.Select(x < constant(0, x), there, value), lambda y: y)

    return let(x - tirx.trunc(x), choose)


def digamma(x: Any) -> Any:
    """psi(x) by psi(x + 1) = psi(x) + 1 / x and its asymptotic series (Bernoulli numbers).

    For x < 0 it is psi(1 - x) - pi / tan(pi * x), which has poles at the whole numbers: NaN there.
    """
    coefficients = [-b / n for n, b in zip(_ORDERS, _BERNOULLI, strict=True)]

    def series(terms: Any, y: Any, r: Any) -> Any:
        tail = constant(-0.5, x) / y + r * polynomial(r, coefficients)
        return libm("log", y) + tail - terms

    def reflected(value: Any) -> Any:
        def mirrored(angle: Any) -> Any:
            pole = tirx.EQ(angle, constant(0, x))
            outside = value - constant(math.pi, x) / libm("tan", angle)
            return tirx.Select(pole, constant(math.nan, x), outside)

        return _of_negative(x, mirrored, value)

    return _of_positive(x, 1, series, reflected)


def trigamma(x: Any) -> Any:
    """psi'(x), as `digamma`; for x < 0 it is (pi / sin(pi * x))**2 - psi'(1 - x)."""

    def series(terms: Any, y: Any, r: Any) -> Any:
        tail = constant(0.5, x) / y + r * polynomial(r, _BERNOULLI)
        return terms + (constant(1, x) + tail) / y

    def reflected(value: Any) -> Any:
        def mirrored(angle: Any) -> Any:
            sine = libm("sin", angle)
            return constant(math.pi**2, x) / (sine * sine) - value

        return _of_negative(x, mirrored, value)

    return _of_positive(x, 2, series, reflected)


# Bernoulli's numbers B14, B12, ... B2 and their indices.
_ORDERS = (14, 12, 10, 8, 6, 4, 2)
_BERNOULLI = (7 / 6, -691 / 2730, 5 / 66, -1 / 30, 1 / 42, -1 / 30, 1 / 6)


def erfinv(x: Any) -> Any:
    """The inverse of erf by Giles' polynomials; in float64 two of Halley's steps follow.

    M. Giles, "Approximating the erfinv function", GPU Computing Gems, 2010.
    """
    one, zero = constant(1, x), constant(0, x)

    def of_magnitude(a: Any) -> Any:
        def signed(y: Any) -> Any:
            y = tirx.Select(tirx.EQ(a, one), constant(math.inf, x), y)
            return tirx.Select(x < zero, zero - y, y)

        refine = _refine if str(x.ty.dtype) == "float64" else _where_defined
        w = zero - tirx.log((one - a) * (one + a))
        return let(w, lambda w: refine(a, _giles(a, w), lambda y: let(signed(y), lambda y: y)))

    return let(tirx.abs(x), of_magnitude)


def _where_defined(a: Any, y: Any, then: Callable[[Any], Any]) -> Any:
    return let(y, then)


def _giles(a: Any, w: Any) -> Any:
    """The value to float32's precision; w = -log(1 - a**2) is below 17 there."""
    centre = polynomial(w - constant(2.5, w), _GILES_CENTRE)
    tail = polynomial(tirx.sqrt(w) - constant(3, w), _GILES_TAIL)
    return a * tirx.Select(w < constant(5, w), centre, tail)


def _refine(a: Any, y: Any, then: Callable[[Any], Any]) -> Any:
    """Halley's method for erf(y) = a; in the tail for erfc(y) = 1 - a, where nothing cancels."""
    one = constant(1, a)

    def start(f: Any) -> Any:
        # Beyond float32's range: erfc(y) is about exp(-y**2) / (y * sqrt(pi)).
        root = tirx.sqrt(f - constant(0.5, a) * tirx.log(f))
        first = tirx.Select(one - a < constant(1e-6, a), root, y)
        return let(first, lambda y: step(y, lambda y: step(y, then)))

    def step(y: Any, then: Callable[[Any], Any]) -> Any:
        in_centre = libm("erf", y) - a
        error = tirx.Select(a < constant(0.5, a), in_centre, (one - a) - libm("erfc", y))
        slope = constant(2 / math.sqrt(math.pi), a) * tirx.exp(constant(0, a) - y * y)
        return let(error / slope, lambda u: let(y - u / (one + y * u), then))

    far = constant(0, a) - tirx.log((one - a) * constant(math.sqrt(math.pi), a))
    return let(far, start)


_GILES_CENTRE = (
    2.81022636e-08, 3.43273939e-07, -3.5233877e-06, -4.39150654e-06, 0.00021858087,
    -0.00125372503, -0.00417768164, 0.246640727, 1.50140941,
)  # fmt: skip
_GILES_TAIL = (
    -0.000200214257, 0.000100950558, 0.00134934322, -0.00367342844, 0.00573950773,
    -0.0076224613, 0.00943887047, 1.00167406, 2.83297682,
)  # fmt: skip

_SPLIT = 8.0
_ANGLES = np.pi * (np.arange(8192) + 0.5) / 8192
_DEGREES = {"float32": (15, 8), "float64": (22, 24)}  # of the series and beyond


def _series(order: int, degree: int) -> list[float]:
    """Return the coefficients of I_order(x) / (x / 2)**order in powers of x**2 / 4, last first."""
    return [1 / (math.factorial(k) * math.factorial(k + order)) for k in range(degree, -1, -1)]


def _beyond(order: int, degree: int) -> list[float]:
    """Return the coefficients of exp(-x) sqrt(x) I_order(x) in powers of 16 / x - 1, last first."""

    def scaled(t: Any) -> Any:
        x = 2 * _SPLIT / (t + 1)
        # cos t - 1 without loss near 0, which is all that counts for a large x
        waves = np.exp(np.outer(x, -2 * np.sin(_ANGLES / 2) ** 2)) * np.cos(order * _ANGLES)
        return np.asarray(waves.mean(axis=1) * np.sqrt(x))

    series = chebyshev.chebinterpolate(scaled, degree)
    return [float(c) for c in chebyshev.cheb2poly(series)[::-1]]


_COEFFICIENTS = {
    (order, dtype): (_series(order, near), _beyond(order, far))
    for order in (0, 1)
    for dtype, (near, far) in _DEGREES.items()
}


def scaled_bessel(order: int, x: Any, then: Callable[[Any], Any] = lambda y: y) -> Any:
    """Return then(exp(-|x|) * I_order(x)), the modified Bessel function, for order 0 or 1.

    Up to 8 it is the power series, whose terms are positive: nothing cancels. Beyond, the function
    exp(-x) sqrt(x) I_n(x) is a polynomial of 16 / x - 1, which is in [-1, 1]. It interpolates at
    Chebyshev's points, where the values come from the integral
    I_n(x) = 1/pi * the integral of exp(x cos t) cos(n t) over t from 0 to pi, by the trapezoidal
    rule, which is exact to the last digit for so smooth a periodic function. The split is that of
    Clenshaw, "Chebyshev series for mathematical functions", 1962.

    Largest errors seen, in units of the last place: 2 in float32, 20 in float64.
    """
    near, far = _COEFFICIENTS[order, str(x.ty.dtype)]
    zero, one = constant(0, x), constant(1, x)

    def pieces(magnitude: Any) -> Any:
        low = tirx.exp(zero - magnitude) * polynomial(x * x * constant(0.25, x), near)
        high = polynomial(constant(2 * _SPLIT, x) / magnitude - one, far) / tirx.sqrt(magnitude)
        if order == 1:
            low = x * constant(0.5, x) * low
            high = tirx.Select(x < zero, zero - high, high)
        return let(tirx.Select(magnitude <= constant(_SPLIT, x), low, high), then)

    return let(tirx.abs(x), pieces)


def bessel(order: int, x: Any) -> Any:
    """Return I_order(x) for order 0 or 1."""
    return scaled_bessel(order, x, lambda y: y * tirx.exp(tirx.abs(x)))


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
    op.erfinv: erfinv,
    op.digamma: digamma,
    op.trigamma: trigamma,
    op.i0: partial(bessel, 0),
    op.i0e: partial(scaled_bessel, 0),
    op.i1: partial(bessel, 1),
    op.i1e: partial(scaled_bessel, 1),
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
