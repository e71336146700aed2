"""Gradients of pooling. `sliding` and `adaptive` serve any number of spatial axes."""

import itertools

from meta import op
from meta.grad.core import gradient
from meta.op.core.window import DATA, permutation, window


def _in_order(x, layout):
    """Return ``x``, of ``layout``, in the order of `DATA`."""
    order = DATA[x.ndim - 2]
    return x if layout in (None, order) else op.transpose(x, permutation(layout, order, "layout"))


def _laid_out(x, layout):
    """Return ``x``, in the order of `DATA`, in ``layout``."""
    order = DATA[x.ndim - 2]
    return x if layout in (None, order) else op.transpose(x, permutation(order, layout, "layout"))


def _first_maxima(x, values):
    """Return the elements of ``values`` at the first maxima of ``x`` along axis 0."""
    best = op.argmax(x, 0, True)
    return op.squeeze(op.gather(values, 0, best), 0)


def _windows(x, axes, fill):
    """Return what each window reads, ``fill`` outside: [elements of a window, N, C, windows..]."""
    sides, short = [0] * 4, []
    for axis in axes:
        needed = (axis.out - 1) * axis.stride + axis.extent
        sides += [axis.before, max(needed - axis.size - axis.before, 0)]
        short.append((axis.out - 1) * axis.stride + 1)
    padded = op.pad(x, tuple(sides), fill)
    steps = (1, 1, *(axis.stride for axis in axes))
    parts = []
    for at in itertools.product(*(range(axis.kernel) for axis in axes)):
        begin = [k * axis.dilation for k, axis in zip(at, axes, strict=True)]
        end = [b + extent for b, extent in zip(begin, short, strict=True)]
        parts.append(op.strided_slice(padded, (0, 0, *begin), (*x.shape[:2], *end), steps))
    return op.stack(tuple(parts), 0)


def _region(x, begin, end):
    """Return one region of an adaptive pooling: [elements, N, C]."""
    part = op.strided_slice(x, (0, 0, *begin), (*x.shape[:2], *end))
    part = op.reshape(part, (*x.shape[:2], -1))
    return op.transpose(part, (2, 0, 1))


def sliding(max_pool, max_dx, avg_pool, avg_dx):
    """Register the gradients of the maximum and the mean over windows, and of these gradients."""

    @gradient(max_pool)
    def maximum(x, y, dy, kernel, stride, padding, dilation, ceil_mode, include_pad, layout):
        window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
        return max_dx(x, y, dy, *window, layout)

    @gradient(avg_pool)
    def mean(x, y, dy, kernel, stride, padding, dilation, ceil_mode, include_pad, layout):
        window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
        return avg_dx(x, y, dy, *window, layout)

    @gradient(max_dx)
    def maximum_dx(x, y, dy_, kernel, stride, padding, dilation, ceil_mode, layout):
        """dx is linear in dy, which it scatters; read back, each window's maximum is where it was.

        Piecewise constant in x.
        """
        image, slope = _in_order(x, layout), _in_order(dy_, layout)
        axes = window(image.shape[2:], kernel, stride, padding, dilation, ceil_mode)
        read = _first_maxima(_windows(image, axes, float("-inf")), _windows(slope, axes, 0.0))
        return op.zeros_like(x), op.zeros_like(y), _laid_out(read, layout)

    @gradient(avg_dx)
    def mean_dx(dy_, kernel, stride, padding, dilation, ceil_mode, include_pad, layout):
        """dx is linear in dy and depends on nothing else."""
        window = (kernel, stride, padding, dilation, ceil_mode, include_pad)
        ddy = avg_pool(dy_, *window, layout or DATA[dy_.ndim - 2])
        return op.zeros_like(dy_), op.zeros_like(ddy), ddy


def adaptive(max_pool, max_dx, avg_pool, avg_dx):
    """As `sliding`, over regions that cover the input evenly."""

    @gradient(max_pool)
    def maximum(x, y, dy, shape, layout):
        return max_dx(x, y, dy, shape, layout)

    @gradient(avg_pool)
    def mean(x, y, dy, shape, layout):
        return avg_dx(x, y, dy, shape, layout)

    @gradient(max_dx)
    def maximum_dx(x, y, dy_, shape, layout):
        """As of `sliding`, region by region."""
        image, best, slope = (_in_order(t, layout) for t in (x, y, dy_))
        edges = [
            [(i * size // n, -(-(i + 1) * size // n)) for i in range(n)]
            for size, n in zip(image.shape[2:], best.shape[2:], strict=True)
        ]
        read = []
        for region in itertools.product(*edges):
            begin, end = zip(*region, strict=True)
            read.append(_first_maxima(_region(image, begin, end), _region(slope, begin, end)))
        found = op.reshape(op.stack(tuple(read), 2), best.shape)
        return op.zeros_like(x), op.zeros_like(y), _laid_out(found, layout)

    @gradient(avg_dx)
    def mean_dx(dy_, shape, layout):
        ddy = avg_pool(dy_, shape, layout or DATA[dy_.ndim - 2])
        return op.zeros_like(dy_), op.zeros_like(ddy), ddy


for _n in (1, 2, 3):
    _names = f"max_pool{_n}d", f"max_pool{_n}d_dx", f"avg_pool{_n}d", f"avg_pool{_n}d_dx"
    sliding(*(getattr(op, name) for name in _names))
    adaptive(*(getattr(op, f"adaptive_{name}") for name in _names))
