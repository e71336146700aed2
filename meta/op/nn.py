"""Softmax and bias. The larger groups are apart: `conv.py`, `pool.py`, `norm.py`. Add one here."""

from meta.op.core import Tensor, TensorType, op
from meta.op.core.check import normalize_axis, require, require_float, require_ndim
from meta.op.core.same_dtype import require_same_dtype


def _along(axis: int, x: TensorType) -> TensorType:
    require_float(x, "x")
    normalize_axis(axis, x.ndim)
    return x


def _softmax_gradient(axis: int, y: TensorType, dy: TensorType) -> TensorType:
    require_float(y, "y")
    normalize_axis(axis, y.ndim)
    fits = dy == y or not (dy.is_static and y.is_static)
    require(fits, "dy is not of y's type", expected=y, found=dy)
    return y


@op
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along ``axis``, computed on x - max(x).

    x: floating point, at least one axis. axis: -ndim <= axis < ndim. Result: x's type. Half
    precision is computed in float32.

    Raises TypeInferError for an axis out of range or a dtype that is not floating point.
    """
    return _along(axis, x)


@op(schema=softmax)
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """log(softmax(x)): x - max(x) - log(sum(exp(x - max(x)))) along ``axis``. As `softmax`."""
    return _along(axis, x)


@op
def softmax_dx(y: Tensor, dy: Tensor, axis: int = -1) -> Tensor:
    """Gradient of `softmax`: y * (dy - sum(dy * y)) along ``axis``.

    y: the result. dy: its gradient, of the same type. Result: the same type.
    """
    return _softmax_gradient(axis, y, dy)


@op(schema=softmax_dx)
def log_softmax_dx(y: Tensor, dy: Tensor, axis: int = -1) -> Tensor:
    """Gradient of `log_softmax`: dy - exp(y) * sum(dy) along ``axis``.

    y: the result. dy: its gradient, of the same type. Result: the same type.
    """
    return _softmax_gradient(axis, y, dy)


@op
def bias_add(x: Tensor, bias: Tensor, axis: int = 1) -> Tensor:
    """x plus a bias per index of one axis: ``x + reshape(bias, [1.. C ..1])``.

    x: any dtype. bias: [C] of the same dtype, C = x's extent along ``axis``. Result: x's type.

    Raises TypeInferError if axis, extent or dtype do not fit.
    """
    require_ndim(bias, 1, "bias")
    extent = x.shape[normalize_axis(axis, x.ndim)]
    unknown = not isinstance(extent, int) or not bias.is_static
    require_same_dtype(x, bias)
    require(
        unknown or bias.shape[0] == extent,
        "bias does not fit",
        expected=f"shape [{extent}]",
        found=str(bias),
    )
    return x
