"""Convolutions, transposed ones, their gradients, and the columns that they read."""

import itertools
import sys

from meta import op
from meta.base.dtype import COMPLEX
from meta.frontend.aten.arguments import cast, per_axis
from meta.frontend.aten.converters.slices import sliced
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible


def _require_real(x):
    if x.dtype in COMPLEX:
        raise Unconvertible("it is of complex numbers")


def _conv(x, weight, bias, stride, padding, dilation, groups):
    _require_real(x)
    n = len(weight.shape) - 2
    padding = padding if isinstance(padding, str) else per_axis(padding, n)
    conv = getattr(op, f"conv{n}d")
    return conv(x, weight, bias, per_axis(stride, n), padding, per_axis(dilation, n), groups)


def _conv_transpose(x, weight, bias, stride, padding, output_padding, groups, dilation):
    _require_real(x)
    n = len(weight.shape) - 2
    conv = getattr(op, f"conv_transpose{n}d")
    stride, dilation = per_axis(stride, n), per_axis(dilation, n)
    around, added = _around(stride, per_axis(padding, n), per_axis(output_padding, n))
    return conv(x, weight, bias, stride, around, added, groups, dilation)


def _around(stride, padding, output_padding):
    """Return the padding of a transposed convolution and what is added at the ends, less than the
    stride. torch takes more where it dilates: as many elements are cut off less.
    """
    if all(a < s for a, s in zip(output_padding, stride, strict=True)):
        return padding, output_padding
    added = tuple(a % s for a, s in zip(output_padding, stride, strict=True))
    more = [a - b for a, b in zip(output_padding, added, strict=True)]
    after = tuple(p - m for p, m in zip(padding, more, strict=True))
    if min(after) < 0:
        raise Unconvertible(f"it adds {output_padding} elements, of {padding} that it cuts off")
    return (*padding, *after), added


_BASES = (op.conv1d, op.conv2d, op.conv3d)
_TRANSPOSED = (op.conv_transpose1d, op.conv_transpose2d, op.conv_transpose3d)
_OF_LIBRARIES = ("benchmark", "deterministic", "cudnn_enabled", "allow_tf32")


@aten("convolution", "convolution_overrideable", *_BASES, *_TRANSPOSED)
def convolution(x, weight, bias, *, stride, padding, dilation, transposed, output_padding, groups):
    if not transposed:
        return _conv(x, weight, bias, stride, padding, dilation, groups)
    return _conv_transpose(x, weight, bias, stride, padding, output_padding, groups, dilation)


aten("_convolution", *_BASES, *_TRANSPOSED, ignore=_OF_LIBRARIES)(convolution)
aten("_convolution.deprecated", *_BASES, *_TRANSPOSED, ignore=_OF_LIBRARIES[:3])(convolution)


@aten("conv1d", "conv1d.padding", op.conv1d)
@aten("conv2d", "conv2d.padding", op.conv2d)
@aten("conv3d", "conv3d.padding", op.conv3d)
@aten("_convolution_mode", *_BASES)
def conv(x, weight, bias, *, stride, padding, dilation, groups):
    return _conv(x, weight, bias, stride, padding, dilation, groups)


@aten("conv_transpose1d", op.conv_transpose1d)
@aten("conv_transpose2d.input", op.conv_transpose2d)
@aten("conv_transpose3d.input", op.conv_transpose3d)
def conv_transpose(x, weight, bias, *, stride, padding, output_padding, groups, dilation):
    return _conv_transpose(x, weight, bias, stride, padding, output_padding, groups, dilation)


@aten("cudnn_convolution", *_BASES, ignore=("benchmark", "deterministic", "allow_tf32"))
def cudnn_convolution(x, weight, *, padding, stride, dilation, groups):
    return _conv(x, weight, None, stride, padding, dilation, groups)


@aten(
    "cudnn_convolution_transpose",
    *_TRANSPOSED,
    ignore=("benchmark", "deterministic", "allow_tf32"),
)
def cudnn_convolution_transpose(x, weight, *, padding, output_padding, stride, dilation, groups):
    return _conv_transpose(x, weight, None, stride, padding, output_padding, groups, dilation)


@aten("_conv_depthwise2d", "conv_depthwise3d", op.conv2d, op.conv3d, ignore=("kernel_size",))
def conv_depthwise(x, weight, bias, *, stride, padding, dilation):
    return _conv(x, weight, bias, stride, padding, dilation, x.shape[1])


@aten("slow_conv_dilated2d", "slow_conv_dilated3d", op.conv2d, op.conv3d, ignore=("kernel_size",))
def conv_dilated(x, weight, bias, *, stride, padding, dilation):
    return _conv(x, weight, bias, stride, padding, dilation, 1)


@aten(
    "slow_conv_transpose2d",
    "slow_conv_transpose3d",
    *_TRANSPOSED[1:],
    ignore=("kernel_size",),
)
def slow_conv_transpose(x, weight, bias, *, stride, padding, output_padding, dilation):
    return _conv_transpose(x, weight, bias, stride, padding, output_padding, 1, dilation)


@aten(
    "thnn_conv2d",
    "_slow_conv2d_forward",
    "slow_conv3d",
    "slow_conv3d_forward",
    op.conv2d,
    op.conv3d,
    ignore=("kernel_size",),
)
def slow_conv(x, weight, bias, *, stride, padding):
    return _conv(x, weight, bias, stride, padding, 1, 1)


@aten("conv_tbc", op.conv1d)
def conv_tbc(x, weight, bias, *, pad):
    """Steps come first, then the batch, then channels; a kernel has the axes WIO."""
    y = op.conv1d(x, weight, None, 1, pad, layout="WNC", kernel_layout="WIO", out_layout="WNC")
    return op.add(y, bias)


@aten("convolution_backward", op.conv1d_dx, op.conv2d_dx, op.conv3d_dx, ignore=("bias_sizes",))
@aten("convolution_backward_overrideable", op.conv1d_dx, op.conv2d_dx, op.conv3d_dx)
def convolution_backward(
    dy,
    x,
    weight,
    *,
    stride,
    padding,
    dilation,
    transposed,
    output_padding,
    groups,
    output_mask,
):
    _require_real(x)
    n = len(weight.shape) - 2
    stride, padding, dilation = (per_axis(v, n) for v in (stride, padding, dilation))
    name = f"conv_transpose{n}d" if transposed else f"conv{n}d"
    more = ()
    if transposed:
        padding, added = _around(stride, padding, per_axis(output_padding, n))
        more = (added,)
    options = (stride, padding, *more, dilation, groups)
    dx = dw = db = None
    if output_mask[0]:
        dx = getattr(op, f"{name}_dx")(weight, None, dy, tuple(x.shape), *options)
    if output_mask[1]:
        dw = getattr(op, f"{name}_dw")(x, None, dy, tuple(weight.shape), *options)
    if output_mask[2]:
        db = cast(op.sum(dy, (0, *range(2, n + 2))), dy.dtype)
    return dx, dw, db


ENDS = (sys.maxsize, sys.maxsize)
"""The ends of slices that are all examples and channels."""


def _columns(shape, kernel, dilation, padding, stride):
    """Return the padded shape of images, and for each tap of a window its begins and ends."""
    kernel, dilation, padding, stride = (
        per_axis(v, 2) for v in (kernel, dilation, padding, stride)
    )
    padded = tuple(n + 2 * p for n, p in zip(shape[-2:], padding, strict=True))
    counts = tuple(
        (n - d * (k - 1) - 1) // s + 1
        for n, d, k, s in zip(padded, dilation, kernel, stride, strict=True)
    )
    cuts = []
    for tap in itertools.product(*map(range, kernel)):
        begin = tuple(t * d for t, d in zip(tap, dilation, strict=True))
        end = tuple(b + (c - 1) * s + 1 for b, c, s in zip(begin, counts, stride, strict=True))
        cuts.append(((0, 0, *begin), end))
    return padded, counts, cuts, (1, 1, *stride), padding


def _cut(x, begin, end, steps):
    for axis in (2, 3):
        x = sliced(x, axis, begin[axis], end[axis - 2], steps[axis])
    return x


@aten("im2col", op.pad, op.strided_slice, op.stack)
def im2col(x, *, kernel_size, dilation, padding, stride):
    """What each window reads: [n, c * taps, windows]."""
    one = len(x.shape) == 3
    x = op.expand_dims(x, 0) if one else x
    batch, channels = x.shape[:2]
    _, counts, cuts, steps, (top, left) = _columns(x.shape, kernel_size, dilation, padding, stride)
    x = op.pad(x, ((0, 0), (0, 0), (top, top), (left, left)))
    parts = [_cut(x, begin, end, steps) for begin, end in cuts]
    y = op.reshape(op.stack(tuple(parts), 2), (batch, channels * len(cuts), counts[0] * counts[1]))
    return op.squeeze(y, 0) if one else y


@aten("col2im", op.strided_slice_dx, op.add)
def col2im(x, *, output_size, kernel_size, dilation, padding, stride):
    """The reverse of `im2col`: what several windows have read is the sum of theirs."""
    one = len(x.shape) == 2
    x = op.expand_dims(x, 0) if one else x
    padded, counts, cuts, steps, (top, left) = _columns(
        tuple(output_size), kernel_size, dilation, padding, stride
    )
    batch, channels = x.shape[0], x.shape[1] // len(cuts)
    taps = op.reshape(x, (batch, channels, len(cuts), *counts))
    total = None
    for i, (begin, end) in enumerate(cuts):
        part = op.squeeze(op.strided_slice(taps, (0, 0, i), (*ENDS, i + 1)), 2)
        spread = op.strided_slice_dx(part, (batch, channels, *padded), begin, (*ENDS, *end), steps)
        total = spread if total is None else op.add(total, spread)
    y = op.strided_slice(
        total,
        (0, 0, top, left),
        (*ENDS, top + output_size[0], left + output_size[1]),
    )
    return op.squeeze(y, 0) if one else y
