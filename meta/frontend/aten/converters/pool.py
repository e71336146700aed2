"""Pooling over windows and regions, its gradients and its reverse.

Places of maxima are computed beside the maxima, and are dead code where nothing reads them. The
gradients of maxima read them, as torch's do; `max_pool_gradient` looks for the maxima again.
"""

from math import prod

from meta import op
from meta.base.dtype import bits, is_float
from meta.frontend.aten.arguments import cast, per_axis
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.grad.core import pullback
from meta.op.core.function import device_of

WINDOW = ("kernel_size", "stride", "padding", "dilation", "ceil_mode")


def _batched(function, n, *tensors):
    """Return a function of tensors with an axis of examples, which they may lack."""
    if len(tensors[0].shape) != n + 1:
        return function(*tensors)
    found = function(*(op.expand_dims(t, 0) for t in tensors))
    if isinstance(found, tuple):
        return tuple(op.squeeze(t, 0) for t in found)
    return op.squeeze(found, 0)


def _floating(x):
    """Return x as floating point, which holds it exactly."""
    if is_float(x.dtype):
        return x
    if bits(x.dtype) > 32:
        raise Unconvertible(f"it is of {x.dtype}, which floating point does not hold exactly")
    return cast(x, "float64")


def _in_floating(pool, x):
    """Return what pooling gives in the dtype of x, and indices if it gives some."""
    found = pool(_floating(x))
    return (cast(found[0], x.dtype), found[1]) if isinstance(found, tuple) else cast(found, x.dtype)


def _window(n, kernel_size, stride, padding):
    return per_axis(kernel_size, n), per_axis(stride or kernel_size, n), per_axis(padding, n)


def _spread(dy, x, indices, n):
    """Return zeros of the type of x, plus dy where indices say, which count within a channel."""
    lead = tuple(x.shape[: len(x.shape) - n])
    flat = (*lead, prod(x.shape[len(lead) :]))
    places = (*lead, prod(dy.shape[len(lead) :]))
    dy, indices = (op.reshape(t, places) for t in (dy, indices))
    found = op.scatter_add(op.zeros(flat, dy.dtype, device_of(dy)), len(lead), indices, dy)
    return op.reshape(found, tuple(x.shape))


def max_pool_gradient(dy, x, y, *, kernel_size, stride, padding, dilation, ceil_mode):
    """Return the gradient of the maxima y of x, which are looked for again."""
    n = len(kernel_size)
    gradient = getattr(op, f"max_pool{n}d_dx")
    window = (kernel_size, stride, padding, dilation, ceil_mode)
    return _batched(lambda x, y, dy: gradient(x, y, dy, *window), n, x, y, dy)


def _max(n):
    pool = getattr(op, f"max_pool{n}d")

    @aten(f"max_pool{n}d", pool)
    def max_pool(x, *, kernel_size, stride, padding, dilation, ceil_mode):
        window = _window(n, kernel_size, stride, padding)
        return _in_floating(lambda x: pool(x, *window, per_axis(dilation, n), ceil_mode), x)

    @aten(f"max_pool{n}d_with_indices", pool)
    def max_pool_with_indices(x, *, kernel_size, stride, padding, dilation, ceil_mode):
        window = _window(n, kernel_size, stride, padding)
        return _in_floating(lambda x: pool(x, *window, per_axis(dilation, n), ceil_mode, True), x)

    if n == 1:
        return

    @aten(f"max_pool{n}d_with_indices_backward", op.scatter_add, ignore=WINDOW)
    def backward(dy, x, indices):
        return _spread(dy, x, indices, n)


def _average(n):
    pool = getattr(op, f"avg_pool{n}d")
    pool_dx = getattr(op, f"avg_pool{n}d_dx")
    names = "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"
    own = () if n == 1 else ("divisor_override",)

    @aten(f"avg_pool{n}d", pool, rest=(*names, *own))
    def avg_pool(x, **options):
        return _averaged(x, **options)

    def _averaged(
        x, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override=None
    ):
        window = _window(n, kernel_size, stride, padding)
        options = (*window, ceil_mode, count_include_pad)
        return _in_floating(lambda x: pool(x, *options, divisor_override=divisor_override), x)

    if n == 1:
        return

    @aten(f"avg_pool{n}d_backward", pool_dx)
    def backward(
        dy, x, *, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override
    ):
        window = _window(n, kernel_size, stride, padding)
        if divisor_override is not None:
            options = (*window, ceil_mode, count_include_pad)
            return pullback(
                lambda x: pool(x, *options, divisor_override=divisor_override), (x,), dy
            )[0]
        options = (*window, 1, ceil_mode, count_include_pad)
        return _batched(lambda x, dy: pool_dx(x, dy, dy, *options), n, x, dy)


def _adaptive(n):
    average, maximum = (getattr(op, f"adaptive_{kind}_pool{n}d") for kind in ("avg", "max"))

    names = [f"adaptive_avg_pool{n}d"] + ([] if n == 1 else [f"_adaptive_avg_pool{n}d"])

    @aten(*names, average)
    def avg_pool(x, *, output_size):
        return average(x, per_axis(output_size, n))

    @aten(f"adaptive_max_pool{n}d", maximum)
    def max_pool(x, *, output_size):
        return maximum(x, per_axis(output_size, n), True)

    if n == 1:
        return
    average_dx = getattr(op, f"{average.name}_dx")

    @aten(f"_adaptive_avg_pool{n}d_backward", average_dx)
    def avg_backward(dy, x):
        return _batched(lambda x, dy: average_dx(x, dy, dy, tuple(dy.shape[2:])), n, x, dy)

    @aten(f"adaptive_max_pool{n}d_backward", op.scatter_add)
    def max_backward(dy, x, indices):
        return _spread(dy, x, indices, n)


def _fractional(n):
    @aten(f"fractional_max_pool{n}d", op.take_along_axis, op.argmax)
    def pool(x, samples, *, kernel_size, output_size):
        def of_batch(x):
            return _fractions(x, samples, per_axis(kernel_size, n), per_axis(output_size, n))

        return _batched(of_batch, n, x)

    @aten(
        f"fractional_max_pool{n}d_backward",
        op.scatter_add,
        ignore=("kernel_size", "output_size"),
    )
    def backward(dy, x, indices):
        return _spread(dy, x, indices, n)


def _fractions(x, samples, kernel, sizes):
    """Return the maximum of each region, and its place.

    Region i of an axis begins at ``int((i + u) * a) - int(u * a)`` with the sample u and
    ``a = (extent - kernel) / (regions - 1)``; the last one is at the end.
    """
    where, n = device_of(x), len(kernel)
    lead, extents = tuple(x.shape[:2]), tuple(x.shape[2:])
    place = op.zeros((1,), "int64", where)
    for axis, (extent, taps, count) in enumerate(zip(extents, kernel, sizes, strict=True)):
        # Of images torch takes the samples from behind, of volumes in order.
        u = samples[:, :, n - 1 - axis if n == 2 else axis]
        begins = op.full((*lead, 1), extent - taps, "int64", where)
        if count > 1:
            step = (extent - taps) / (count - 1)
            u = op.expand_dims(u, 2)
            i = cast(op.arange(0, count - 1, 1, "int64", where), u.dtype)
            first = op.trunc(op.multiply(op.add(i, u), step))
            first = op.subtract(first, op.trunc(op.multiply(u, step)))
            begins = op.concat((cast(first, "int64"), begins), 2)
        before, behind = (1,) * axis, (1,) * (n - 1 - axis)
        begins = op.reshape(begins, (*lead, *before, count, *behind, *(1,) * n))
        tap = op.reshape(op.arange(0, taps, 1, "int64", where), (*before, taps, *behind))
        place = op.add(op.multiply(place, extent), op.add(begins, tap))
    count, taps = prod(sizes), prod(kernel)
    place = op.reshape(place, (*lead, count * taps))
    read = op.take_along_axis(op.reshape(x, (*lead, prod(extents))), place, 2)
    read, place = (op.reshape(t, (*lead, count, taps)) for t in (read, place))
    best = op.argmax(read, 3, True)
    shape = (*lead, *sizes)
    return tuple(op.reshape(op.take_along_axis(t, best, 3), shape) for t in (read, place))


@aten("max_unpool3d", op.scatter, ignore=("stride", "padding"))
@aten("max_unpool2d", op.scatter)
def max_unpool(x, indices, *, output_size):
    return _unpool(x, indices, output_size)


def _unpool(x, indices, output_size):
    n = len(output_size)
    lead = tuple(x.shape[: len(x.shape) - n])
    empty = op.zeros((*lead, prod(output_size)), x.dtype, device_of(x))
    flat = (*lead, prod(x.shape[len(lead) :]))
    y = op.scatter(empty, len(lead), op.reshape(indices, flat), op.reshape(x, flat))
    return op.reshape(y, (*lead, *output_size))


for _n in (1, 2, 3):
    _max(_n)
    _average(_n)
    _adaptive(_n)
_fractional(2)
_fractional(3)
aten.refuse(
    "quantized_max_pool1d",
    "quantized_max_pool2d",
    "quantized_max_pool3d",
    why="its operands are quantised",
)
