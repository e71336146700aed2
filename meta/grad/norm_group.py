"""Gradients of the normalisation of groups of channels, and of these gradients."""

from meta import op
from meta.grad.core import gradient, second_gradient
from meta.ir.types import TensorType
from meta.op.norm import statistics_dtype


def _cast(x, dtype):
    return x if x.dtype == dtype else op.cast(x, dtype)


def _gradients(x, num_groups, scale, bias, dy, eps):
    """Return the gradients by slot: x, scale, bias."""
    found = op.group_norm_dx(x, num_groups, scale, dy, eps)
    dx, dscale, dbias = (found, None, None) if scale is None else found
    if bias is None:
        return dx, dscale, None
    if dbias is None:
        dbias = op.sum(_cast(dy, statistics_dtype(dy.dtype)), 1, 0, True)
    return dx, dscale, _cast(dbias, bias.dtype)


@gradient(op.group_norm)
def group_norm(x, num_groups, scale, bias: TensorType, dy, eps):
    return _gradients(x, num_groups, scale, bias, dy, eps)


@gradient(op.instance_norm)
def instance_norm(x, scale, bias: TensorType, dy, eps):
    # Without channels there is nothing to divide into groups: one group of none.
    return _gradients(x, max(x.shape[1], 1), scale, bias, dy, eps)


@gradient(op.group_norm_dx)
def group_norm_dx(x, num_groups, scale, dy, dy_, eps):
    wide, shape, extents = statistics_dtype(x.dtype), tuple(x.shape), tuple(x.shape[2:])
    size = shape[1] // num_groups
    grouped = (shape[0], num_groups, size, *extents)
    lifted = (1, num_groups, size) + (1,) * len(extents)
    u, u_scale, u_bias = (dy_, None, None) if scale is None else dy_
    data, slope, u = (op.reshape(_cast(t, wide), grouped) for t in (x, dy, u))
    w, u_scale, u_bias = (
        None if t is None else op.reshape(_cast(t, wide), lifted) for t in (scale, u_scale, u_bias)
    )
    axes = tuple(range(2, len(grouped)))
    by_x, by_scale, by_dy = second_gradient(data, w, slope, u, u_scale, u_bias, axes, eps)
    if scale is not None:
        by_scale = op.reshape(op.sum(by_scale, (1, 2), 0, True), scale.shape)
        by_scale = _cast(by_scale, scale.dtype)
    by_x, by_dy = (_cast(op.reshape(t, shape), x.dtype) for t in (by_x, by_dy))
    return by_x, None if scale is None else by_scale, by_dy
