"""Converters of convolutions, and the windows that they share with pooling."""

from __future__ import annotations

from math import prod

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, static_extent
from meta.frontend.onnx.converters.movement import required
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


def _kernel(w, stated):
    kernel = tuple(static_extent(d, "the kernel") for d in w.shape[2:])
    if stated is not None and tuple(stated) != kernel:
        raise Unconvertible(f"kernel_shape={stated!r} is not that of the weight, {kernel}")
    return kernel


def convolved(x, w, auto_pad, dilations, group, kernel_shape, pads, strides):
    """A convolution without bias."""
    count = spatial(x, "a convolution")
    stride, dilation = many(strides, count), many(dilations, count)
    pads = padding(x, auto_pad, pads, _kernel(w, kernel_shape), stride, dilation)
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
    kernel = _kernel(w, kernel_shape)
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
    image = required(image_shape, "the shape of the image")
    block = required(block_shape, "the shape of the blocks")
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
