"""Functions of the C library on TE elements, and vectorisable forms of expm1 and log1p.

`libm` calls a function by its C name, which is the same on the CPU and in CUDA: TVM's own lowering
of some of them loses small arguments (atanh) or does not exist (expm1). Elements are float32 or
float64. To add a function, call `libm` with its name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import tirx

from meta.dialect.tvm.broadcast import constant


def libm(name: str, *arguments: Any) -> Any:
    """Return the C library's function of the arguments, all of one floating point dtype."""
    dtype = str(arguments[0].ty.dtype)
    return tirx.call_pure_extern(dtype, name if dtype == "float64" else name + "f", *arguments)


def of_libm(name: str) -> Callable[..., Any]:
    """Return the C library's function of this name as a function of elements."""
    return lambda *arguments: libm(name, *arguments)


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Horner's rule; the highest power's coefficient comes first."""
    result = constant(coefficients[0], x)
    for coefficient in coefficients[1:]:
        result = result * x + constant(coefficient, x)
    return result


def expm1(x: Any) -> Any:
    """e**x - 1, also near 0. In float32 about 4 units in the last place, without a library call."""
    if str(x.ty.dtype) == "float64":
        return libm("expm1", x)
    one = constant(1, x)
    near = x * (x * polynomial(x, EXP) + one)  # in this form -0 stays -0
    return tirx.Select(tirx.abs(x) < constant(_HALF_LN2, x), near, tirx.exp(x) - one)


def log1p(x: Any) -> Any:
    """log(1 + x), also near 0. In float32 about 2 units in the last place, without a call."""
    if str(x.ty.dtype) == "float64":
        return libm("log1p", x)
    square = x * x
    near = x + (polynomial(x, LOG) * x * square - constant(0.5, x) * square)
    is_near = tirx.And(x > constant(_LOG_LOW, x), x < constant(_LOG_HIGH, x))
    return tirx.Select(is_near, near, tirx.log(x + constant(1, x)))


# Cephes' coefficients: (e**x - 1 - x) / x**2 for |x| <= ln(2) / 2, and, for 1 + x between sqrt(1/2)
# and sqrt(2), (log(1 + x) - x + x**2 / 2) / x**3. Outside these intervals nothing cancels.
_HALF_LN2 = 0.34657359
EXP = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip
_LOG_LOW, _LOG_HIGH = -0.29289322, 0.41421356
LOG = (
    7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1,
    -1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1,
)  # fmt: skip
