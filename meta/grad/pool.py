"""Gradients of pooling."""

from meta import op
from meta.grad.core import gradient, not_differentiable
from meta.op.core.window import permutation


def _swap(x, layout, to):
    """Return ``x``, of ``layout``, in the order ``to``."""
    return x if layout == to else op.transpose(x, permutation(layout, to, "layout"))


def _nchw(dx_op, x, y, dy, layout, *window):
    dx = dx_op(*(_swap(v, layout, "NCHW") for v in (x, y, dy)), *window)
    return _swap(dx, "NCHW", layout)


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
def avg_pool2d_dx(dy_, kernel, stride, padding, dilation, ceil_mode, include_pad):
    """dx is linear in dy and depends on nothing else."""
    window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
    return None, None, op.avg_pool2d(dy_, *window)


@gradient(op.adaptive_avg_pool2d_dx)
def adaptive_avg_pool2d_dx(dy_, shape):
    return None, None, op.adaptive_avg_pool2d(dy_, shape)
