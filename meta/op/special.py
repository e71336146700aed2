"""Special functions, elementwise: of the error function's, gamma's and Bessel's families.

Of an integer or bool tensor they are float32. A Python number is accepted as well and gives a
Python number at once. Outside its domain a function is NaN. Add one here, with `_special`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from meta.base.dtype import is_float
from meta.op.binary import arithmetic
from meta.op.core import Scalar, Tensor, TensorType, op
from meta.op.core.check import require
from meta.op.unary import floating, same


def _of_numbers(function: Callable[..., torch.Tensor], *numbers: Any) -> float:
    return function(*[torch.tensor(float(n), dtype=torch.float64) for n in numbers]).item()


def _special(function: Callable[..., torch.Tensor], x: Any) -> TensorType:
    return floating(lambda n: _of_numbers(function, n), x)


@op
def erfc(x: Scalar | Tensor) -> Tensor:
    """1 - erf(x), without loss for large x.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return _special(torch.special.erfc, x)


@op
def erfinv(x: Scalar | Tensor) -> Tensor:
    """The inverse of `erf`: infinite at 1 and -1, NaN beyond.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return _special(torch.special.erfinv, x)


@op
def lgamma(x: Scalar | Tensor) -> Tensor:
    """log(|gamma(x)|); infinite at 0, -1, -2, ...

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return _special(torch.special.gammaln, x)


@op
def digamma(x: Scalar | Tensor) -> Tensor:
    """The derivative of log(gamma(x)); infinite at 0, with the other sign, NaN at -1, -2, ...

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return _special(torch.special.digamma, x)


@op
def trigamma(x: Scalar | Tensor) -> Tensor:
    """The derivative of `digamma`, torch's ``polygamma(1, x)``; infinite at 0, -1, -2, ...

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return _special(lambda t: torch.special.polygamma(1, t), x)


@op
def sinc(x: Scalar | Tensor) -> Tensor:
    """sin(pi * x) / (pi * x), 1 at 0.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return _special(torch.special.sinc, x)


@op
def logit(x: Scalar | Tensor, eps: float | None = None) -> Tensor:
    """log(x / (1 - x)), the inverse of `sigmoid`: infinite at 0 and 1, NaN beyond.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool. ``eps``: if given, x is
    first limited to [eps, 1 - eps].
    """
    return _special(lambda t: torch.special.logit(t, eps), x)


def _real(function: Callable[..., torch.Tensor], x1: Any, x2: Any) -> TensorType:
    result = arithmetic(lambda a, b: _of_numbers(function, a, b), x1, x2)
    if isinstance(result, TensorType) and not is_float(result.dtype):
        return result.with_dtype("float32")
    return result


@op
def xlogy(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """x1 * log(x2), and 0 where x1 is 0; NaN where x2 is.

    ``x1``, ``x2``: tensors of one dtype, broadcast against one another, or numbers. The result has
    their dtype, float32 for ints and bool.
    Raises TypeInferError for different dtypes or shapes that do not broadcast.
    """
    return _real(torch.special.xlogy, x1, x2)


@op
def xlog1py(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """x1 * log(1 + x2), and 0 where x1 is 0; NaN where x2 is. Arguments as of `xlogy`."""
    return _real(torch.special.xlog1py, x1, x2)


@op
def entr(x: Scalar | Tensor) -> Tensor:
    """-x * log(x), the entropy's term: 0 at 0, -inf below.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return _special(torch.special.entr, x)


@op
def ndtr(x: Scalar | Tensor) -> Tensor:
    """The distribution function of the standard normal: (1 + erf(x / sqrt(2))) / 2.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return _special(torch.special.ndtr, x)


@op
def exp2(x: Scalar | Tensor) -> Tensor:
    """2**x. ``x``: any shape; its dtype is the result's, float32 for ints and bool."""
    return floating(np.exp2, x)


@op
def square(x: Scalar | Tensor) -> Tensor:
    """x * x. ``x``: numbers of any shape and dtype; the result has its type; integers wrap.

    Raises TypeInferError for bool.
    """
    bools = isinstance(x, TensorType) and x.dtype == "bool"
    require(not bools, "bool has no square", expected="a dtype of numbers")
    return same(lambda n: n * n, x)


@op
def i0(x: Scalar | Tensor) -> Tensor:
    """The modified Bessel function of the first kind of order 0.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return _special(torch.special.i0, x)


@op
def i0e(x: Scalar | Tensor) -> Tensor:
    """exp(-|x|) * i0(x), which does not overflow.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return _special(torch.special.i0e, x)


@op
def i1(x: Scalar | Tensor) -> Tensor:
    """The modified Bessel function of the first kind of order 1.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return _special(torch.special.i1, x)


@op
def i1e(x: Scalar | Tensor) -> Tensor:
    """exp(-|x|) * i1(x), which does not overflow.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return _special(torch.special.i1e, x)
