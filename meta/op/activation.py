"""Activation functions and softmax, and the ``_dx`` operators of their gradients.

They take floating point tensors of any shape; relu, gelu, tanh and sigmoid take integers, too.
Other dtypes raise TypeInferError. Slopes and bounds are arguments of the kernel, so no value of
them compiles one. A function whose gradient is not short in other operators has a ``_dx`` operator
beside it. Add one without arguments to `FUNCTIONS`, another one as a function.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from meta.base.errors import TypeInferError
from meta.base.number import integer_range
from meta.base.registry import OPERATORS
from meta.op.core import Op, Scalar, Tensor, TensorType, Weight, op
from meta.op.core.axes import Args, Axes, along, labels_of
from meta.op.core.check import (
    normalize_axis,
    require,
    require_float,
    require_like,
    require_same_dtype,
)
from meta.op.core.elementwise import (
    define_real,
    floating,
    gradient,
    gradient_by_x_or_y,
    same,
    with_docstring,
)
from meta.op.core.function import as_operand
from meta.op.core.names import EVERYWHERE, NO_NAMES, Names


def _floating(x: TensorType) -> TensorType:
    require_float(x, "x")
    return x


def _of_x(x: TensorType, dy: TensorType) -> TensorType:
    """Return the type of a gradient operator's result, that of x."""
    require_float(x, "x")
    require_same_dtype(x, dy)
    require(x.shape == dy.shape, "dy does not match x", expected=str(x), found=str(dy))
    return x


FUNCTIONS = {
    "silu": "x * sigmoid(x), also called swish. Source: Hendrycks and Gimpel, 2016.",
    "hardswish": "x * min(max(x + 3, 0), 6) / 6. Source: Howard et al., MobileNetV3, 2019.",
    "mish": "x * tanh(log(1 + exp(x))), without overflow. Source: Misra, 2019.",
    "selu": "scale * x where x > 0, else scale * alpha * (exp(x) - 1), with scale = 1.0507... and "
    "alpha = 1.6732...\n\nThey keep the mean 0 and the variance 1 from layer to layer. Source: "
    "Klambauer et al., 2017.",
    "softsign": "x / (1 + |x|). Source: Turian, Bergstra and Bengio, 2009.",
    "tanhshrink": "x - tanh(x).",
    "logsigmoid": "log(sigmoid(x)) = -log(1 + exp(-x)), without overflow.",
    "hardsigmoid": "min(max(x + 3, 0), 6) / 6. Source: Howard et al., 2019.",
    "relu6": "min(max(x, 0), 6); a NaN stays.\n\nUnlike the gradient of `clip`, its own is 0 at 0 "
    "and at 6, as torch.",
}
"""Functions without arguments, by what they are."""
NAMES = {"hardswish": Names(onnx="HardSwish"), "mish": Names("onnx"), "softsign": Names("onnx")}
# Klambauer et al., 2017, equation 14.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _define(name: str, what: str) -> Op:
    @op(name=name, elementwise=True, names=NAMES.get(name, NO_NAMES))
    @with_docstring(
        f"{what}\n\n``x``: floating point of any shape. Raises TypeInferError for other dtypes."
    )
    def function(x: Tensor) -> Tensor:
        return _floating(x)

    return function


DEFINED = {name: _define(name, what) for name, what in FUNCTIONS.items()}


@op(elementwise=True)
def leaky_relu(x: Tensor, negative_slope: Scalar = 0.01) -> Tensor:
    """x where x > 0, else negative_slope * x. ``x``: floating point of any shape.

    Raises TypeInferError for other dtypes. Source: Maas, Hannun and Ng, 2013.
    """
    return _floating(x)


@op(elementwise=True, names=Names("onnx"))
def elu(x: Tensor, alpha: Scalar = 1.0) -> Tensor:
    """x where x > 0, else alpha * (exp(x) - 1). ``x``: floating point of any shape.

    Raises TypeInferError for other dtypes. Source: Clevert, Unterthiner and Hochreiter, 2015.
    """
    return _floating(x)


@op(elementwise=True, names=Names("onnx"))
def softplus(x: Tensor, beta: Scalar = 1.0, threshold: Scalar = 20.0) -> Tensor:
    """log(1 + exp(beta * x)) / beta, without overflow; x where beta * x > threshold.

    ``x``: floating point of any shape. Raises TypeInferError for other dtypes. Source: Glorot,
    Bordes and Bengio, 2011; the threshold is torch's.
    """
    return _floating(x)


def _channel_axes(args: Args) -> Iterable[Axes]:
    labels = labels_of(args["x"].ndim)
    own = args["weight"].shape not in ((), (1,)) and len(labels) > 1
    return (Axes({"x": labels, "weight": labels[1:2]} if own else {"x": labels}, (labels,)),)


@op(axes=_channel_axes)
def prelu(x: Tensor, weight: Weight) -> Tensor:
    """x where x > 0, else weight * x.

    x: floating point of any shape, channels on axis 1. weight: of x's dtype; one number, 0-d or of
    shape (1,), or one for each channel.
    Raises TypeInferError for other dtypes or another extent. Source: He et al., 2015.
    """
    _floating(x)
    require_same_dtype(x, weight)
    channels = x.shape[1] if x.ndim > 1 else 1
    fits = weight.shape in ((), (1,), (channels,))
    expected = f"shape (), (1,) or ({channels},)"
    require(fits, "weight does not match x", expected=expected, found=str(weight))
    return x


@op(axes=along("x"))
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


@op(elementwise=True)
def threshold(x: Scalar | Tensor, threshold: Scalar = 0.0, value: Scalar = 0.0) -> Tensor:
    """x where x > threshold, else value; a NaN stays.

    ``x``: numbers of any shape and of a dtype that has both numbers; the result has its type.
    Raises TypeInferError for bool.
    """
    if not isinstance(x, TensorType):
        return value if x <= threshold else x  # type: ignore[return-value]
    require(x.dtype != "bool", "bool has no order", expected="a dtype of numbers")
    return x


@op(elementwise=True)
def threshold_dx(x: Tensor, dy: Tensor, threshold: Scalar = 0.0) -> Tensor:
    """Gradient of `threshold`: 0 where x <= threshold, else dy. As `silu_dx`."""
    return _of_x(x, dy)


@op(elementwise=True, composed=True, promotes=("x", "min", "max"))
def clip(x: Scalar | Tensor, min: Scalar, max: Scalar) -> Tensor:
    """x, but at least ``min`` and at most ``max``; a NaN stays, as does a bound that is one.

    In a call one bound may be left out, or None. Where max < min the result is max.

    ``x``: numbers of any shape, in whose dtype the result is and the bounds are taken.
    Raises TypeInferError for bool, and for integers with a bound that is a float or out of range.
    """
    if not isinstance(x, TensorType):
        return _clipped(x, min, max)  # type: ignore[no-any-return]
    require(x.dtype != "bool", "bool has no order", expected="a dtype of numbers")
    require_same_dtype(x, min, max)
    return x


def _clipped(x: Any, low: Any, high: Any) -> Any:
    if any(math.isnan(n) for n in (x, low, high)):
        return math.nan
    return min(max(x, low), high)


@clip.calls
def _clip(x: Any, min: Any = None, max: Any = None) -> Any:
    if min is not None and max is not None:
        return clip.plain(x, min, max)
    if min is None and max is None:
        raise TypeInferError("clip has no bounds", op="clip", expected="min, max or both")
    if isinstance(x, bool | int | float):
        least, most = -math.inf, math.inf
    else:
        x = as_operand(x)
        require(x.dtype != "bool", "bool has no order", expected="a dtype of numbers")
        if x.dtype == "uint64" and max is None:
            return OPERATORS["maximum"](x, min)  # its largest number is no argument
        least, most = integer_range(x.dtype) or (-math.inf, math.inf)
    return clip.plain(x, least if min is None else min, most if max is None else max)


@op(elementwise=True, names=Names("onnx"))
def celu(x: Tensor, alpha: Scalar = 1.0) -> Tensor:
    """x where x > 0, else alpha * (exp(x / alpha) - 1). ``x``: floating point; ``alpha`` > 0.

    Source: Barron, "Continuously differentiable exponential linear units", 2017.
    """
    return _floating(x)


@op(elementwise=True)
def softshrink(x: Tensor, lambd: Scalar = 0.5) -> Tensor:
    """x - lambd where x > lambd, x + lambd where x < -lambd, else 0; a NaN stays.

    ``x``: floating point of any shape; ``lambd`` >= 0. Source: Donoho, "De-noising by
    soft-thresholding", 1995.
    """
    return _floating(x)


@op(elementwise=True)
def hardshrink(x: Tensor, lambd: Scalar = 0.5) -> Tensor:
    """x where |x| > lambd, else 0; a NaN stays. ``x``: floating point; ``lambd`` >= 0."""
    return _floating(x)


@op(axes=along("x"))
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along ``axis``, computed on x - max(x).

    x: floating point, at least one axis. axis: -ndim <= axis < ndim. Result: x's type. Half
    precision is computed in float32.

    Raises TypeInferError for an axis out of range or a dtype that is not floating point.
    """
    require_float(x, "x")
    normalize_axis(axis, x.ndim)
    return x


@op(like=softmax)
def log_softmax() -> None:
    """log(softmax(x)): x - max(x) - log(sum(exp(x - max(x)))) along ``axis``. As `softmax`."""


@op(axes=along("y", "dy"))
def softmax_dx(y: Tensor, dy: Tensor, axis: int = -1) -> Tensor:
    """Gradient of `softmax`: y * (dy - sum(dy * y)) along ``axis``.

    y: the result. dy: its gradient, of the same type. Result: the same type.
    """
    require_float(y, "y")
    normalize_axis(axis, y.ndim)
    require_like(dy, y, "dy is not of y's type")
    return y


@op(like=softmax_dx)
def log_softmax_dx() -> None:
    """Gradient of `log_softmax`: dy - exp(y) * sum(dy) along ``axis``.

    y: the result. dy: its gradient, of the same type. Result: the same type.
    """


@op(elementwise=True, names=Names("onnx"))
def relu(x: Scalar | Tensor) -> Tensor:
    """max(x, 0), elementwise.

    ``x``: any shape and dtype. The result has its type; a NaN stays a NaN.
    """
    return same(lambda n: n if n != n else max(n, type(n)(0)), x)


def _gelu(n: Any, approximate: str) -> Any:
    if approximate == "none":
        return n * (1 + math.erf(n / math.sqrt(2))) / 2
    return n * (1 + math.tanh(math.sqrt(2 / math.pi) * (n + 0.044715 * n**3))) / 2


def _require_form(approximate: str) -> None:
    fits = approximate in ("none", "tanh")
    expected = 'approximate "none" or "tanh"'
    require(fits, "unknown form of gelu", expected=expected, found=approximate)


@op(elementwise=True, names=Names("onnx"))
def gelu(x: Scalar | Tensor, approximate: str = "none") -> Tensor:
    """Gaussian error linear unit: x * (1 + erf(x / sqrt(2))) / 2.

    ``x``: any shape. The result has its dtype; of an integer or bool tensor it is float32.
    ``approximate``: "none" for the exact form, or "tanh" for the approximation
    x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x**3))) / 2. Raises TypeInferError for another.
    Source: Hendrycks and Gimpel, "Gaussian Error Linear Units", 2016.
    """
    _require_form(approximate)
    return floating(lambda n: _gelu(n, approximate), x)


tanh = define_real("tanh", np.tanh, "Hyperbolic tangent.", EVERYWHERE, complex=True)
sigmoid = define_real(
    "sigmoid",
    lambda n: 1 / (1 + np.exp(-n)),
    "1 / (1 + exp(-x)), without overflow.",
    Names("onnx relax relay"),
)


@op(elementwise=True)
def gelu_dx(x: Tensor | None, y: Tensor | None, dy: Tensor, approximate: str = "none") -> Tensor:
    """Gradient of `gelu`: dy * (P(x) + x * p(x)), P and p the normal distribution and density.

    ``x``: argument of the forward call, needed. ``y``: its result, not used, may be None. ``dy``:
    gradient of the result. All floating, of one type, which the result has.
    ``approximate``: as in `gelu`; the derivative of that form.
    Raises TypeInferError if x is None, the types differ or the form is unknown.
    """
    _require_form(approximate)
    return gradient(x, y, dy, use_y=False)


GRADIENTS = {
    DEFINED["silu"]: "dy * s * (1 + x * (1 - s)) with s = sigmoid(x)",
    DEFINED["hardswish"]: "0 for x <= -3, dy for x >= 3, else dy * (x / 3 + 1/2), at both kinks "
    "the outer derivative",
    DEFINED["mish"]: "dy * (w + x * (1 - w**2) * sigmoid(x)), w = tanh(log(1 + exp(x)))",
    leaky_relu: "dy where x > 0, else negative_slope * dy",
    elu: "dy where x > 0, else dy * alpha * exp(x)",
    softplus: "dy * sigmoid(beta * x); dy beyond the threshold",
    clip: "dy where min <= x <= max, else 0",
}
"""Formulas of gradients by x that are operators, with the numbers of the forward ones."""


def _define_gradient(forward: Op, formula: str) -> None:
    @op(name=f"{forward.name}_dx", elementwise=True, options=forward)
    @with_docstring(
        f"Gradient of `{forward.name}`: {formula}.\n\n``x``, ``dy``: argument of the forward call "
        "and gradient of its result, floating point, of one type, which the result has. Other "
        "arguments as there. Raises TypeInferError for other dtypes or shapes."
    )
    def function(x: Tensor, dy: Tensor, *options: Any) -> Tensor:
        return _of_x(x, dy)


for _forward, _formula in GRADIENTS.items():
    _define_gradient(_forward, _formula)
relu_dx = gradient_by_x_or_y(
    relu, "0 where y <= 0 (equivalently x <= 0), else dy: also where y is NaN"
)
tanh_dx = gradient_by_x_or_y(tanh, "dy * (1 - y**2)")
sigmoid_dx = gradient_by_x_or_y(sigmoid, "dy * y * (1 - y)")
