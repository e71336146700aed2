"""Converters of convolutions, of pooling and of its reverse.

What `max_pool2d` and the like do not have, such as the places of maxima or powers, is computed on
windows: for every result the elements that it is made of, along an axis of their own.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, required_ints, static_extent
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.onnx.converters.movement import reshaped
from meta.frontend.onnx.converters.reduce import least
from meta.frontend.onnx.registry import onnx

CONV = {1: op.conv1d, 2: op.conv2d, 3: op.conv3d}
TRANSPOSED = {1: op.conv_transpose1d, 2: op.conv_transpose2d, 3: op.conv_transpose3d}
PADS = ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER")


def spatial(x, what):
    """The number of spatial axes, 1 to 3."""
    count = x.ndim - 2
    if count not in CONV:
        raise Unconvertible(f"{what} over {count} axes is not supported", hint="1, 2 or 3")
    return count


def many(numbers, count, otherwise=1):
    """One number for each spatial axis."""
    return (otherwise,) * count if numbers is None else tuple(numbers)


def padding(x, auto_pad, pads, kernel, stride, dilation):
    """What is added before all spatial axes and then behind them."""
    count = len(kernel)
    if auto_pad not in PADS:
        raise Unconvertible(f"auto_pad={auto_pad!r} is unknown", hint=", ".join(PADS))
    if auto_pad == "NOTSET":
        return many(pads, 2 * count, 0)
    if auto_pad == "VALID":
        return (0,) * (2 * count)
    before, behind = [], []
    for i in range(count):
        extent = static_extent(x.shape[2 + i], "an axis that is padded by auto_pad")
        windows = -(-extent // stride[i])
        reach = (kernel[i] - 1) * dilation[i] + 1
        total = max((windows - 1) * stride[i] + reach - extent, 0)
        half = total // 2
        before.append(total - half if auto_pad == "SAME_LOWER" else half)
        behind.append(half if auto_pad == "SAME_LOWER" else total - half)
    return (*before, *behind)


def _kernel_extents(w, stated):
    kernel = tuple(static_extent(d, "the kernel") for d in w.shape[2:])
    if stated is not None and tuple(stated) != kernel:
        raise Unconvertible(f"kernel_shape={stated!r} is not that of the weight, {kernel}")
    return kernel


def convolved(x, w, auto_pad, dilations, group, kernel_shape, pads, strides):
    """A convolution without bias."""
    count = spatial(x, "a convolution")
    stride, dilation = many(strides, count), many(dilations, count)
    pads = padding(x, auto_pad, pads, _kernel_extents(w, kernel_shape), stride, dilation)
    if any(p < 0 for p in pads):
        raise Unconvertible(f"pads={pads!r} are negative")
    return CONV[count].plain(x, w, stride, pads, dilation, group)


def with_bias(y, b):
    """Add a number to each channel."""
    return y if b is None else op.bias_add(y, b)


@onnx("Conv", op.conv1d, op.conv2d, op.conv3d, op.bias_add)
def conv(x, w, b=None, *, auto_pad, dilations, group, kernel_shape, pads, strides):
    return with_bias(convolved(x, w, auto_pad, dilations, group, kernel_shape, pads, strides), b)


@onnx("ConvTranspose", op.conv_transpose1d, op.conv_transpose2d, op.conv_transpose3d, op.bias_add)
def conv_transpose(
    x,
    w,
    b=None,
    *,
    auto_pad,
    dilations,
    group,
    kernel_shape,
    output_padding,
    output_shape,
    pads,
    strides,
):
    """``output_shape`` and auto_pad say how much is cut off; what there is too little of is 0."""
    count = spatial(x, "a convolution")
    stride, dilation = many(strides, count), many(dilations, count)
    more = many(output_padding, count, 0)
    kernel = _kernel_extents(w, kernel_shape)
    whole = [
        (static_extent(x.shape[2 + i], "the input") - 1) * stride[i]
        + (kernel[i] - 1) * dilation[i]
        + 1
        for i in range(count)
    ]
    wanted = None if output_shape is None else tuple(output_shape)[-count:]
    if wanted is None and auto_pad in ("SAME_UPPER", "SAME_LOWER"):
        wanted = [x.shape[2 + i] * stride[i] for i in range(count)]
    if wanted is not None:
        cut = [whole[i] + more[i] - wanted[i] for i in range(count)]
        # Of an odd number more is cut off before; what there is too little of is added behind.
        more_before = auto_pad != "SAME_UPPER"
        before = [max(c - c // 2 if more_before else c // 2, 0) for c in cut]
        pads = (*before, *(c - b for c, b in zip(cut, before, strict=True)))
    elif auto_pad == "VALID":
        pads = (0,) * (2 * count)
    elif auto_pad != "NOTSET":
        raise Unconvertible(f"auto_pad={auto_pad!r} is unknown", hint=", ".join(PADS))
    else:
        pads = many(pads, 2 * count, 0)
    y = TRANSPOSED[count].plain(x, w, stride, 0, 0, dilation, group)
    return with_bias(_cut(y, pads, more), b)


def _cut(y, pads, more):
    """Cut off the padding, where it is negative add zeros, and add ``more`` behind."""
    count = len(more)
    behind = [pads[count + i] - more[i] for i in range(count)]
    begin = (0, 0, *(max(p, 0) for p in pads[:count]))
    end = (
        *y.shape[:2],
        *(e - max(p, 0) for e, p in zip(y.shape[2:], behind, strict=True)),
    )
    if any(b or e != s for b, e, s in zip(begin, end, y.shape, strict=True)):
        y = op.strided_slice(y, begin, end)
    pairs = [(0, 0), (0, 0)]
    pairs += [(max(-p, 0), max(-b, 0)) for p, b in zip(pads[:count], behind, strict=True)]
    return op.pad(y, pairs) if any(map(any, pairs)) else y


@onnx("Col2Im", op.scatter_add)
def col2im(x, image_shape, block_shape, *, dilations, pads, strides, call):
    """[N, C * block, L] to [N, C, *image]: blocks are added where they lie in the image."""
    image = required_ints(image_shape, "the shape of the image")
    block = required_ints(block_shape, "the shape of the blocks")
    count = len(image)
    dilation, stride = many(dilations, count), many(strides, count)
    pads = many(pads, 2 * count, 0)
    grown = [e + pads[i] + pads[count + i] for i, e in enumerate(image)]
    # The place in the padded image of every element of every block, per axis: [block, blocks].
    places = np.zeros((1, 1), np.int64)
    for i in range(count):
        blocks = (grown[i] - dilation[i] * (block[i] - 1) - 1) // stride[i] + 1
        own = np.add.outer(np.arange(block[i]) * dilation[i], np.arange(blocks) * stride[i])
        places = places[:, None, :, None] * grown[i] + own[None, :, None, :]
        places = places.reshape(places.shape[0] * block[i], -1)
    batch = x.shape[0]
    channels = x.shape[1] // prod(block)
    flat = op.reshape(x, (batch * channels, places.size))
    index = op.broadcast_to(constant(places.reshape(1, -1), "int64", call), flat.shape)
    empty = op.zeros((batch * channels, prod(grown)), x.dtype, str(call.device))
    y = op.reshape(op.scatter_add(empty, 1, index, flat), (batch, channels, *grown))
    begin = (0, 0, *pads[:count])
    return op.strided_slice(
        y, begin, (batch, channels, *(p + e for p, e in zip(pads[:count], image, strict=True)))
    )


MAX = {1: op.max_pool1d, 2: op.max_pool2d, 3: op.max_pool3d}
AVERAGE = {1: op.avg_pool1d, 2: op.avg_pool2d, 3: op.avg_pool3d}


@dataclass(frozen=True)
class Windows:
    """The elements under every window.

    Attributes
    ----------
    values: [N, C, windows, taps]. places: of every tap in the flat image, int64[windows, taps].
    inside: whether there is an element, bool of that shape. counted: whether the padding that is
    asked for has one. extents: the spatial extents of the result.
    """

    values: Any
    places: Any
    inside: Any
    counted: Any
    extents: tuple[int, ...]


@dataclass(frozen=True)
class Shape:
    """The windows of a node: one number for each spatial axis, pads before and then behind."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[int, ...]
    ceil: bool

    @property
    def is_usual(self):
        """Whether no window can lie in the padding alone."""
        count = len(self.kernel)
        reach = [(k - 1) * d + 1 for k, d in zip(self.kernel, self.dilation, strict=True)]
        return all(p < reach[i % count] for i, p in enumerate(self.pads)) and min(self.pads) >= 0


def _shape(x, what, auto_pad, ceil_mode, dilations, kernel_shape, pads, strides):
    count = spatial(x, what)
    kernel = tuple(kernel_shape)
    stride, dilation = many(strides, count), many(dilations, count)
    pads = padding(x, auto_pad, pads, kernel, stride, dilation)
    return Shape(kernel, stride, dilation, pads, bool(ceil_mode))


def windows(x, shape, call):
    """Return the windows of x."""
    count = len(shape.kernel)
    extents = [static_extent(d, "an image") for d in x.shape[2:]]
    places = np.zeros((1, 1), np.int64)
    inside = counted = np.ones((1, 1), bool)
    results = []
    for i, extent in enumerate(extents):
        before, behind = shape.pads[i], shape.pads[count + i]
        reach = (shape.kernel[i] - 1) * shape.dilation[i] + 1
        room = extent + before + behind - reach
        number = (-(-room // shape.stride[i]) if shape.ceil else room // shape.stride[i]) + 1
        if shape.ceil and (number - 1) * shape.stride[i] >= extent + before:
            number -= 1
        taps = np.arange(shape.kernel[i]) * shape.dilation[i]
        own = np.add.outer(np.arange(number) * shape.stride[i], taps) - before
        places = _joined(places * extent, np.clip(own, 0, max(extent - 1, 0)), np.add)
        inside = _joined(inside, (own >= 0) & (own < extent), np.logical_and)
        counted = _joined(counted, own < extent + behind, np.logical_and)
        results.append(number)
    flat = reshaped(x, (*x.shape[:2], prod(extents)))
    index = constant(places, "int64", call)
    values = op.take(flat, index, 2)
    return Windows(values, index, constant(inside, "bool", call), counted, tuple(results))


def _joined(outer, own, combine):
    """Combine [windows, taps] of the axes before with those of one more."""
    both = combine(outer[:, None, :, None], own[None, :, None, :])
    return both.reshape(both.shape[0] * both.shape[1], both.shape[2] * both.shape[3])


@onnx("MaxPool", op.max_pool1d, op.max_pool2d, op.max_pool3d, op.take, op.argmax)
def max_pool(
    x, *, auto_pad, ceil_mode, dilations, kernel_shape, pads, storage_order, strides, call
):
    """(maxima, where they are in the whole flat input). The order of places may be by columns."""
    shape = _shape(x, "pooling", auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    if call.results == 1 and shape.is_usual:
        wide = x if is_float(x.dtype) else cast_to(x, "float32")
        y = MAX[len(shape.kernel)].plain(
            wide, shape.kernel, shape.stride, shape.pads, shape.dilation, shape.ceil
        )
        return cast_to(y, x.dtype)
    found = windows(x, shape, call)
    lowest = op.full_like(found.values, least(x.dtype))
    values = op.where(found.inside, found.values, lowest)
    result = (*x.shape[:2], *found.extents)
    y = reshaped(op.max(values, 3), result)
    if call.results == 1:
        return y
    tap = op.expand_dims(op.argmax(values, 3), 3)
    places = op.broadcast_to(found.places, values.shape)
    place = op.reshape(op.take_along_axis(places, tap, 3), (*x.shape[:2], prod(found.extents)))
    if storage_order:
        place = _by_columns(place, x.shape[2:])
    count = static_extent(prod(x.shape[:2]), "the batch")
    images = constant(np.arange(count).reshape(*x.shape[:2], 1), "int64", call)
    return y, op.reshape(op.add(place, op.multiply(images, prod(x.shape[2:]))), result)


def _by_columns(place, extents):
    """Places of row-major order in column-major order."""
    total, step = op.zeros_like(place), prod(extents)
    for extent in reversed(extents):
        step //= extent
        total = op.add(total, op.multiply(op.remainder(place, extent), step))
        place = op.floor_divide(place, extent)
    return total


@onnx("AveragePool", op.avg_pool1d, op.avg_pool2d, op.avg_pool3d, op.take, op.sum)
def average_pool(
    x, *, auto_pad, ceil_mode, count_include_pad, dilations, kernel_shape, pads, strides, call
):
    shape = _shape(x, "pooling", auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    if shape.is_usual:
        return AVERAGE[len(shape.kernel)].plain(
            x,
            shape.kernel,
            shape.stride,
            shape.pads,
            shape.dilation,
            shape.ceil,
            bool(count_include_pad),
        )
    found = windows(x, shape, call)
    counted = found.counted if count_include_pad else found.inside.numpy()
    counts = constant(counted.sum(1), x.dtype, call)
    zero = op.zeros_like(found.values)
    total = op.sum(op.where(found.inside, found.values, zero), 3)
    return reshaped(op.divide(total, counts), (*x.shape[:2], *found.extents))


@onnx("LpPool", op.take, op.pow, op.sum)
def lp_pool(x, *, auto_pad, ceil_mode, dilations, kernel_shape, p, pads, strides, call):
    """The p-norm of each window, in which the padding is 0."""
    shape = _shape(x, "pooling", auto_pad, ceil_mode, dilations, kernel_shape, pads, strides)
    found = windows(x, shape, call)
    values = op.where(found.inside, found.values, op.zeros_like(found.values))
    return reshaped(_norm(values, p, 3, False), (*x.shape[:2], *found.extents))


def _norm(x, p, axes, keepdims):
    """The p-norm; p of opset 1 is a broken number."""
    p = 2.0 if p is None else float(p)
    return op.pow(op.sum(op.pow(op.abs(x), p), axes, keepdims=keepdims), 1.0 / p)


def _spatial_axes(x):
    return tuple(range(2, x.ndim))


@onnx("GlobalAveragePool", op.mean)
def global_average_pool(x):
    return op.mean(x, _spatial_axes(x), True)


@onnx("GlobalMaxPool", op.max)
def global_max_pool(x):
    return op.max(x, _spatial_axes(x), True)


@onnx("GlobalLpPool", op.pow, op.sum)
def global_lp_pool(x, *, p):
    return _norm(x, p, _spatial_axes(x), True)


@onnx("MaxUnpool", op.scatter, op.pad)
def max_unpool(x, indices, output_shape=None, *, kernel_shape, pads, strides, call):
    """Elements put back where `MaxPool` found them, zeros elsewhere. The places are those of an
    input without what ``output_shape`` adds behind it.
    """
    count = len(kernel_shape)
    strides, pads = many(strides, count), many(pads, 2 * count, 0)
    own = tuple(
        (x.shape[2 + i] - 1) * strides[i] - pads[i] - pads[count + i] + kernel_shape[i]
        for i in range(count)
    )
    shape = (*x.shape[:2], *own)
    flat = op.zeros((prod(shape),), x.dtype, str(call.device))
    y = op.scatter(flat, 0, op.reshape(indices, (-1,)), op.reshape(x, (-1,)))
    y = op.reshape(y, shape)
    if output_shape is None:
        return y
    wanted = required_ints(output_shape, "the shape of the result")
    more = [(0, w - e) for w, e in zip(wanted, shape, strict=True)]
    return op.pad(y, more) if any(map(any, more)) else y
