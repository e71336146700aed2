"""Convolutions in tensor expressions, as gathers: no element is written twice.

Half precision accumulates in float32. The functions serve any number of spatial axes; `conv_1d.py`
and `conv_3d.py` register them too.
"""

from tvm import te, tirx

from meta import op
from meta.dialect.tvm.compute import OUT_ELEMWISE_FUSABLE, compute
from meta.dialect.tvm.elementwise import cast, computing
from meta.op.core.window import DATA, KERNEL, permutation, window


def in_order(x, layout, canonical):
    """Return x as a function of an index in ``canonical`` order, and its shape in that order."""
    axes = permutation(layout, canonical, "layout")
    inverse = permutation(canonical, layout, "layout")
    return lambda *i: x(*[i[a] for a in inverse]), [x.shape[a] for a in axes]


def _sizes(shape):
    return tuple(int(extent) for extent in shape)


def _padded(x, shape, axes):
    """Return x surrounded by zeros on the spatial axes."""
    if not any(axis.before or axis.after for axis in axes):
        return x
    extents = [axis.before + axis.size + axis.after for axis in axes]

    def element(n, c, *at):
        places = [a - axis.before for a, axis in zip(at, axes, strict=True)]
        value = x(n, c, *places)
        inside = _inside(places, [axis.size for axis in axes])
        return te.if_then_else(inside, value, tirx.const(0, value.ty.dtype))

    return te.compute((*shape[:2], *extents), element, name="padded")


def _inside(places, extents):
    return te.all(*[c for p, e in zip(places, extents, strict=True) for c in (p >= 0, p < e)])


def _tap(axes, at, taps):
    """Return where in the padded input the taps of result ``at`` lie."""
    return [o * a.stride + k * a.dilation for o, k, a in zip(at, taps, axes, strict=True)]


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
    image, shape = in_order(x, layout, data)
    kernel, (outputs, inputs, *taps) = in_order(w, kernel_layout, order)
    axes = window(_sizes(shape[2:]), _sizes(taps), stride, padding, dilation)
    padded = _padded(image, shape, axes)
    per_group = int(outputs) // groups
    c, *ks = (te.reduce_axis((0, extent)) for extent in (inputs, *taps))
    places = permutation(out_layout, data, "layout")

    def element(*i):
        n, o, *at = (i[a] for a in places)
        first = o // per_group * inputs if groups > 1 else 0
        value = padded(n, first + c, *_tap(axes, at, ks))
        return te.sum(_product(value, kernel(o, c, *ks), out.dtype), axis=[c, *ks])

    return _rounded(te.compute(out.shape, element, name="conv"), out.dtype)


def by_input(x_or_w, dy, shape, stride, padding, dilation, groups):
    """Return dx; x_or_w is w.

    Spread dy to the stride, with zeros between and around; then slide over it backwards.
    """
    outputs, inputs, *taps = _sizes(x_or_w.shape)
    axes = window(shape[2:], tuple(taps), stride, padding, dilation)
    per_group = outputs // groups

    def spread(n, o, *at):
        origin = [u + a.before - (a.extent - 1) for u, a in zip(at, axes, strict=True)]
        places = [tirx.floordiv(u, a.stride) for u, a in zip(origin, axes, strict=True)]
        conditions = [_inside(places, _sizes(dy.shape[2:]))]
        conditions += [tirx.floormod(u, a.stride) == 0 for u, a in zip(origin, axes, strict=True)]
        return te.if_then_else(te.all(*conditions), dy(n, o, *places), tirx.const(0, dy.dtype))

    extents = [axis.size + axis.extent - 1 for axis in axes]
    apart = te.compute((*dy.shape[:2], *extents), spread, name="spread")
    o, *ks = (te.reduce_axis((0, extent)) for extent in (per_group, *taps))

    def element(n, c, *at):
        output = (c // inputs * per_group if groups > 1 else 0) + o
        back = [a.kernel - 1 - k for k, a in zip(ks, axes, strict=True)]
        places = [u + k * a.dilation for u, k, a in zip(at, back, axes, strict=True)]
        weight = x_or_w(output, c % inputs if groups > 1 else c, *ks)
        return te.sum(_product(apart(n, output, *places), weight, dy.dtype), axis=[o, *ks])

    return _rounded(te.compute(shape, element, name="conv_dx"), dy.dtype)


def by_kernel(x_or_w, dy, shape, stride, padding, dilation, groups):
    """Return dw; x_or_w is x."""
    axes = window(_sizes(x_or_w.shape[2:]), shape[2:], stride, padding, dilation)
    padded = _padded(x_or_w, x_or_w.shape, axes)
    per_group = shape[0] // groups
    n, *at = (te.reduce_axis((0, extent)) for extent in (dy.shape[0], *dy.shape[2:]))

    def element(o, c, *taps):
        first = o // per_group * shape[1] if groups > 1 else 0
        value = padded(n, first + c, *_tap(axes, at, taps))
        return te.sum(_product(value, dy(n, o, *at), dy.dtype), axis=[n, *at])

    return _rounded(te.compute(shape, element, name="conv_dw"), dy.dtype)


def convolution(conv, conv_dx, conv_dw):
    """Register the functions of a convolution and of its two gradients."""
    compute(conv, OUT_ELEMWISE_FUSABLE)(forward)
    compute(conv_dx, OUT_ELEMWISE_FUSABLE)(by_input)
    compute(conv_dw, OUT_ELEMWISE_FUSABLE)(by_kernel)


convolution(op.conv2d, op.conv2d_dx, op.conv2d_dw)
