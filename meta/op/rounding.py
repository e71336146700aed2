"""Rounding to whole numbers, and the sign, elementwise. Add one here.

The result has the argument's dtype; integers and bools are whole already. A Python number is
accepted as well and gives a Python number at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from meta.op.core import Scalar, Tensor, TensorType, numbers, op
from meta.op.core.check import require_float
from meta.op.unary import same


def _whole(on_float: Callable[[Any], Any], x: Any) -> TensorType:
    """Return the type of a rounded ``x``: its own. A Python float stays one."""
    return same(lambda n: numbers.of_float(on_float, n) if isinstance(n, float) else n, x)


@op
def ceil(x: Scalar | Tensor) -> Tensor:
    """The smallest whole number not below x. ``x``: any shape and dtype; the result has its type.

    Infinities and NaN stay what they are.
    """
    return _whole(np.ceil, x)


@op
def floor(x: Scalar | Tensor) -> Tensor:
    """The largest whole number not above x. ``x``: any shape and dtype; the result has its type.

    Infinities and NaN stay what they are.
    """
    return _whole(np.floor, x)


@op
def round(x: Scalar | Tensor) -> Tensor:
    """The nearest whole number, halves to the even one: 0.5 to 0, 1.5 and 2.5 to 2.

    ``x``: any shape and dtype; the result has its type. Infinities and NaN stay what they are.
    """
    return _whole(np.round, x)


@op
def trunc(x: Scalar | Tensor) -> Tensor:
    """x without its fraction, rounded towards 0. ``x``: any shape and dtype; the result has its
    type.

    Infinities and NaN stay what they are.
    """
    return _whole(np.trunc, x)


@op
def sign(x: Scalar | Tensor) -> Tensor:
    """1 where x is positive, -1 where it is negative, else 0, which includes NaN, as torch.

    ``x``: any shape and dtype; the result has its type.
    """
    return same(lambda n: type(n)((n > 0) - (n < 0)), x)


@op
def frac(x: Scalar | Tensor) -> Tensor:
    """x - trunc(x), the fraction, with the sign of x. ``x``: floating point of any shape.

    Raises TypeInferError for other dtypes.
    """
    if isinstance(x, TensorType):
        require_float(x, "x")
        return x
    return numbers.of_float(lambda n: n - np.trunc(n), x)  # type: ignore[return-value]
