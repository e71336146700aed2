"""Gradients of pooling. `sliding` and `adaptive` serve any number of spatial axes."""

from meta import op
from meta.grad.core import gradient, not_differentiable
from meta.op.core.window import DATA, permutation


def _swap(x, layout, to):
    """Return ``x``, of ``layout``, in the order ``to``."""
    return x if layout == to else op.transpose(x, permutation(layout, to, "layout"))


def _in_order(dx_op, x, y, dy, layout, *window):
    order = DATA[x.ndim - 2]
    dx = dx_op(*(_swap(v, layout, order) for v in (x, y, dy)), *window)
    return _swap(dx, order, layout)


def _scatters(max_dx):
    why = "it scatters dy to the maxima; there is no operator that gathers from them"
    not_differentiable(max_dx, why=why)


def sliding(max_pool, max_dx, avg_pool, avg_dx):
    """Register the gradients of the maximum and the mean over windows, and of these gradients."""

    @gradient(max_pool)
    def maximum(x, y, dy, kernel, stride, padding, dilation, ceil_mode, include_pad, layout):
        window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
        return _in_order(max_dx, x, y, dy, layout, *window)

    @gradient(avg_pool)
    def mean(x, y, dy, kernel, stride, padding, dilation, ceil_mode, include_pad, layout):
        window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
        return _in_order(avg_dx, x, y, dy, layout, *window)

    _scatters(max_dx)

    @gradient(avg_dx)
    def mean_dx(dy_, kernel, stride, padding, dilation, ceil_mode, include_pad):
        """dx is linear in dy and depends on nothing else."""
        window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
        ddy = avg_pool(dy_, *window)
        return op.zeros_like(dy_), op.zeros_like(ddy), ddy


def adaptive(max_pool, max_dx, avg_pool, avg_dx):
    """As `sliding`, over regions that cover the input evenly."""

    @gradient(max_pool)
    def maximum(x, y, dy, shape, layout):
        return _in_order(max_dx, x, y, dy, layout, shape)

    @gradient(avg_pool)
    def mean(x, y, dy, shape, layout):
        return _in_order(avg_dx, x, y, dy, layout, shape)

    _scatters(max_dx)

    @gradient(avg_dx)
    def mean_dx(dy_, shape):
        ddy = avg_pool(dy_, shape)
        return op.zeros_like(dy_), op.zeros_like(ddy), ddy


sliding(op.max_pool2d, op.max_pool2d_dx, op.avg_pool2d, op.avg_pool2d_dx)
adaptive(
    op.adaptive_max_pool2d,
    op.adaptive_max_pool2d_dx,
    op.adaptive_avg_pool2d,
    op.adaptive_avg_pool2d_dx,
)
