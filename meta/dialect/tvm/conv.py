"""Convolutions in tensor expressions, as gathers: no element is written twice.

Every tensor is read and written where it lies, in its own layout; what stands between (a padded
input) has the layout of what it is made of. Half precision accumulates in float32. The functions
serve any number of spatial axes."""

from collections.abc import Callable
from typing import Any

from tvm import te, tirx

from meta import op
from meta.dialect.core import LIBRARY
from meta.dialect.tvm import direct_conv
from meta.dialect.tvm.broadcast import cast, computing, converted
from meta.dialect.tvm.compute import OUT_ELEMWISE_FUSABLE, compute
from meta.dialect.tvm.layout import Ordered, laid_out
from meta.op.core.window import DATA, KERNEL, layout_permutation, transposed_kernel_layout, window
from meta.op.small_conv import LAYOUTS


def _padded(x, axes, attrs):
    """Return x surrounded by zeros on the spatial axes: a stage, but where loops are by hand."""
    if not any(axis.before or axis.after for axis in axes):
        return x
    extents = [axis.before + axis.size + axis.after for axis in axes]

    def element(n, c, *at):
        places = [a - axis.before for a, axis in zip(at, axes, strict=True)]
        value = x(n, c, *places)
        inside = _inside(places, [axis.size for axis in axes])
        return te.if_then_else(inside, value, tirx.const(0, value.ty.dtype))

    return element if attrs else x.like((*x.shape[:2], *extents), element, "padded")


def _attrs(result, axes, dtype, image, kernel, groups, layouts):
    """Return the annotation of a stage that has loops by hand on the CPU; None of another."""
    served = direct_conv.serves(result, str(dtype), image, kernel, axes, groups, layouts)
    return direct_conv.annotation(result, axes, groups) if served else None


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


def forward(x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout, out):
    """Return the convolution of x with w."""
    data, order = DATA[x.ndim - 2], KERNEL[x.ndim - 2]
    image, kernel = Ordered(x, layout, data), Ordered(w, kernel_layout, order)
    outputs, inputs, *taps = kernel.shape
    axes = window(image.shape[2:], tuple(taps), stride, padding, dilation)
    layouts = layout, kernel_layout, out_layout
    attrs = _attrs(direct_conv.Y, axes, out.dtype, x.shape, w.shape, groups, layouts)
    padded = _padded(image, axes, attrs)
    per_group = outputs // groups
    (c, *ks), reduced = _reduce_axes(kernel.shape[1:], order[1:], kernel_layout)

    def element(n, o, *at):
        first = o // per_group * inputs if groups > 1 else 0
        value = padded(n, first + c, *_tap(axes, at, ks))
        return te.sum(_product(value, kernel(o, c, *ks), out.dtype), axis=reduced)

    found = laid_out(out.shape, element, out_layout, data, "conv", attrs)
    return converted(found, out.dtype, "rounded")


def by_input(
    x_or_w, dy, shape, stride, padding, dilation, groups, layout, kernel_layout, out_layout
):
    """Return dx; x_or_w is w.

    Spread dy to the stride, with zeros between and around; then slide over it backwards.
    """
    data, order = DATA[dy.ndim - 2], KERNEL[dy.ndim - 2]
    result, kernel = Ordered(dy, out_layout, data), Ordered(x_or_w, kernel_layout, order)
    outputs, inputs, *taps = kernel.shape
    _, _, *sizes = (shape[a] for a in layout_permutation(layout, data, "layout"))
    axes = window(tuple(sizes), tuple(taps), stride, padding, dilation)
    layouts = layout, kernel_layout, out_layout
    attrs = _attrs(direct_conv.DX, axes, dy.dtype, shape, x_or_w.shape, groups, layouts)
    per_group = outputs // groups

    def spread(n, o, *at):
        origin = [u + a.before - (a.extent - 1) for u, a in zip(at, axes, strict=True)]
        places = [tirx.floordiv(u, a.stride) for u, a in zip(origin, axes, strict=True)]
        conditions = [_inside(places, result.shape[2:])]
        conditions += [tirx.floormod(u, a.stride) == 0 for u, a in zip(origin, axes, strict=True)]
        return te.if_then_else(te.all(*conditions), result(n, o, *places), tirx.const(0, dy.dtype))

    extents = [size + axis.extent - 1 for size, axis in zip(sizes, axes, strict=True)]
    whole = (*result.shape[:2], *extents)
    apart = spread if attrs else result.like(whole, spread, "spread")
    letters = order[0] + order[2:]
    (o, *ks), reduced = _reduce_axes((per_group, *taps), letters, kernel_layout)

    def element(n, c, *at):
        output = (c // inputs * per_group if groups > 1 else 0) + o
        back = [a.kernel - 1 - k for k, a in zip(ks, axes, strict=True)]
        places = [u + k * a.dilation for u, k, a in zip(at, back, axes, strict=True)]
        weight = kernel(output, c % inputs if groups > 1 else c, *ks)
        return te.sum(_product(apart(n, output, *places), weight, dy.dtype), axis=reduced)

    found = laid_out(shape, element, layout, data, "conv_dx", attrs)
    return converted(found, dy.dtype, "rounded")


def by_kernel(
    x_or_w, dy, shape, stride, padding, dilation, groups, layout, kernel_layout, out_layout
):
    """Return dw; x_or_w is x."""
    data, order = DATA[dy.ndim - 2], KERNEL[dy.ndim - 2]
    image, result = Ordered(x_or_w, layout, data), Ordered(dy, out_layout, data)
    outputs, inputs, *taps = (
        shape[a] for a in layout_permutation(kernel_layout, order, "kernel_layout")
    )
    axes = window(image.shape[2:], tuple(taps), stride, padding, dilation)
    layouts = layout, kernel_layout, out_layout
    attrs = _attrs(direct_conv.DW, axes, dy.dtype, x_or_w.shape, shape, groups, layouts)
    padded = _padded(image, axes, attrs)
    per_group = outputs // groups
    images, _, *extents = result.shape
    (n, *at), reduced = _reduce_axes((images, *extents), data[0] + data[2:], out_layout)

    def element(o, c, *taps):
        first = o // per_group * inputs if groups > 1 else 0
        value = padded(n, first + c, *_tap(axes, at, taps))
        return te.sum(_product(value, result(n, o, *at), dy.dtype), axis=reduced)

    found = laid_out(shape, element, kernel_layout, order, "conv_dw", attrs)
    return converted(found, dy.dtype, "rounded")


def _exchanged(
    stride, padding, dilation, groups, layout, kernel_layout, out_layout, **_
) -> tuple[Any, Any, Any, Any, Any, Any, Any]:
    """Return the attributes of the convolution that a transposed one is, with the parts exchanged:
    x and the result change places, and so do the letters I and O of the kernel.
    """
    return (
        stride,
        padding,
        dilation,
        groups,
        out_layout,
        transposed_kernel_layout(kernel_layout),
        layout,
    )


def transposed(x, w, out, **options):
    """Return the transposed convolution of x with w."""
    return by_input(w, x, out.static_shape, *_exchanged(**options))


def transposed_by_input(x_or_w, dy, out, **options):
    """Return its dx; x_or_w is w."""
    return forward(dy, x_or_w, *_exchanged(**options), out)


def transposed_by_kernel(x_or_w, dy, shape, **options):
    """Return its dw; x_or_w is x."""
    return by_kernel(dy, x_or_w, shape, *_exchanged(**options))


_RESULTS = {op.conv2d: direct_conv.Y, op.conv2d_dx: direct_conv.DX, op.conv2d_dw: direct_conv.DW}


def _level(call):
    """Raise the level of convolutions with loops by hand."""
    a, result = call.args, _RESULTS.get(call.op)
    if call.device.kind != "cpu" or result is None:
        return None
    layouts = a.layout, a.kernel_layout, a.out_layout
    if layouts != LAYOUTS:
        return None
    if result == direct_conv.Y:
        image, kernel = a.x, a.w
    else:
        image, kernel = (call.out, a.x_or_w) if result == direct_conv.DX else (a.x_or_w, call.out)
    sizes, taps = tuple(image.shape[1:3]), tuple(kernel.shape[1:3])
    axes = window(sizes, taps, a.stride, a.padding, a.dilation)
    how = image.shape, kernel.shape, axes, a.groups, layouts
    return LIBRARY + 1 if direct_conv.serves(result, call.out.dtype, *how) else None


_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "conv{}d": forward,
    "conv{}d_dx": by_input,
    "conv{}d_dw": by_kernel,
    "conv_transpose{}d": transposed,
    "conv_transpose{}d_dx": transposed_by_input,
    "conv_transpose{}d_dw": transposed_by_kernel,
}
for _n in (1, 2, 3):
    for _name, _function in _FUNCTIONS.items():
        _op = getattr(op, _name.format(_n))
        compute(_op, OUT_ELEMWISE_FUSABLE, level_of=_level if _n == 2 else None)(_function)
