"""Gradients of pooling over any number of spatial axes."""

import itertools

from meta import op
from meta.grad.core import gradient, gradients
from meta.op.core.window import DATA, layout_permutation, window


def _from_layout(x, layout):
    """Return ``x``, of ``layout``, in the order of `DATA`."""
    order = DATA[x.ndim - 2]
    return x if layout == order else op.permute_dims(x, layout_permutation(layout, order, "layout"))


def _to_layout(x, layout):
    """Return ``x``, in the order of `DATA`, in ``layout``."""
    order = DATA[x.ndim - 2]
    return x if layout == order else op.permute_dims(x, layout_permutation(order, layout, "layout"))


def _first_maxima(x, values):
    """Return the elements of ``values`` at the first maxima of ``x`` along axis 0."""
    best = op.argmax(x, 0, True)
    return op.squeeze(op.take_along_axis(values, best, 0), 0)


def _windows(x, axes, fill):
    """Return what each window reads, ``fill`` outside: [elements of a window, N, C, windows..]."""
    sides, short = [0] * 4, []
    for axis in axes:
        needed = (axis.out - 1) * axis.stride + axis.extent
        sides += [axis.before, max(needed - axis.size - axis.before, 0)]
        short.append((axis.out - 1) * axis.stride + 1)
    padded = op.pad.plain(x, tuple(sides), fill)
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
    return op.permute_dims(part, (2, 0, 1))


@gradient(op.max_pool1d_dx, op.max_pool2d_dx, op.max_pool3d_dx)
def max_pool_dx(x, y, dy_, kernel, stride, padding, dilation, ceil_mode, layout):
    """dx is linear in dy, which it scatters; read back, each window's maximum is where it was.

    Piecewise constant in x.
    """
    image, slope = _from_layout(x, layout), _from_layout(dy_, layout)
    axes = window(image.shape[2:], kernel, stride, padding, dilation, ceil_mode)
    read = _first_maxima(_windows(image, axes, float("-inf")), _windows(slope, axes, 0.0))
    return op.zeros_like(x), op.zeros_like(y), _to_layout(read, layout)


@gradient(op.adaptive_max_pool1d_dx, op.adaptive_max_pool2d_dx, op.adaptive_max_pool3d_dx)
def adaptive_max_pool_dx(x, y, dy_, shape, layout):
    """As of `max_pool_dx`, over regions that cover the input evenly."""
    image, best, slope = (_from_layout(t, layout) for t in (x, y, dy_))
    edges = [
        [(i * size // n, -(-(i + 1) * size // n)) for i in range(n)]
        for size, n in zip(image.shape[2:], best.shape[2:], strict=True)
    ]
    read = []
    for region in itertools.product(*edges):
        begin, end = zip(*region, strict=True)
        read.append(_first_maxima(_region(image, begin, end), _region(slope, begin, end)))
    found = op.reshape(op.stack(tuple(read), 2), best.shape)
    return op.zeros_like(x), op.zeros_like(y), _to_layout(found, layout)


def _pooling(max_pool, max_dx, avg_pool, avg_dx):
    """Register the gradients of the maximum and the mean, and of the mean's gradient."""

    gradients(
        {
            max_pool: lambda x, y, dy, *options: max_dx(x, y, dy, *options),
            avg_pool: lambda x, y, dy, *options: avg_dx(x, y, dy, *options),
        }
    )

    @gradient(avg_dx)
    def mean_dx(dy_, *options):
        """Linear in dy; it depends on nothing else."""
        ddy = avg_pool.plain(dy_, *options)
        return op.zeros_like(dy_), op.zeros_like(ddy), ddy


for _kind in ("", "adaptive_"):
    for _n in (1, 2, 3):
        _max, _avg = f"{_kind}max_pool{_n}d", f"{_kind}avg_pool{_n}d"
        _pooling(*(getattr(op, name) for name in (_max, f"{_max}_dx", _avg, f"{_avg}_dx")))
