"""Modified Bessel functions of the first kind on TE elements, as polynomials that vectorise.

Up to 8 it is the power series, whose terms are positive: nothing cancels. Beyond, the function
exp(-x) sqrt(x) I_n(x) is a polynomial of 16 / x - 1, which is in [-1, 1]. It interpolates at
Chebyshev's points, where the values come from the integral
I_n(x) = 1/pi * the integral of exp(x cos t) cos(n t) over t from 0 to pi, by the trapezoidal rule,
which is exact to the last digit for so smooth a periodic function. The split is that of Clenshaw,
"Chebyshev series for mathematical functions", 1962.

Largest errors seen, in units of the last place: 2 in float32, 20 in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from math import factorial
from typing import Any

import numpy as np
from numpy.polynomial import chebyshev
from tvm import tirx

from meta.dialect.tvm.broadcast import constant, let
from meta.dialect.tvm.c_math import polynomial

_SPLIT = 8.0
_ANGLES = np.pi * (np.arange(8192) + 0.5) / 8192
_DEGREES = {"float32": (15, 8), "float64": (22, 24)}  # of the series and beyond


def _series(order: int, degree: int) -> list[float]:
    """Return the coefficients of I_order(x) / (x / 2)**order in powers of x**2 / 4, last first."""
    return [1 / (factorial(k) * factorial(k + order)) for k in range(degree, -1, -1)]


def _beyond(order: int, degree: int) -> list[float]:
    """Return the coefficients of exp(-x) sqrt(x) I_order(x) in powers of 16 / x - 1, last first."""

    def scaled(t: np.ndarray) -> np.ndarray:
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


def scaled_bessel(order: int, x: Any, then: Callable[[Any], Any]) -> Any:
    """Return then(exp(-|x|) * I_order(x)) for order 0 or 1."""
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
