"""Gradients of the normalisation by the root mean square, and of these gradients."""

from meta import op
from meta.grad.core import gradient, second_gradient
from meta.ir.types import TensorType
from meta.op.core.check import normalize_axis
from meta.op.norm import statistics_dtype


def _cast(x, dtype):
    return x if x.dtype == dtype else op.cast(x, dtype)


@gradient(op.rms_norm)
def rms_norm(x, scale, bias: TensorType, dy, axis, eps):
    found = op.rms_norm_dx(x, scale, dy, axis, eps)
    dx, dscale = (found, None) if scale is None else found
    if bias is None:
        return dx, dscale, None
    dbias = op.sum(_cast(dy, statistics_dtype(dy.dtype)), axis, 0, True)
    return dx, dscale, _cast(dbias, bias.dtype)


@gradient(op.rms_norm_dx)
def rms_norm_dx(x, scale, dy, dy_, axis, eps):
    wide, axis = statistics_dtype(x.dtype), normalize_axis(axis, x.ndim)
    lifted = tuple(-1 if i == axis else 1 for i in range(x.ndim))
    u, u_scale = (dy_, None) if scale is None else dy_
    w, u_scale = (
        None if t is None else op.reshape(_cast(t, wide), lifted) for t in (scale, u_scale)
    )
    data, slope, u = (_cast(t, wide) for t in (x, dy, u))
    by_x, by_scale, by_dy = second_gradient(data, w, slope, u, u_scale, None, (axis,), eps, False)
    if scale is not None:
        by_scale = _cast(op.sum(by_scale, axis, 0, True), scale.dtype)
    return _cast(by_x, x.dtype), None if scale is None else by_scale, _cast(by_dy, dy.dtype)
