"""What the converter of deformable convolution has to give: a loop over taps and places."""

import math

import numpy as np

from tests.frontend.relay.converters.conv import conv, numpy_of
from tests.frontend.relay.records import ConverterCase as Case
from tests.frontend.relay.tensors import floats, moved

X, W = floats(2, 4, 5, 6), floats(6, 4, 3, 2)
OFFSET = floats(2, 12, 3, 5) * np.float32(1.7)


def sample(image, y, x):
    """The channels of an image at one place."""
    height, width = image.shape[1:]
    if not (0 <= y < height and 0 <= x < width):
        return np.zeros(len(image))
    top, left = math.floor(y), math.floor(x)
    total = np.zeros(len(image))
    for h, a in ((top, 1 - y + top), (top + 1, y - top)):
        for w, b in ((left, 1 - x + left), (left + 1, x - left)):
            if h < height and w < width:
                total += a * b * image[:, h, w]
    return total


def deformable(x, offset, w, stride=(1, 1), padding=(0, 0), dilation=(1, 1), groups=1, parts=1):
    n, c = x.shape[:2]
    height, width = offset.shape[2:]
    kh, kw = w.shape[2:]
    y = np.zeros((n, len(w), height, width))
    for b, i, j, p, q, part in np.ndindex(n, height, width, kh, kw, parts):
        k = part * kh * kw * 2 + (p * kw + q) * 2
        at = (
            np.float32(i * stride[0] - padding[0] + p * dilation[0]) + offset[b, k, i, j],
            np.float32(j * stride[1] - padding[1] + q * dilation[1]) + offset[b, k + 1, i, j],
        )
        own = range(part * c // parts, (part + 1) * c // parts)
        values = sample(x[b, own], *at)
        for o in range(len(w)):
            first = o // (len(w) // groups) * (c // groups)
            for channel, value in zip(own, values, strict=True):
                if first <= channel < first + c // groups:
                    y[b, o, i, j] += value * w[o, channel - first, p, q]
    return y.astype(np.float32)


STRIDED = {"strides": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
OPTIONS = {"stride": (2, 1), "padding": (1, 0), "dilation": (1, 2)}
TWO = floats(2, 24, 3, 4, seed=2)

CASES = [
    Case("nn.deformable_conv2d", (X, OFFSET, W), deformable),
    Case(
        "nn.deformable_conv2d",
        (X, np.zeros_like(OFFSET), W),
        lambda x, _, w: conv()(x, w),
        {"channels": 6, "kernel_size": (3, 2)},
        label="no offset",
    ),
    Case(
        "nn.deformable_conv2d",
        (X, TWO, W),
        lambda *args: deformable(*args, **OPTIONS, parts=2),
        {**STRIDED, "deformable_groups": 2},
    ),
    Case(
        "nn.deformable_conv2d",
        (X, OFFSET, W[:, :2].copy()),
        lambda *args: deformable(*args, groups=2),
        {"groups": 2},
    ),
    Case(
        "nn.deformable_conv2d",
        (
            numpy_of(X, "NCHW", "NHWC"),
            numpy_of(OFFSET, "NCHW", "NHWC"),
            numpy_of(W, "OIHW", "HWIO"),
        ),
        moved(deformable(X, OFFSET, W), "NCHW", "NHWC"),
        {"data_layout": "NHWC", "kernel_layout": "HWIO"},
    ),
    Case("nn.deformable_conv2d", (X, TWO, W), refused="24 offsets do not fit"),
]
