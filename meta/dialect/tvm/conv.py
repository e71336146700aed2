"""Convolutions in tensor expressions, as gathers: no element is written twice.

Every tensor is read and written where it lies, in its own layout; what stands between (a padded
input) has the layout of what it is made of. Half precision accumulates in float32. The functions
serve any number of spatial axes."""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.broadcast import cast, computing
from meta.dialect.tvm.compute import OUT_ELEMWISE_FUSABLE, compute
from meta.dialect.tvm.layout import Ordered, laid_out
from meta.op.core.window import DATA, KERNEL, exchanged, permutation, window


def _padded(x, axes):
    """Return x surrounded by zeros on the spatial axes."""
    if not any(axis.before or axis.after for axis in axes):
        return x
    extents = [axis.before + axis.size + axis.after for axis in axes]

    def element(n, c, *at):
        places = [a - axis.before for a, axis in zip(at, axes, strict=True)]
        value = x(n, c, *places)
        inside = _inside(places, [axis.size for axis in axes])
        return te.if_then_else(inside, value, tirx.const(0, value.ty.dtype))

    return x.like((*x.shape[:2], *extents), element, "padded")


def _inside(places, extents):
    return te.all(*[c for p, e in zip(places, extents, strict=True) for c in (p >= 0, p < e)])


def _tap(axes, at, taps):
    """Return where in the padded input the taps of result ``at`` lie."""
    return [o * a.stride + k * a.dilation for o, k, a in zip(at, taps, axes, strict=True)]


def _reduce_axes(extents, letters, layout):
    """Return reduction axes as ``letters`` name them, and in the order in which ``layout`` does.

    A sum that follows the memory of what it reads can be vectorised.
    """
    axes = [te.reduce_axis((0, extent)) for extent in extents]
    return axes, [axes[letters.index(letter)] for letter in layout if letter in letters]


def _product(a, b, dtype):
    wide = computing(dtype)
    return cast(a, wide) * cast(b, wide)


def _rounded(x, dtype):
    if x.dtype == dtype:
        return x
    return te.compute(x.shape, lambda *i: cast(x(*i), dtype), name="rounded")


def forward(x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout, out):
    """Return the convolution of x with w."""
    data, order = DATA[x.ndim - 2], KERNEL[x.ndim - 2]
    image, kernel = Ordered(x, layout, data), Ordered(w, kernel_layout, order)
    outputs, inputs, *taps = kernel.shape
    axes = window(image.shape[2:], tuple(taps), stride, padding, dilation)
    padded = _padded(image, axes)
    per_group = outputs // groups
    (c, *ks), reduced = _reduce_axes(kernel.shape[1:], order[1:], kernel_layout)

    def element(n, o, *at):
        first = o // per_group * inputs if groups > 1 else 0
        value = padded(n, first + c, *_tap(axes, at, ks))
        return te.sum(_product(value, kernel(o, c, *ks), out.dtype), axis=reduced)

    return _rounded(laid_out(out.shape, element, out_layout, data, "conv"), out.dtype)


def by_input(
    x_or_w, dy, shape, stride, padding, dilation, groups, layout, kernel_layout, out_layout
):
    """Return dx; x_or_w is w.

    Spread dy to the stride, with zeros between and around; then slide over it backwards.
    """
    data, order = DATA[dy.ndim - 2], KERNEL[dy.ndim - 2]
    result, kernel = Ordered(dy, out_layout, data), Ordered(x_or_w, kernel_layout, order)
    outputs, inputs, *taps = kernel.shape
    _, _, *sizes = (shape[a] for a in permutation(layout, data, "layout"))
    axes = window(tuple(sizes), tuple(taps), stride, padding, dilation)
    per_group = outputs // groups

    def spread(n, o, *at):
        origin = [u + a.before - (a.extent - 1) for u, a in zip(at, axes, strict=True)]
        places = [tirx.floordiv(u, a.stride) for u, a in zip(origin, axes, strict=True)]
        conditions = [_inside(places, result.shape[2:])]
        conditions += [tirx.floormod(u, a.stride) == 0 for u, a in zip(origin, axes, strict=True)]
        return te.if_then_else(te.all(*conditions), result(n, o, *places), tirx.const(0, dy.dtype))

    extents = [axis.size + axis.extent - 1 for axis in axes]
    apart = result.like((*result.shape[:2], *extents), spread, "spread")
    letters = order[0] + order[2:]
    (o, *ks), reduced = _reduce_axes((per_group, *taps), letters, kernel_layout)

    def element(n, c, *at):
        output = (c // inputs * per_group if groups > 1 else 0) + o
        back = [a.kernel - 1 - k for k, a in zip(ks, axes, strict=True)]
        places = [u + k * a.dilation for u, k, a in zip(at, back, axes, strict=True)]
        weight = kernel(output, c % inputs if groups > 1 else c, *ks)
        return te.sum(_product(apart(n, output, *places), weight, dy.dtype), axis=reduced)

    return _rounded(laid_out(shape, element, layout, data, "conv_dx"), dy.dtype)


def by_kernel(
    x_or_w, dy, shape, stride, padding, dilation, groups, layout, kernel_layout, out_layout
):
    """Return dw; x_or_w is x."""
    data, order = DATA[dy.ndim - 2], KERNEL[dy.ndim - 2]
    image, result = Ordered(x_or_w, layout, data), Ordered(dy, out_layout, data)
    outputs, inputs, *taps = (shape[a] for a in permutation(kernel_layout, order, "kernel_layout"))
    axes = window(image.shape[2:], tuple(taps), stride, padding, dilation)
    padded = _padded(image, axes)
    per_group = outputs // groups
    images, _, *extents = result.shape
    (n, *at), reduced = _reduce_axes((images, *extents), data[0] + data[2:], out_layout)

    def element(o, c, *taps):
        first = o // per_group * inputs if groups > 1 else 0
        value = padded(n, first + c, *_tap(axes, at, taps))
        return te.sum(_product(value, result(n, o, *at), dy.dtype), axis=reduced)

    return _rounded(laid_out(shape, element, kernel_layout, order, "conv_dw"), dy.dtype)


def convolution(conv, conv_dx, conv_dw):
    """Register the functions of a convolution and of its two gradients."""
    compute(conv, OUT_ELEMWISE_FUSABLE)(forward)
    compute(conv_dx, OUT_ELEMWISE_FUSABLE)(by_input)
    compute(conv_dw, OUT_ELEMWISE_FUSABLE)(by_kernel)


convolution(op.conv1d, op.conv1d_dx, op.conv1d_dw)


convolution(op.conv2d, op.conv2d_dx, op.conv2d_dw)


convolution(op.conv3d, op.conv3d_dx, op.conv3d_dw)


def transposed(conv_transpose, conv_dx, conv_dw):
    """Register the functions of a transposed convolution and of its two gradients: those of
    a convolution with the parts exchanged. x and the result change places, and so do the letters I
    and O of the kernel.
    """

    @compute(conv_transpose, OUT_ELEMWISE_FUSABLE)
    def run(x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout, out):
        window = (stride, padding, dilation, groups)
        layouts = (out_layout, exchanged(kernel_layout), layout)
        return by_input(w, x, out.static_shape, *window, *layouts)

    @compute(conv_dx, OUT_ELEMWISE_FUSABLE)
    def run_dx(
        x_or_w, dy, stride, padding, dilation, groups, layout, kernel_layout, out_layout, out
    ):
        window = (stride, padding, dilation, groups)
        layouts = (out_layout, exchanged(kernel_layout), layout)
        return forward(dy, x_or_w, *window, *layouts, out)

    @compute(conv_dw, OUT_ELEMWISE_FUSABLE)
    def run_dw(
        x_or_w, dy, shape, stride, padding, dilation, groups, layout, kernel_layout, out_layout
    ):
        window = (stride, padding, dilation, groups)
        layouts = (out_layout, exchanged(kernel_layout), layout)
        return by_kernel(dy, x_or_w, shape, *window, *layouts)


transposed(op.conv1d_transpose, op.conv1d_transpose_dx, op.conv1d_transpose_dw)


transposed(op.conv2d_transpose, op.conv2d_transpose_dx, op.conv2d_transpose_dw)


transposed(op.conv3d_transpose, op.conv3d_transpose_dx, op.conv3d_transpose_dw)
