"""Gradients of special functions and the Fourier transform."""

import math

from meta import op
from meta.grad.core import collapse, gradient, gradients, onto
from meta.op.loss_reduction import HALF_DTYPES
from meta.op.zeta import derivative_of_digamma

gradients(
    {
        op.erf: lambda x, dy: op.erf_dx(x, None, dy),
        op.erfc: lambda x, dy: -op.erf_dx(x, None, dy),
        op.erfinv: lambda y, dy: dy * (op.exp(y * y) * (math.sqrt(math.pi) / 2)),
        op.lgamma: lambda x, dy: dy * op.digamma(x),
        op.digamma: lambda x, dy: dy * op.trigamma(x),
        op.entr: lambda x, dy: -(dy * (op.log(x) + 1.0)),
        op.ndtr: lambda x, dy: dy * (op.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))),
        op.i0: lambda x, dy: dy * op.i1(x),
        op.i0e: lambda x, y, dy: dy * (op.i1e(x) - op.sign(x) * y),
        op.i1: lambda x, y, dy: dy * (op.i0(x) - _safe_ratio(y, x)),
        op.i1e: lambda x, y, dy: dy * (op.i0e(x) - op.sign(x) * y - _safe_ratio(y, x)),
    }
)


def _safe_ratio(y, x):
    """y / x, which tends to 1/2 at 0."""
    zero = op.equal(x, 0.0)
    return op.where(zero, 0.5, y / op.where(zero, 1.0, x))


@gradient(op.trigamma)
def trigamma(x, dy):
    """dx = dy * polygamma(2, x)"""
    if x.dtype not in HALF_DTYPES:
        return dy * derivative_of_digamma(2, x)
    return dy * op.astype(derivative_of_digamma(2, op.astype(x, "float32")), x.dtype)


_SINC = [(-1) ** k * 2 * k / math.factorial(2 * k + 1) * math.pi**2 for k in range(1, 11)]
"""The series of sinc'(x) / x in (pi * x)**2; for x below 1/3 what it leaves out is below 1e-17."""


@gradient(op.sinc)
def sinc(x, y, dy):
    """dx = dy * (cos(pi * x) - y) / x, of which nothing is left beside 0: its series there"""
    near = op.abs(x) < 1 / 3
    square = op.square(op.where(near, x, 0.0) * math.pi)
    series = op.full_like(x, _SINC[-1])
    for coefficient in reversed(_SINC[:-1]):
        series = series * square + coefficient
    slope = op.cos(x * math.pi) - y
    far = slope / op.where(near, 1.0, x)
    return dy * op.where(near, x * series, far)


@gradient(op.logit)
def logit(x, dy, eps):
    """dx = dy / (x * (1 - x)); outside [eps, 1 - eps] 0, without eps outside [0, 1] NaN"""
    dx = dy / (x * (1.0 - x))
    low, beyond = (0.0, math.nan) if eps is None else (eps, 0.0)
    outside = op.logical_or(x < low, x > 1.0 - low)
    return op.where(outside, beyond, dx)


@gradient(op.xlogy)
def xlogy(x1, x2, dy):
    """dx1 = dy * log(x2), 0 where x1 = 0 >= x2; dx2 = dy * x1 / x2"""

    def factor():
        flat = op.logical_and(op.equal(x1, 0), x2 <= 0)
        return op.where(flat, 0.0, op.xlogy(dy, x2))

    return onto(x1, factor), onto(x2, lambda: dy * x1 / x2)


@gradient(op.xlog1py)
def xlog1py(x1, x2, dy):
    """dx1 = dy * log(1 + x2), 0 where x1 = 0 and x2 <= -1; dx2 = dy * x1 / (1 + x2)"""

    def factor():
        flat = op.logical_and(op.equal(x1, 0), x2 <= -1)
        return op.where(flat, 0.0, op.xlog1py(dy, x2))

    return onto(x1, factor), onto(x2, lambda: dy * x1 / (x2 + 1.0))


@gradient(op.dft)
def dft(dy, inverse):
    """The other direction, times n or divided by it."""
    extent = dy[0].shape[-1]
    dre, dim = op.dft(*dy, not inverse)
    factor = 1 / extent if inverse else float(extent)
    return dre * factor, dim * factor


@gradient(op.erf_dx)
def erf_dx(x, y, dy, dy_):
    """erf'' = -2 * x * erf'"""
    dx = collapse(dy * dy_ * op.erf_dx(x, None, x * -2.0), x)
    return dx, None if y is None else op.zeros_like(y), collapse(op.erf_dx(x, None, dy_), dy)
