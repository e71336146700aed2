"""Normalisation by the root mean square. See `norm.py` for the precision of parameters."""

from meta.op.core import Tensor, TensorType, op
from meta.op.core.check import normalize_axis, require, require_float
from meta.op.norm import check_parameters


def _along(x: TensorType, axis: int, **parameters: TensorType | None) -> None:
    """Check x, the axis and the tensors that go with it."""
    require_float(x, "x")
    check_parameters(x, x.shape[normalize_axis(axis, x.ndim)], parameters)


@op
def rms_norm(
    x: Tensor,
    scale: Tensor | None = None,
    bias: Tensor | None = None,
    axis: int = -1,
    eps: float = 1e-6,
) -> Tensor:
    """Divide by the root mean square along one axis: ``x / sqrt(mean(x²) + eps) * scale + bias``.

    Zhang and Sennrich, arXiv:1910.07467. Half precision is computed in float32 and rounded once.

    x: floating point. scale, bias: one dimension of x's extent along ``axis``, of x's dtype, or
    float32 where x is half; left out 1 and 0. Result: x's type.

    Raises TypeInferError if axis, a shape or a dtype does not fit.
    """
    _along(x, axis, scale=scale, bias=bias)
    return x


@op
def rms_norm_dx(
    x: Tensor, scale: Tensor | None, dy: Tensor, axis: int = -1, eps: float = 1e-6
) -> TensorType | tuple[TensorType, TensorType]:
    """Gradients of `rms_norm`: dx alone if ``scale`` is None, else (dx, dscale).

    With inv = 1 / sqrt(mean(x²) + eps), xhat = x * inv and g = dy * scale:
    ``dx = inv * (g - xhat * mean(g * xhat))`` along ``axis``, and over the other axes
    ``dscale = sum(dy * xhat)``. dx has x's type, dscale has scale's.
    """
    _along(x, axis, scale=scale)
    require(dy == x or not dy.is_static, "dy is not of x's type", expected=x, found=dy)
    return x if scale is None else (x, scale)
