"""What the converters of `meta/frontend/relay/converters/conv.py` have to give."""

import numpy as np
import torch
import torch.nn.functional as F

from tests.frontend.relay.records import ConverterCase as Case
from tests.frontend.relay.tensors import blocked, floats, integers, moved

X1, W1 = floats(2, 3, 8), floats(4, 3, 3)
X2, W2 = floats(2, 4, 7, 6), floats(6, 4, 3, 2)
X3, W3 = floats(1, 2, 4, 5, 4), floats(3, 2, 2, 3, 2)
GROUPED = floats(6, 2, 3, 2)
DEPTHWISE = floats(4, 1, 3, 3)


def conv(**options):
    """torch's convolution in float64, of channels-first tensors."""

    def run(x, w):
        function = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
        x, w = torch.as_tensor(x), torch.as_tensor(w)
        return function(x.double(), w.double(), **options).to(torch.float32)

    return run


def numpy_of(x, source, target):
    return moved(x, source, target).numpy()


def exact(x, w):
    """The convolution of integers in Python's own."""
    return conv()(x, w).to(torch.int32)


NHWC = {"data_layout": "NHWC", "kernel_layout": "HWIO"}
PADDED = np.pad(X2, ((0, 0), (0, 0), (1, 2), (0, 1)))
EXACT_X = integers(1, 3, 5, 5, low=-128, high=128, dtype="int8")
EXACT_W = integers(2, 3, 3, 3, low=-128, high=128, dtype="int8")
HALF = [floats(1, 64, 4, 4, dtype="float16"), floats(2, 64, 3, 3, dtype="float16", seed=1)]
WRONG_KERNEL = {"kernel_size": (2, 2)}

CASES = [
    Case("nn.conv1d", (X1, W1), conv(), {}),
    Case(
        "nn.conv1d",
        (X1, W1),
        conv(stride=2, padding=2, dilation=2),
        {"strides": (2,), "padding": (2,), "dilation": (2,), "kernel_size": (3,), "channels": 4},
    ),
    Case(
        "nn.conv1d",
        (numpy_of(X1, "NCW", "NWC"), numpy_of(W1, "OIW", "WIO")),
        moved(conv()(X1, W1), "NCW", "NWC"),
        {"data_layout": "NWC", "kernel_layout": "WIO"},
    ),
    Case("nn.conv2d", (X2, W2), conv(), {}),
    Case(
        "nn.conv2d",
        (X2, W2),
        conv(stride=(2, 1), padding=(1, 0)),
        {"strides": (2, 1), "padding": (1, 0), "channels": 6, "kernel_size": (3, 2)},
    ),
    Case("nn.conv2d", (X2, W2), conv()(PADDED, W2), {"padding": (1, 0, 2, 1)}),
    Case("nn.conv2d", (X2, W2), conv(padding=1), {"padding": (1,), "strides": (1,)}),
    Case("nn.conv2d", (X2, GROUPED), conv(groups=2), {"groups": 2}),
    Case(
        "nn.conv2d",
        (numpy_of(X2, "NCHW", "NHWC"), numpy_of(W2, "OIHW", "HWIO")),
        moved(conv()(X2, W2), "NCHW", "NHWC"),
        NHWC,
    ),
    Case(
        "nn.conv2d",
        (numpy_of(X2, "NCHW", "NHWC"), numpy_of(W2, "OIHW", "HWIO")),
        conv()(X2, W2),
        {**NHWC, "out_layout": "NCHW"},
    ),
    Case(
        "nn.conv2d",
        (numpy_of(X2, "NCHW", "HWCN"), numpy_of(W2, "OIHW", "OHWI")),
        moved(conv()(X2, W2), "NCHW", "HWCN"),
        {"data_layout": "HWCN", "kernel_layout": "OHWI"},
    ),
    Case(
        "nn.conv2d",
        (numpy_of(X2, "NCHW", "NHWC"), numpy_of(DEPTHWISE, "OIHW", "HWOI")),
        moved(conv(groups=4)(X2, DEPTHWISE), "NCHW", "NHWC"),
        {"data_layout": "NHWC", "kernel_layout": "HWOI", "groups": 4, "channels": 4},
        label="depthwise",
    ),
    Case(
        "nn.conv2d",
        # Two outputs per channel: output 2 * c + m is of tap m of channel c.
        (X2, floats(4, 2, 3, 3)),
        lambda x, w: conv(groups=4)(x, w.reshape(8, 1, 3, 3)),
        {"groups": 4, "channels": 8, "kernel_size": (3, 3)},
        label="multiplier",
    ),
    Case(
        "nn.conv2d",
        (blocked(X2, 1, 2), blocked(blocked(W2, 1, 2), 0, 3)),
        blocked(conv()(X2, W2).numpy(), 1, 3),
        {"data_layout": "NCHW2c", "kernel_layout": "OIHW2i3o", "out_layout": "NCHW3c"},
    ),
    Case("nn.conv2d", (EXACT_X, EXACT_W), exact, {"out_dtype": "int32"}, label="int8"),
    Case(
        "nn.conv2d",
        (EXACT_X, EXACT_W),
        lambda x, w: exact(x, w).to(torch.int8),
        label="int8 that wraps",
    ),
    Case("nn.conv2d", HALF, conv(), {"out_dtype": "float32"}, label="half", tolerance=1e-4),
    Case("nn.conv2d", (X2, W2), refused="kernel_size", attrs=WRONG_KERNEL),
    Case("nn.conv2d", (X2, W2), refused="is no layout", attrs={"data_layout": "NCHWx"}),
    Case("nn.conv3d", (X3, W3), conv(), {}),
    Case(
        "nn.conv3d",
        (X3, W3),
        conv()(np.pad(X3, ((0, 0), (0, 0), (1, 0), (0, 1), (2, 0))), W3),
        {"padding": (1, 0, 2, 0, 1, 0), "kernel_size": (2, 3, 2)},
    ),
    Case("nn.conv3d", (X3, W3), conv(padding=(1, 0, 1)), {"padding": (1, 0, 1)}),
    Case(
        "nn.conv3d",
        (numpy_of(X3, "NCDHW", "NDHWC"), numpy_of(W3, "OIDHW", "DHWIO")),
        moved(conv()(X3, W3), "NCDHW", "NDHWC"),
        {"data_layout": "NDHWC", "kernel_layout": "DHWIO"},
    ),
    *(
        Case(
            name,
            (blocked(X2, 1, 2), blocked(blocked(W2, 1, 2), 0, 3)),
            blocked(conv()(X2, W2).numpy(), 1, 3),
            {"data_layout": "NCHW2c", "kernel_layout": "OIHW2i3o", "out_layout": "NCHW3c"},
        )
        for name in ("nn.contrib_conv2d_NCHWc", "nn.contrib_conv2d_NCHWc_int8")
    ),
    Case(
        "nn.contrib_depthwise_conv2d_NCHWc",
        (blocked(X2, 1, 2), blocked(DEPTHWISE, 0, 2)[:, :, :, :, None]),
        blocked(conv(groups=4)(X2, DEPTHWISE).numpy(), 1, 2),
        {"data_layout": "NCHW2c", "kernel_layout": "OIHW1i2o", "groups": 4, "channels": 4},
    ),
]


def weight_gradient(dy, x):
    """torch's gradient by the weight of a convolution with stride 2 and padding 1."""
    w = torch.zeros(6, 4, 3, 2, dtype=torch.float64, requires_grad=True)
    y = F.conv2d(torch.as_tensor(x).double(), w, stride=2, padding=1)
    (dw,) = torch.autograd.grad(y, w, torch.as_tensor(dy).double())
    return dw.to(torch.float32)


DY = floats(2, 6, 4, 4)
BACKWARD = {"strides": (2, 2), "padding": (1, 1), "kernel_size": (3, 2)}

CASES += [
    Case(
        "nn.conv2d_backward_weight",
        (DY, X2),
        weight_gradient,
        {**BACKWARD, "kernel_layout": "NCHW", "out_layout": "OIHW"},
    ),
    Case(
        "nn.conv2d_backward_weight",
        (numpy_of(DY, "NCHW", "NHWC"), numpy_of(X2, "NCHW", "NHWC")),
        moved(weight_gradient(DY, X2), "OIHW", "HWIO"),
        {**BACKWARD, "data_layout": "NHWC", "kernel_layout": "NHWC", "out_layout": "HWIO"},
    ),
    Case("nn.conv2d_backward_weight", (DY, X2), refused="kernel_size is needed"),
]
