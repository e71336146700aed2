"""Convolutions on ATen (oneDNN on the CPU, cuDNN on the GPU). Padding may differ on two sides.

The kernels serve any number of spatial axes.
"""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect import LIBRARY
from meta.dialect.core.kernel_signature import bind_kernel
from meta.dialect.core.openv import OpEnv, declining
from meta.dialect.torch import torch as dialect
from meta.dialect.torch.conv_products import (
    by_product_of,
    product,
    product_dw,
    product_dx,
    steps_of,
)
from meta.dialect.torch.operands import ON_CPU, in_float32, no_integers_on_cuda, single_or_double
from meta.op.core.check import pair
from meta.op.core.window import DATA, KERNEL, layout_permutation, pads, transposed_kernel_layout

_PRECISION = torch.backends.cudnn.conv  # type: ignore[attr-defined]  # torch sets it when imported
_convolve_some = in_float32(torch.convolution, _PRECISION)
_convolve_backward = in_float32(torch.ops.aten.convolution_backward.default, _PRECISION)


def _convolve(x, w, bias, window, groups):
    """Return the convolution: 0 of no channels, of which ATen returns another shape."""
    count = x.ndim - 2
    if w.numel() and x.shape[0]:
        return _convolve_some(x, w, bias, *window, False, (0,) * count, groups)
    axes = zip(x.shape[2:], w.shape[2:], *window, strict=True)
    places = [(n + 2 * pad - far * (k - 1) - 1) // step + 1 for n, k, step, pad, far in axes]
    y = x.new_zeros((x.shape[0], w.shape[0], *places))
    return y if bias is None else y + bias.reshape(-1, *(1,) * count)


def _padded(x, before, after):
    sides = zip(reversed(before), reversed(after), strict=True)
    return F.pad(x, [side for both in sides for side in both])


def _geometry(x, stride, padding, dilation):
    """Return the input, padded if the sides differ, and convolution's own window arguments."""
    sides, arguments = _window(stride, padding, dilation, x.ndim - 2)
    return x if sides is None else _padded(x, *sides), arguments


@lru_cache(maxsize=1024)
def _window(stride, padding, dilation, count):
    """Return the two sides of a padding that differ, or None; and the window's arguments."""
    around = pads(padding, count)
    sides, before = None, around[:count]
    if before != around[count:]:
        sides, before = (before, around[count:]), (0,) * count
    return sides, (pair(stride, "stride", count), before, pair(dilation, "dilation", count))


# What a kernel is told of windows and layouts is the same in each of its calls.
_order = lru_cache(maxsize=1024)(layout_permutation)


def _image(x, layout):
    """Return a view of x in the order of `DATA`.

    Of one whose channels come last, it is what torch calls the memory format channels_last: ATen
    computes in it and returns it.
    """
    canonical = DATA[x.ndim - 2]
    return x if layout == canonical else x.permute(_order(layout, canonical, "layout"))


def _kernel(w, layout):
    """Return a view of w in the order of `KERNEL`."""
    canonical = KERNEL[w.ndim - 2]
    return w if layout == canonical else w.permute(_order(layout, canonical, "kernel_layout"))


def _laid_out(x, canonical, layout):
    """Return x, of ``canonical`` order, as an array of ``layout``."""
    if canonical == layout:
        return x.contiguous()
    return x.permute(_order(canonical, layout, "layout")).contiguous()


def _like(dy, shape):
    """Return a tensor of ``shape`` of which only shape, strides and dtype will be looked at."""
    return dy.new_empty(shape)


def _integers(x, w, stride, padding, dilation, groups):
    """Return the convolution of integers, which ATen has not, as a product of matrices."""
    count = x.ndim - 2
    around = pads(padding, count)
    x = _padded(x, around[:count], around[count:])
    steps, apart = pair(stride, "stride", count), pair(dilation, "dilation", count)
    for axis in range(count):
        extent = apart[axis] * (w.shape[2 + axis] - 1) + 1
        x = x.unfold(2 + axis, extent, steps[axis])[..., :: apart[axis]]
    # [N, groups, C/groups, *places, *taps] times [groups, O/groups, C/groups, *taps]
    windows = x.unflatten(1, (groups, -1)).movedim(2, 2 + count).flatten(2 + count)
    places = windows.shape[2 : 2 + count]
    rows = windows.flatten(2, 1 + count)
    y = torch.matmul(rows, w.reshape(groups, len(w) // groups, -1).mT)
    return y.unflatten(2, places).movedim(-1, 2).flatten(1, 2)


def _integers_by_input(w, dy, shape, stride, padding, dilation, groups):
    """Return the transposed convolution of integers: of dy with zeros in between, backwards."""
    count = dy.ndim - 2
    steps, apart = pair(stride, "stride", count), pair(dilation, "dilation", count)
    before = pads(padding, count)[:count]
    extents = [d * (k - 1) for d, k in zip(apart, w.shape[2:], strict=True)]
    sizes = [n + e for n, e in zip(shape[2:], extents, strict=True)]
    spread = dy.new_zeros((*dy.shape[:2], *sizes))
    starts = [e - b for e, b in zip(extents, before, strict=True)]
    # A window may begin before the result by more than its extent: then nothing reads it.
    first = [max(0, -(s // t)) for s, t in zip(starts, steps, strict=True)]
    into, out_of = [slice(None)] * 2, [slice(None)] * 2
    for s, t, f, n, size in zip(starts, steps, first, dy.shape[2:], sizes, strict=True):
        n = max(min(n, -(-(size - s) // t)), f)
        into.append(slice(s + f * t, max(s + (n - 1) * t + 1, 0), t) if n > f else slice(0))
        out_of.append(slice(f, n))
    spread[tuple(into)] = dy[tuple(out_of)]
    kernel = w.unflatten(0, (groups, -1)).transpose(1, 2).flatten(0, 1).flip(*range(2, 2 + count))
    return _integers(spread, kernel, 1, 0, dilation, groups)


def forward(x, w, stride, padding, dilation, groups, layout, kernel_layout, out_layout):
    """Return the convolution of x with w."""
    steps = steps_of(x, w.shape, kernel_layout, stride, padding, groups, layout, out_layout)
    if steps is not None:
        return product(x, w, kernel_layout, steps)
    image, kernel = _image(x, layout), _kernel(w, kernel_layout)
    if not x.is_floating_point():
        y = _integers(image, kernel, stride, padding, dilation, groups)
        return _laid_out(y, DATA[x.ndim - 2], out_layout)
    image, window = _geometry(image, stride, padding, dilation)
    y = _convolve(image, kernel, None, window, groups)
    return _laid_out(y, DATA[x.ndim - 2], out_layout)


def _backward(dy, x, w, window, groups, mask):
    """Return one gradient; of x or w, whichever it is the gradient of, only the shape matters."""
    if not (dy.numel() and x.numel() and w.numel()):
        return dy.new_zeros((x, w)[mask.index(True)].shape)
    dtype = dy.dtype
    if mask[0] and not dy.is_cuda and dtype in (torch.float16, torch.bfloat16):
        # ATen on the CPU adds this one up in half precision.
        dy, w, x = dy.float(), w.float(), torch.empty_like(x, dtype=torch.float32)
    arguments = (dy, x, w, None, *window, False, (0,) * (dy.ndim - 2), groups, mask)
    return _convolve_backward(*arguments)[mask.index(True)].to(dtype)


def by_input(
    x_or_w, dy, shape, stride, padding, dilation, groups, layout, kernel_layout, out_layout
):
    """Return dx; x_or_w is w."""
    extents = x_or_w.shape
    steps = steps_of(dy, extents, kernel_layout, stride, padding, groups, layout, out_layout)
    if steps is not None:
        return product_dx(dy, x_or_w, kernel_layout, steps, shape)
    w, dy = _kernel(x_or_w, kernel_layout), _image(dy, out_layout)
    image = _image(_like(dy, shape), layout)
    if not dy.is_floating_point():
        dx = _integers_by_input(w, dy, image.shape, stride, padding, dilation, groups)
        return _laid_out(dx, DATA[dy.ndim - 2], layout)
    padded, window = _geometry(image, stride, padding, dilation)
    dx = _backward(dy, padded, w, window, groups, [True, False, False])
    if padded is not image:
        for axis, before in enumerate(pads(padding, dy.ndim - 2)[: dy.ndim - 2], 2):
            dx = dx.narrow(axis, before, image.shape[axis])
    return _laid_out(dx, DATA[dy.ndim - 2], layout)


def by_kernel(
    x_or_w, dy, shape, stride, padding, dilation, groups, layout, kernel_layout, out_layout
):
    """Return dw; x_or_w is x."""
    steps = steps_of(dy, shape, kernel_layout, stride, padding, groups, layout, out_layout)
    if steps is not None:
        return product_dw(dy, x_or_w, kernel_layout, steps, shape)
    order = KERNEL[dy.ndim - 2]
    w = _like(dy, [shape[a] for a in _order(kernel_layout, order, "kernel_layout")])
    dy = _image(dy, out_layout)
    padded, window = _geometry(_image(x_or_w, layout), stride, padding, dilation)
    by_product = by_product_of(dy, w, groups, window)
    if by_product is not None:
        return _laid_out(by_product(dy, padded, w, window, groups), order, kernel_layout)
    dw = _backward(dy, padded, w, window, groups, [False, True, False])
    return _laid_out(dw, order, kernel_layout)


def _direct(call, role, x, w, y):
    """Return the kernel of a call of which all is known before it runs, on the CPU; None for
    another. What is looked at at each call takes a third as long as a small convolution.

    role: the number of the result among y, dx and dw. x, w, y: the types of these or of what they
    are gradients of.
    """
    a, count = call.args, x.ndim - 2
    if call.device.kind != "cpu" or x.dtype not in ("float32", "float64"):
        return None
    if not all(t.is_static and t.size for t in (x, w, y)):
        return None
    sides, window = _window(a.stride, a.padding, a.dilation, count)
    if sides is not None:
        return None
    x, w, y = (
        torch.empty(t.static_shape, dtype=TO_TORCH[t.dtype], device="meta") for t in (x, w, y)
    )
    how = a.kernel_layout, a.stride, a.padding, a.groups, a.layout, a.out_layout
    if steps_of(y if role else x, w.shape, *how) is not None:
        return None
    x, w, y = _image(x, a.layout), _kernel(w, a.kernel_layout), _image(y, a.out_layout)
    if role == 2 and by_product_of(y, w, a.groups, window) is not None:
        return None
    image, kernel = (
        _order(a.layout, DATA[count], "layout"),
        _order(a.kernel_layout, KERNEL[count], "kernel_layout"),
    )
    rest = *window, False, (0,) * count, a.groups
    out = _order(a.out_layout, DATA[count], "out_layout")
    back = _order(DATA[count], a.out_layout, "out_layout")
    backward = torch.ops.aten.convolution_backward.default
    # Of what is not read, only the shape and the strides are looked at: pages that nobody touches.
    like = torch.empty_like((y, x, w)[role], device="cpu")

    def run(x, w):
        y = torch.convolution(x.permute(image), w.permute(kernel), None, *rest)
        return y.permute(back).contiguous()

    def run_dx(w, dy):
        mask = [True, False, False]
        found = backward(dy.permute(out), like, w.permute(kernel), None, *rest, mask)[0]
        return _laid_out(found, DATA[count], a.layout)

    def run_dw(x, dy):
        mask = [False, True, False]
        found = backward(dy.permute(out), x.permute(image), like, None, *rest, mask)[1]
        return _laid_out(found, KERNEL[count], a.kernel_layout)

    return (run, run_dx, run_dw)[role]


def convolution(conv, conv_dx, conv_dw):
    """Register the kernels of a convolution and of its two gradients."""
    when = no_integers_on_cuda("convolution")

    def typed(call, role):
        a = call.args
        if role == 0:
            return a.x, a.w, call.out
        return (call.out, a.x_or_w, a.dy) if role == 1 else (a.x_or_w, call.out, a.dy)

    def define(base, role, function):
        def make(call):
            declining(when if role == 0 else None, call)
            alone = role == 0 or call.args.y is None  # what is read is all that is given
            run = _direct(call, role, *typed(call, role)) if alone else None
            run = bind_kernel(function, call) if run is None else run
            return OpEnv(run, allocates=True, strided=True)

        dialect.op(base)(make)

    for role, function in enumerate((forward, by_input, by_kernel)):
        define((conv, conv_dx, conv_dw)[role], role, function)


def transposed(conv_transpose, conv_dx, conv_dw):
    """Register the kernels of a transposed convolution and of its two gradients: those of
    a convolution with the parts exchanged. x and the result change places, and so do the letters I
    and O of the kernel.
    """

    def how(call):
        a = call.args
        window = a.stride, a.padding, a.dilation, a.groups
        return *window, a.out_layout, transposed_kernel_layout(a.kernel_layout), a.layout

    @dialect.kernel(conv_transpose, plevel=LIBRARY, when=no_integers_on_cuda("convolution"))
    def run(x, w, call):
        return by_input(w, x, call.outputs[0].static_shape, *how(call))

    @dialect.kernel(conv_dx, plevel=LIBRARY)
    def run_dx(x_or_w, dy, call):
        return forward(dy, x_or_w, *how(call))

    @dialect.kernel(conv_dw, plevel=LIBRARY)
    def run_dw(x_or_w, dy, shape, call):
        return by_kernel(dy, x_or_w, shape, *how(call))


convolution(op.conv1d, op.conv1d_dx, op.conv1d_dw)
convolution(op.conv2d, op.conv2d_dx, op.conv2d_dw)
convolution(op.conv3d, op.conv3d_dx, op.conv3d_dw)
transposed(op.conv_transpose1d, op.conv_transpose1d_dx, op.conv_transpose1d_dw)
transposed(op.conv_transpose2d, op.conv_transpose2d_dx, op.conv_transpose2d_dw)
transposed(op.conv_transpose3d, op.conv_transpose3d_dx, op.conv_transpose3d_dw)


def _biased(x, w, b, stride, padding, dilation, groups):
    return op.bias_add(op.conv2d.plain(x, w, stride, padding, dilation, groups), b)


def _rectified(x, w, b, stride, padding, dilation, groups):
    return op.relu(_biased(x, w, b, stride, padding, dilation, groups))


def _biased_last(x, w, b, stride, padding, dilation, groups):
    layouts = "NHWC", "OHWI", "NHWC"
    y = op.conv2d.plain(x, w, stride, padding, dilation, groups, *layouts)
    return op.bias_add(y, b, 3)


# With its bias a convolution is 1.02 to 1.2 times as fast as beside generated code for that;
# oneDNN's own fused ReLU brings nothing more.
@dialect.pattern(_biased, plevel=ON_CPU, when=single_or_double)
def conv2d_bias(x, w, b, stride, padding, dilation, groups):
    image, window = _geometry(x, stride, padding, dilation)
    return _convolve(image, w, b, window, groups).contiguous()


@dialect.pattern(_rectified, plevel=ON_CPU, when=single_or_double)
def conv2d_bias_relu(x, w, b, stride, padding, dilation, groups):
    return torch.relu_(conv2d_bias(x, w, b, stride, padding, dilation, groups))


@dialect.pattern(_biased_last, plevel=ON_CPU, when=single_or_double)
def conv2d_bias_last(x, w, b, stride, padding, dilation, groups):
    steps = steps_of(x, w.shape, "OHWI", stride, padding, groups, "NHWC")
    if steps is not None:
        return product(x, w, "OHWI", steps, b)
    image, window = _geometry(_image(x, "NHWC"), stride, padding, dilation)
    return _laid_out(_convolve(image, _kernel(w, "OHWI"), b, window, groups), "NCHW", "NHWC")
