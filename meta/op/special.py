"""Special functions and the Fourier transform.

Of an integer or bool tensor they are float32. A Python number is accepted as well and gives a
Python number. Outside its domain a function is NaN. Add one to `REAL`. There is no
complex dtype: a complex tensor is two, its real and its imaginary part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from meta.op.core import Scalar, Tensor, op
from meta.op.core.axes import last
from meta.op.core.check import require, require_same_dtype
from meta.op.core.elementwise import define_real, floating, gradient, real
from meta.op.core.names import NO_NAMES, Names


def _of_numbers(function: Callable[..., torch.Tensor], *numbers: Any) -> float:
    return function(*[torch.tensor(float(n), dtype=torch.float64) for n in numbers]).item()


REAL: dict[str, tuple[Callable[..., Any], str]] = {
    "erf": (
        torch.special.erf,
        "Error function: 2 / sqrt(pi) times the integral of exp(-t**2) for t from 0 to x.",
    ),
    "erfc": (torch.special.erfc, "1 - erf(x), without loss for large x."),
    "erfinv": (torch.special.erfinv, "The inverse of `erf`: infinite at 1 and -1, NaN beyond."),
    "lgamma": (torch.special.gammaln, "log(|gamma(x)|); infinite at 0, -1, -2, ..."),
    "digamma": (
        torch.special.digamma,
        "The derivative of log(gamma(x)); infinite at 0, with the other sign, NaN at -1, -2, ...",
    ),
    "trigamma": (
        lambda t: torch.special.polygamma(1, t),
        "The derivative of `digamma`, torch's ``polygamma(1, x)``; infinite at 0, -1, -2, ...",
    ),
    "sinc": (torch.special.sinc, "sin(pi * x) / (pi * x), 1 at 0."),
    "entr": (torch.special.entr, "-x * log(x), the entropy's term: 0 at 0, -inf below."),
    "ndtr": (
        torch.special.ndtr,
        "The distribution function of the standard normal: (1 + erf(x / sqrt(2))) / 2.",
    ),
    "i0": (torch.special.i0, "The modified Bessel function of the first kind of order 0."),
    "i0e": (torch.special.i0e, "exp(-|x|) * i0(x), which does not overflow."),
    "i1": (torch.special.i1, "The modified Bessel function of the first kind of order 1."),
    "i1e": (torch.special.i1e, "exp(-|x|) * i1(x), which does not overflow."),
}
"""Real functions: of a Python number, and what they are."""
NAMES = {"erf": Names("onnx relax relay")}
for _name, (_function, _summary) in REAL.items():
    define_real(_name, partial(_of_numbers, _function), _summary, NAMES.get(_name, NO_NAMES))


@op(elementwise=True)
def logit(x: Scalar | Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), the inverse of `sigmoid`: infinite at 0 and 1, NaN beyond.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool. ``eps``: if given, x is
    first limited to [eps, 1 - eps].
    """
    return floating(partial(_of_numbers, lambda t: torch.special.logit(t, eps)), x)


@op(elementwise=True, promotes=("x1", "x2"))
def xlogy(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """x1 * log(x2), and 0 where x1 is 0; NaN where x2 is.

    ``x1``, ``x2``: tensors of one dtype, broadcast against one another, or numbers. The result has
    their dtype, float32 for ints and bool.
    Raises TypeInferError for different dtypes or shapes that do not broadcast.
    """
    return real(partial(_of_numbers, torch.special.xlogy), x1, x2)


@op(elementwise=True, promotes=("x1", "x2"))
def xlog1py(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """x1 * log(1 + x2), and 0 where x1 is 0; NaN where x2 is. Arguments as of `xlogy`."""
    return real(partial(_of_numbers, torch.special.xlog1py), x1, x2)


@op(axes=last(re=1, im=1, results=(1, 1)))
def dft(re: Tensor, im: Tensor, inverse: bool = False) -> tuple[Tensor, Tensor]:
    """The discrete Fourier transform along the last axis: (real part, imaginary part) of
    ``y[j] = sum(x[k] * exp(-2i * pi * j * k / n))`` for x = re + i * im of n elements.

    inverse: with a positive exponent, and divided by n; so it undoes the other one.
    re, im: float32 or float64 of one shape with a last axis that is not empty; so are the results.
    Raises TypeInferError for other types.
    """
    require(re.dtype in ("float32", "float64"), "re must be float32 or float64", found=str(re))
    require_same_dtype(re, im)
    require(re.shape == im.shape, "re and im differ in shape", found=f"{re} and {im}")
    require(re.ndim >= 1 and re.shape[-1] != 0, "re has no last axis to transform", found=str(re))
    return re, im


@op(elementwise=True)
def erf_dx(x: Tensor | None, y: Tensor | None, dy: Tensor) -> Tensor:
    """Gradient of `erf`: dy * 2 / sqrt(pi) * exp(-x**2).

    ``x``: argument of the forward call, needed. ``y``: its result, not used, may be None. ``dy``:
    gradient of the result. All floating, of one type, which the result has.
    Raises TypeInferError if x is None or the types differ.
    """
    return gradient(x, y, dy, use_y=False)
