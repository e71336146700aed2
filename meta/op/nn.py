"""Softmax and bias. The larger groups are apart: `conv.py`, `pool.py`, `norm.py`. Add one here."""

from meta.op.core import Tensor, op
from meta.op.core.check import normalize_axis, require, require_float, require_ndim


def _along(axis, *tensors, names):  # type: ignore[no-untyped-def]
    """Return the first tensor's type, after checking it, the axis, and that all types are equal."""
    first = tensors[0]
    require_float(first, names[0])
    normalize_axis(axis, first.ndim)
    for value, name in zip(tensors[1:], names[1:], strict=True):
        fits = value == first or not (value.is_static and first.is_static)
        require(fits, f"{name} is not of {names[0]}'s type", expected=first, found=value)
    return first


@op
def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x) / sum(exp(x)) along ``axis``, computed on x - max(x).

    x: floating point, at least one axis. axis: -ndim <= axis < ndim. Result: x's type. Half
    precision is computed in float32.

    Raises TypeInferError for an axis out of range or a dtype that is not floating point.
    """
    return _along(axis, x, names=("x",))


@op(schema=softmax)
def log_softmax(x: Tensor, axis: int = -1) -> Tensor:
    """log(softmax(x)): x - max(x) - log(sum(exp(x - max(x)))) along ``axis``. As `softmax`."""
    return _along(axis, x, names=("x",))


@op
def softmax_dx(y: Tensor, dy: Tensor, axis: int = -1) -> Tensor:
    """Gradient of `softmax`: y * (dy - sum(dy * y)) along ``axis``.

    y: the result. dy: its gradient, of the same type. Result: the same type.
    """
    return _along(axis, y, dy, names=("y", "dy"))


@op(schema=softmax_dx)
def log_softmax_dx(y: Tensor, dy: Tensor, axis: int = -1) -> Tensor:
    """Gradient of `log_softmax`: dy - exp(y) * sum(dy) along ``axis``.

    y: the result. dy: its gradient, of the same type. Result: the same type.
    """
    return _along(axis, y, dy, names=("y", "dy"))


@op
def bias_add(x: Tensor, bias: Tensor, axis: int = 1) -> Tensor:
    """x plus a bias per index of one axis: ``x + reshape(bias, [1.. C ..1])``.

    x: any dtype. bias: [C] of the same dtype, C = x's extent along ``axis``. Result: x's type.

    Raises TypeInferError if axis, extent or dtype do not fit.
    """
    require_ndim(bias, 1, "bias")
    extent = x.shape[normalize_axis(axis, x.ndim)]
    unknown = not isinstance(extent, int) or not bias.is_static
    require(
        bias.dtype == x.dtype and (unknown or bias.shape[0] == extent),
        "bias does not fit",
        expected=f"{x.dtype}[{extent}]",
        found=str(bias),
    )
    return x
