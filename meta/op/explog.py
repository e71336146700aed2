"""Exponentials, logarithms and the reciprocal beside those of `meta/op/unary.py`.

Of an integer or bool tensor they are float32. A Python number is accepted as well and gives a
Python number at once. Add one here, with `floating`.
"""

from __future__ import annotations

import numpy as np

from meta.op.core import Scalar, Tensor, op
from meta.op.unary import floating


@op
def log2(x: Scalar | Tensor) -> Tensor:
    """Logarithm to base 2; -inf at 0, NaN below.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.log2, x)


@op
def log10(x: Scalar | Tensor) -> Tensor:
    """Logarithm to base 10; -inf at 0, NaN below.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.log10, x)


@op
def log1p(x: Scalar | Tensor) -> Tensor:
    """log(1 + x) without loss for small x; -inf at -1, NaN below.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.log1p, x)


@op
def expm1(x: Scalar | Tensor) -> Tensor:
    """exp(x) - 1 without loss for small x.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.expm1, x)


@op
def reciprocal(x: Scalar | Tensor) -> Tensor:
    """1 / x; infinite at 0, with its sign.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.reciprocal, x)
