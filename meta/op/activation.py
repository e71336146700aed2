"""Activation functions with parameters of their own, and the ``_dx`` operators of their gradients.

Their numbers (slopes, bounds) are given to the kernel at run time; none is built per value. relu,
gelu, tanh and sigmoid are in `meta/op/unary.py`. Add one here.
"""

from __future__ import annotations

import math
from typing import Any

from meta.base.errors import TypeInferError
from meta.op.core import Scalar, Tensor, TensorType, op
from meta.op.core.check import normalize_axis, require, require_float
from meta.op.core.same_dtype import require_same_dtype


def _floating(x: TensorType) -> TensorType:
    require_float(x, "x")
    return x


def _gradient(x: TensorType, dy: TensorType) -> TensorType:
    """Return the type of a gradient operator's result, that of x."""
    require_float(x, "x")
    require_same_dtype(x, dy)
    require(x.shape == dy.shape, "dy does not match x", expected=str(x), found=str(dy))
    return x


@op
def silu(x: Tensor) -> Tensor:
    """x * sigmoid(x), also called swish. ``x``: floating point of any shape.

    Raises TypeInferError for other dtypes. Source: Hendrycks and Gimpel, "Gaussian Error Linear
    Units", 2016.
    """
    return _floating(x)


@op
def silu_dx(x: Tensor, dy: Tensor) -> Tensor:
    """Gradient of `silu`: dy * s * (1 + x * (1 - s)) with s = sigmoid(x).

    ``x``, ``dy``: argument of the forward call and gradient of its result, floating point, of one
    type, which the result has. Raises TypeInferError for other dtypes or shapes.
    """
    return _gradient(x, dy)


@op
def leaky_relu(x: Tensor, negative_slope: Scalar = 0.01) -> Tensor:
    """x where x > 0, else negative_slope * x. ``x``: floating point of any shape.

    Raises TypeInferError for other dtypes. Source: Maas, Hannun and Ng, 2013.
    """
    return _floating(x)


@op
def leaky_relu_dx(x: Tensor, dy: Tensor, negative_slope: Scalar = 0.01) -> Tensor:
    """Gradient of `leaky_relu`: dy where x > 0, else negative_slope * dy. As `silu_dx`."""
    return _gradient(x, dy)


@op
def elu(x: Tensor, alpha: Scalar = 1.0) -> Tensor:
    """x where x > 0, else alpha * (exp(x) - 1). ``x``: floating point of any shape.

    Raises TypeInferError for other dtypes. Source: Clevert, Unterthiner and Hochreiter, 2015.
    """
    return _floating(x)


@op
def elu_dx(x: Tensor, dy: Tensor, alpha: Scalar = 1.0) -> Tensor:
    """Gradient of `elu`: dy where x > 0, else dy * alpha * exp(x). As `silu_dx`."""
    return _gradient(x, dy)


@op
def softplus(x: Tensor, beta: Scalar = 1.0, threshold: Scalar = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta, without overflow; x where beta * x > threshold.

    ``x``: floating point of any shape. Raises TypeInferError for other dtypes. Source: Glorot,
    Bordes and Bengio, 2011; the threshold is torch's.
    """
    return _floating(x)


@op
def softplus_dx(x: Tensor, dy: Tensor, beta: Scalar = 1.0, threshold: Scalar = 20.0) -> Tensor:
    """Gradient of `softplus`: dy * sigmoid(beta * x); dy beyond the threshold. As `silu_dx`."""
    return _gradient(x, dy)


@op
def hardswish(x: Tensor) -> Tensor:
    """x * min(max(x + 3, 0), 6) / 6. ``x``: floating point of any shape.

    Raises TypeInferError for other dtypes. Source: Howard et al., "Searching for MobileNetV3",
    2019.
    """
    return _floating(x)


@op
def hardswish_dx(x: Tensor, dy: Tensor) -> Tensor:
    """Gradient of `hardswish`: 0 for x <= -3, dy for x >= 3, else dy * (x / 3 + 1/2). As `silu_dx`.

    At the two kinks it is the outer derivative, as torch.
    """
    return _gradient(x, dy)


@op
def prelu(x: Tensor, weight: Tensor) -> Tensor:
    """x where x > 0, else weight * x.

    x: floating point of any shape, channels on axis 1. weight: of x's dtype; one number, 0-d or of
    shape (1,), or one for each channel.
    Raises TypeInferError for other dtypes or another extent. Source: He et al., 2015.
    """
    _floating(x)
    require_same_dtype(x, weight)
    channels = x.shape[1] if x.ndim > 1 else 1
    require(
        weight.shape in ((), (1,), (channels,)),
        "weight does not match x",
        expected=f"shape (), (1,) or ({channels},)",
        found=str(weight),
    )
    return x


@op
def glu(x: Tensor, axis: int = -1) -> Tensor:
    """a * sigmoid(b) with a and b the two halves of x along an axis.

    ``x``: floating point; the axis has an even extent, and half of it in the result.
    Raises TypeInferError for other dtypes, an odd extent or an axis out of range. Source: Dauphin
    et al., "Language modeling with gated convolutional networks", 2017.
    """
    _floating(x)
    at = normalize_axis(axis, x.ndim)
    extent = x.shape[at]
    if not isinstance(extent, int) or extent % 2:
        raise TypeInferError(
            f"axis {at} has no two halves", expected="an even extent", found=str(x)
        )
    return x.with_shape((*x.shape[:at], extent // 2, *x.shape[at + 1 :]))


@op
def threshold(x: Scalar | Tensor, threshold: Scalar = 0.0, value: Scalar = 0.0) -> Tensor:
    """x where x > threshold, else value; a NaN stays.

    ``x``: numbers of any shape and of a dtype that has both numbers; the result has its type.
    Raises TypeInferError for bool.
    """
    if not isinstance(x, TensorType):
        return value if x <= threshold else x  # type: ignore[return-value]
    require(x.dtype != "bool", "bool has no order", expected="a dtype of numbers")
    return x


@op
def threshold_dx(x: Tensor, dy: Tensor, threshold: Scalar = 0.0) -> Tensor:
    """Gradient of `threshold`: 0 where x <= threshold, else dy. As `silu_dx`."""
    return _gradient(x, dy)


@op
def clip(x: Scalar | Tensor, a_min: Scalar, a_max: Scalar) -> Tensor:
    """min(max(x, a_min), a_max); a NaN stays, as does a bound that is one.

    ``x``: numbers of any shape, in whose dtype the result is and the bounds are taken.
    Raises TypeInferError for bool, and for integers with a bound that is a float or out of range.
    """
    if not isinstance(x, TensorType):
        return _clipped(x, a_min, a_max)  # type: ignore[no-any-return]
    require(x.dtype != "bool", "bool has no order", expected="a dtype of numbers")
    require_same_dtype(x, a_min, a_max)
    return x


def _clipped(x: Any, a_min: Any, a_max: Any) -> Any:
    if any(math.isnan(n) for n in (x, a_min, a_max)):
        return math.nan
    return min(max(x, a_min), a_max)


@op
def clip_dx(x: Tensor, dy: Tensor, a_min: Scalar, a_max: Scalar) -> Tensor:
    """Gradient of `clip`: dy where a_min <= x <= a_max, else 0. As `silu_dx`."""
    return _gradient(x, dy)
