"""Trigonometric and hyperbolic functions and their inverses, elementwise; angles are in radians.

Of an integer or bool tensor they are float32. A Python number is accepted as well and gives a
Python number at once. Outside its domain a function is NaN. Add one here, with `floating`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from meta.base.dtype import is_float
from meta.op.binary import arithmetic
from meta.op.core import Scalar, Tensor, TensorType, op
from meta.op.core.same_dtype import require_same_dtype
from meta.op.unary import floating


@op
def sin(x: Scalar | Tensor) -> Tensor:
    """Sine. ``x``: any shape; its dtype is the result's, float32 for ints and bool."""
    return floating(np.sin, x)


@op
def cos(x: Scalar | Tensor) -> Tensor:
    """Cosine. ``x``: any shape; its dtype is the result's, float32 for ints and bool."""
    return floating(np.cos, x)


@op
def tan(x: Scalar | Tensor) -> Tensor:
    """Tangent. ``x``: any shape; its dtype is the result's, float32 for ints and bool."""
    return floating(np.tan, x)


@op
def asin(x: Scalar | Tensor) -> Tensor:
    """Inverse sine, between -pi/2 and pi/2; NaN for |x| > 1.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.arcsin, x)


@op
def acos(x: Scalar | Tensor) -> Tensor:
    """Inverse cosine, between 0 and pi; NaN for |x| > 1.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.arccos, x)


@op
def atan(x: Scalar | Tensor) -> Tensor:
    """Inverse tangent, between -pi/2 and pi/2.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.arctan, x)


@op
def sinh(x: Scalar | Tensor) -> Tensor:
    """Hyperbolic sine. ``x``: any shape; its dtype is the result's, float32 for ints and bool."""
    return floating(np.sinh, x)


@op
def cosh(x: Scalar | Tensor) -> Tensor:
    """Hyperbolic cosine. ``x``: any shape; its dtype is the result's, float32 for ints and bool."""
    return floating(np.cosh, x)


@op
def asinh(x: Scalar | Tensor) -> Tensor:
    """Inverse hyperbolic sine.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.arcsinh, x)


@op
def acosh(x: Scalar | Tensor) -> Tensor:
    """Inverse hyperbolic cosine, not negative; NaN for x < 1.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.arccosh, x)


@op
def atanh(x: Scalar | Tensor) -> Tensor:
    """Inverse hyperbolic tangent; infinite at 1 and -1, NaN beyond.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.arctanh, x)


def _angle(x1: Any, x2: Any) -> float:
    return float(np.arctan2(np.float64(x1), np.float64(x2)))


@op
def atan2(x1: Scalar | Tensor, x2: Scalar | Tensor) -> Tensor:
    """The angle of the point (x2, x1) from the x axis, from -pi to pi; signed zeros count as in C.

    ``x1``, ``x2``: tensors of one dtype, broadcast against one another, or numbers. The result has
    their dtype, float32 for ints and bool.
    Raises TypeInferError for different dtypes or shapes that do not broadcast.
    """
    require_same_dtype(x1, x2)
    result = arithmetic(_angle, x1, x2)
    if isinstance(result, TensorType) and not is_float(result.dtype):
        return result.with_dtype("float32")
    return result


@op
def deg2rad(x: Scalar | Tensor) -> Tensor:
    """Degrees in radians: x * pi / 180.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.deg2rad, x)


@op
def rad2deg(x: Scalar | Tensor) -> Tensor:
    """Radians in degrees: x * 180 / pi.

    ``x``: any shape; its dtype is the result's, float32 for ints and bool.
    """
    return floating(np.rad2deg, x)
