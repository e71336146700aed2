"""What the converters of `meta/frontend/relay/converters/qnn.py` have to give."""

import numpy as np
import torch
import torch.nn.functional as T

from tests.frontend.relay.records import ConverterCase as Case

RNG = np.random.default_rng(21)
F, Z = np.float32, np.int32
X = RNG.integers(0, 256, (2, 4, 6, 5)).astype(np.uint8)
W = RNG.integers(-128, 128, (6, 4, 3, 3)).astype(np.int8)
DEEP = RNG.integers(-128, 128, (4, 2, 3, 3)).astype(np.int8)  # two results per channel
ZEROS = RNG.integers(-9, 9, 6).astype(Z)
SCALES = (F(0.1), F(0.2))
KERNEL = {"kernel_size": (3, 3), "out_dtype": "int32"}
NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}


def less(values, zero):
    """Exactly, in float64."""
    zero = torch.as_tensor(np.asarray(zero), dtype=torch.float64)
    return torch.from_numpy(values).double() - (zero.view(-1, 1, 1, 1) if zero.ndim else zero)


def conv(x, w, x_zero, w_zero, *_, strides=1, padding=0, dilation=1, groups=1):
    """Around the image is its zero point."""
    if isinstance(padding, tuple) and len(padding) == 4:
        top, left, bottom, right = padding
    else:
        top, left = padding if isinstance(padding, tuple) else (padding,) * 2
        bottom, right = top, left
    image = T.pad(less(x, 0), (left, right, top, bottom), value=float(x_zero)) - float(x_zero)
    return T.conv2d(image, less(w, w_zero), None, strides, 0, dilation, groups).to(torch.int32)


def _case(x, w, zero, w_zero, order=None, **attrs):
    """A case in the layout NCHW, or in ``order``: permutations to its layouts and back."""
    own = {k: v for k, v in attrs.items() if k in ("strides", "padding", "dilation", "groups")}
    expected = conv(x, w, zero, w_zero, **own)
    if order:
        x, w = x.transpose(0, 2, 3, 1).copy(), w.transpose(order).copy()
        expected = expected.permute(0, 2, 3, 1).contiguous()
    label = ",".join(f"{k}={v}" for k, v in attrs.items() if k not in KERNEL)
    args = (x, w, zero, w_zero, *SCALES)
    return Case("qnn.conv2d", args, expected, {**KERNEL, **attrs}, label=label)


DEPTHWISE = W[:4, :1].copy()
DOUBLE = DEEP.reshape(8, 1, 3, 3)
PER_RESULT = RNG.integers(-9, 9, 8).astype(Z)

CASES = [
    _case(X, W, Z(3), Z(1)),
    _case(X, W, Z(128), Z(0), padding=(1, 1), strides=(2, 1)),
    _case(X, W, Z(128), Z(-5), padding=(0, 1, 2, 1), dilation=(2, 1)),
    _case(X, W, Z(7), ZEROS, padding=(1, 1), channels=6),
    _case(X, W[:, :2].copy(), Z(9), ZEROS, groups=2),
    _case(X, DEPTHWISE, Z(9), Z(2), groups=4, channels=4, padding=(1, 1)),
    _case(X, W, Z(128), Z(3), (2, 3, 1, 0), **NHWC, padding=(1, 1)),
    _case(X, W, Z(128), ZEROS, (2, 3, 1, 0), **NHWC, strides=(2, 2)),
    Case(
        "qnn.conv2d",
        (
            X.transpose(0, 2, 3, 1).copy(),
            DEEP.transpose(2, 3, 0, 1).copy(),
            Z(4),
            PER_RESULT,
            *SCALES,
        ),
        conv(X, DOUBLE, Z(4), PER_RESULT, groups=4).permute(0, 2, 3, 1).contiguous(),
        {**KERNEL, "data_layout": "NHWC", "kernel_layout": "HWOI", "groups": 4, "channels": 8},
        label="depthwise, zero points per result",
    ),
    Case(
        "qnn.conv2d",
        (X, W, Z(3), Z(1), *SCALES),
        lambda *args: conv(*args).to(torch.int64),
        {"kernel_size": (3, 3), "out_dtype": "int64"},
    ),
    Case(
        "qnn.conv2d",
        (X, W, Z(3), Z(1), *SCALES),
        lambda *args: conv(*args).to(torch.int16),
        {"kernel_size": (3, 3), "out_dtype": "int16"},
    ),
    Case(
        "qnn.conv2d",
        (X, W),
        conv(X, W, 3, 1, padding=(1, 1)),
        {
            **KERNEL,
            "padding": (1, 1),
            "input_zero_point": 3,
            "kernel_zero_point": 1,
            "input_scale": 0.1,
            "kernel_scale": 0.2,
        },
        version=(0, 6),
        label="v0.6",
    ),
    Case(
        "qnn.conv2d",
        (X.reshape(2, 2, 2, 6, 5).transpose(0, 1, 3, 4, 2).copy(), W, ZEROS[:4], Z(0), *SCALES),
        attrs={**KERNEL, "data_layout": "NCHW2c"},
        refused="per channel in the layout NCHW2c",
    ),
]


def transposed(x, w, x_zero, w_zero, *_, **window):
    """w: [inputs, results, height, width]; its zero point is a number or per result."""
    zeros = np.asarray(w_zero)
    kernel = less(w.transpose(1, 0, 2, 3).copy(), zeros).transpose(0, 1)
    return T.conv_transpose2d(less(x, x_zero), kernel, **window).to(torch.int32)


BACK = RNG.integers(-128, 128, (4, 6, 3, 3)).astype(np.int8)

CASES += [
    Case(
        "qnn.conv2d_transpose",
        (X, BACK, Z(128), zero, *SCALES),
        lambda *args: transposed(*args, stride=2, padding=1, output_padding=1),
        {**KERNEL, "strides": (2, 2), "padding": (1, 1), "output_padding": (1, 1)},
        version=(0, 15),
        label=f"{zero}",
    )
    for zero in (Z(3), ZEROS)
]
