"""Gradients of pooling."""

from meta import op
from meta.grad.conv import swap
from meta.grad.core import gradient, not_differentiable


def _nchw(dx_op, x, y, dy, layout, *window):
    dx = dx_op(*(swap(v, layout, "NCHW") for v in (x, y, dy)), *window)
    return swap(dx, "NCHW", layout)


@gradient(op.max_pool2d)
def max_pool2d(x, y, dy, kernel, stride, padding, dilation, ceil_mode, include_pad, layout):
    window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
    return _nchw(op.max_pool2d_dx, x, y, dy, layout, *window)


@gradient(op.avg_pool2d)
def avg_pool2d(x, y, dy, kernel, stride, padding, dilation, ceil_mode, include_pad, layout):
    window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
    return _nchw(op.avg_pool2d_dx, x, y, dy, layout, *window)


@gradient(op.adaptive_max_pool2d)
def adaptive_max_pool2d(x, y, dy, shape, layout):
    return _nchw(op.adaptive_max_pool2d_dx, x, y, dy, layout, shape)


@gradient(op.adaptive_avg_pool2d)
def adaptive_avg_pool2d(x, y, dy, shape, layout):
    return _nchw(op.adaptive_avg_pool2d_dx, x, y, dy, layout, shape)


not_differentiable(
    op.max_pool2d_dx,
    op.adaptive_max_pool2d_dx,
    why="it scatters dy to the maxima; there is no operator that gathers from them",
)


@gradient(op.avg_pool2d_dx)
def avg_pool2d_dx(x, y, dy_, kernel, stride, padding, dilation, ceil_mode, include_pad):
    """dx is linear in dy and depends on nothing else."""
    window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
    return op.zeros_like(x), op.zeros_like(y), op.avg_pool2d(dy_, *window)


@gradient(op.adaptive_avg_pool2d_dx)
def adaptive_avg_pool2d_dx(x, y, dy_, shape):
    return op.zeros_like(x), op.zeros_like(y), op.adaptive_avg_pool2d(dy_, shape)
