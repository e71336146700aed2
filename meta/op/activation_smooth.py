"""Activation functions beyond those of `meta/op/activation.py`: the smooth ones and the shrinkages.

All take floating point tensors of any shape and return their type; other dtypes raise
TypeInferError. Numbers (slopes, bounds) are given to the kernel at run time. A function whose
gradient is not short in other operators has a ``_dx`` operator beside it. Add one here.
"""

from __future__ import annotations

from meta.op.core import Scalar, Tensor, TensorType, op
from meta.op.core.check import require, require_float
from meta.op.core.same_dtype import require_same_dtype

# Klambauer et al., 2017, equation 14.
SELU_ALPHA, SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def _activation(x: TensorType) -> TensorType:
    require_float(x, "x")
    return x


@op
def mish(x: Tensor) -> Tensor:
    """x * tanh(log(1 + exp(x))), without overflow. ``x``: floating point of any shape.

    Source: Misra, "Mish: a self regularized non-monotonic activation function", 2019.
    """
    return _activation(x)


@op
def mish_dx(x: Tensor, dy: Tensor) -> Tensor:
    """Gradient of `mish`: dy * (w + x * (1 - w**2) * sigmoid(x)), w = tanh(log(1 + exp(x))).

    ``x``, ``dy``: argument of the forward call and gradient of its result, floating point, of one
    type, which the result has. Raises TypeInferError for other dtypes or shapes.
    """
    require_same_dtype(x, dy)
    require(x.shape == dy.shape, "dy does not match x", expected=str(x), found=str(dy))
    return _activation(x)


@op
def selu(x: Tensor) -> Tensor:
    """scale * x where x > 0, else scale * alpha * (exp(x) - 1). ``x``: floating point.

    scale = 1.0507..., alpha = 1.6732...: they keep the mean 0 and the variance 1 from layer to
    layer. Source: Klambauer et al., "Self-normalizing neural networks", 2017.
    """
    return _activation(x)


@op
def celu(x: Tensor, alpha: Scalar = 1.0) -> Tensor:
    """x where x > 0, else alpha * (exp(x / alpha) - 1). ``x``: floating point; ``alpha`` > 0.

    Source: Barron, "Continuously differentiable exponential linear units", 2017.
    """
    return _activation(x)


@op
def softsign(x: Tensor) -> Tensor:
    """x / (1 + |x|). ``x``: floating point. Source: Turian, Bergstra and Bengio, 2009."""
    return _activation(x)


@op
def tanhshrink(x: Tensor) -> Tensor:
    """x - tanh(x). ``x``: floating point of any shape."""
    return _activation(x)


@op
def logsigmoid(x: Tensor) -> Tensor:
    """log(sigmoid(x)) = -log(1 + exp(-x)), without overflow. ``x``: floating point."""
    return _activation(x)


@op
def hardsigmoid(x: Tensor) -> Tensor:
    """min(max(x + 3, 0), 6) / 6. ``x``: floating point. Source: Howard et al., 2019."""
    return _activation(x)


@op
def relu6(x: Tensor) -> Tensor:
    """min(max(x, 0), 6); a NaN stays. ``x``: floating point of any shape.

    Unlike the gradient of `clip`, its own is 0 at 0 and at 6, as torch.
    """
    return _activation(x)


@op
def softshrink(x: Tensor, lambd: Scalar = 0.5) -> Tensor:
    """x - lambd where x > lambd, x + lambd where x < -lambd, else 0; a NaN stays.

    ``x``: floating point of any shape; ``lambd`` >= 0. Source: Donoho, "De-noising by
    soft-thresholding", 1995.
    """
    return _activation(x)


@op
def hardshrink(x: Tensor, lambd: Scalar = 0.5) -> Tensor:
    """x where |x| > lambd, else 0; a NaN stays. ``x``: floating point; ``lambd`` >= 0."""
    return _activation(x)
