"""What the converters of `meta/frontend/relay/converters/nn.py` have to give."""

import numpy as np
import torch
import torch.nn.functional as F

from tests.frontend.relay.converters.conv import numpy_of
from tests.frontend.relay.records import ConverterCase as Case
from tests.frontend.relay.tensors import blocked, floats, integers, moved

X1, X2, X3 = floats(2, 3, 9), floats(1, 4, 7, 8), floats(1, 2, 5, 4, 6)
BYTES = integers(1, 2, 5, 5, low=-128, high=128, dtype="int8")
WHOLE = integers(1, 2, 4, 4, low=-1000, high=1000, dtype="int32")


def on_torch(function, **options):
    return lambda x: function(torch.as_tensor(x), **options)


def gradient(function, **options):
    """torch's gradient of a pooling, of (dy, x)."""

    def run(dy, x):
        x = torch.as_tensor(x).requires_grad_()
        return torch.autograd.grad(function(x, **options), x, torch.as_tensor(dy))[0]

    return run


def truncated_mean(x):
    """The mean of 2 by 2 integers, rounded towards zero."""
    windows = x.reshape(1, 2, 2, 2, 2, 2).sum((3, 5))
    return (np.sign(windows) * (np.abs(windows) // 4)).astype(np.int32)


W1, W2, W3 = {"pool_size": (3,)}, {"pool_size": (3, 2)}, {"pool_size": (2, 2, 2)}
STRIDED = {**W2, "strides": (2, 3), "padding": (1, 0)}
CEIL = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1), "ceil_mode": True}
SIDES = {**W2, "padding": (0, 0, 2, 1)}
NHWC = {"layout": "NHWC"}

CASES = [
    Case("nn.max_pool1d", (X1,), on_torch(F.max_pool1d, kernel_size=3, stride=1), W1),
    Case(
        "nn.max_pool1d",
        (X1,),
        on_torch(F.max_pool1d, kernel_size=3, stride=2, padding=1, ceil_mode=True),
        {**W1, "strides": (2,), "padding": (1,), "ceil_mode": True},
    ),
    Case("nn.max_pool2d", (X2,), on_torch(F.max_pool2d, kernel_size=(3, 2), stride=1), W2),
    Case(
        "nn.max_pool2d",
        (X2,),
        on_torch(F.max_pool2d, kernel_size=(3, 2), stride=(2, 3), padding=(1, 0)),
        STRIDED,
    ),
    Case(
        "nn.max_pool2d",
        (X2,),
        on_torch(F.max_pool2d, kernel_size=3, stride=2, padding=1, ceil_mode=True),
        CEIL,
    ),
    Case(
        "nn.max_pool2d",
        (X2,),
        on_torch(F.max_pool2d, kernel_size=(3, 2), stride=1, dilation=(2, 3)),
        {**W2, "dilation": (2, 3)},
    ),
    Case(
        "nn.max_pool2d",
        (X2,),
        lambda x: F.max_pool2d(F.pad(torch.as_tensor(x), (0, 1, 0, 2), value=-9), (3, 2), 1),
        SIDES,
    ),
    Case(
        "nn.max_pool2d",
        (numpy_of(X2, "NCHW", "NHWC"),),
        moved(F.max_pool2d(torch.as_tensor(X2), (3, 2), 1), "NCHW", "NHWC"),
        {**W2, **NHWC},
    ),
    Case(
        "nn.max_pool2d",
        (blocked(X2, 1, 2),),
        blocked(F.max_pool2d(torch.as_tensor(X2), (3, 2), 1).numpy(), 1, 2),
        {**W2, "layout": "NCHW2c"},
    ),
    Case(
        "nn.max_pool2d",
        (blocked(X2, 1, 2),),
        F.max_pool2d(torch.as_tensor(X2), (3, 2), 1),
        {**W2, "layout": "NCHW2c", "out_layout": "NCHW"},
    ),
    Case(
        "nn.max_pool2d",
        (BYTES,),
        lambda x: F.max_pool2d(torch.as_tensor(x).double(), 2, 2).to(torch.int8),
        {"pool_size": (2, 2), "strides": (2, 2)},
        label="int8",
    ),
    Case("nn.max_pool3d", (X3,), on_torch(F.max_pool3d, kernel_size=2, stride=1), W3),
    Case(
        "nn.max_pool3d",
        (X3,),
        lambda x: F.max_pool3d(F.pad(torch.as_tensor(x), (0, 0, 0, 1, 1, 0), value=-9), 2, 2),
        {**W3, "strides": (2, 2, 2), "padding": (1, 0, 0, 0, 1, 0)},
    ),
    Case("nn.avg_pool1d", (X1,), on_torch(F.avg_pool1d, kernel_size=3, stride=1), W1),
    Case(
        "nn.avg_pool1d",
        (X1,),
        on_torch(F.avg_pool1d, kernel_size=3, stride=2, padding=1, count_include_pad=True),
        {**W1, "strides": (2,), "padding": (1,), "count_include_pad": True},
    ),
    Case(
        "nn.avg_pool2d",
        (X2,),
        on_torch(
            F.avg_pool2d,
            kernel_size=(3, 2),
            stride=(2, 3),
            padding=(1, 0),
            count_include_pad=False,
        ),
        STRIDED,
    ),
    Case(
        "nn.avg_pool2d",
        (X2,),
        on_torch(F.avg_pool2d, kernel_size=3, stride=2, padding=1, ceil_mode=True),
        {**CEIL, "count_include_pad": True},
    ),
    Case(
        "nn.avg_pool2d",
        (numpy_of(X2, "NCHW", "NHWC"),),
        moved(F.avg_pool2d(torch.as_tensor(X2), (3, 2), 1), "NCHW", "NHWC"),
        {**W2, **NHWC},
    ),
    Case(
        "nn.avg_pool2d",
        (WHOLE,),
        truncated_mean,
        {"pool_size": (2, 2), "strides": (2, 2)},
        label="integers",
    ),
    Case("nn.avg_pool3d", (X3,), on_torch(F.avg_pool3d, kernel_size=2, stride=1), W3),
    Case(
        "nn.avg_pool3d",
        (X3,),
        on_torch(F.avg_pool3d, kernel_size=2, stride=2, padding=(1, 0, 1)),
        {**W3, "strides": (2, 2, 2), "padding": (1, 0, 1), "count_include_pad": True},
    ),
]

FUNCTIONS = {
    "max": (F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d),
    "avg": (F.adaptive_avg_pool1d, F.adaptive_avg_pool2d, F.adaptive_avg_pool3d),
}
for kind, (one, two, three) in FUNCTIONS.items():
    CASES += [
        Case(
            f"nn.adaptive_{kind}_pool1d", (X1,), on_torch(one, output_size=4), {"output_size": (4,)}
        ),
        Case(f"nn.adaptive_{kind}_pool1d", (X1,), X1, label="the input's extent"),
        Case(
            f"nn.adaptive_{kind}_pool2d",
            (X2,),
            on_torch(two, output_size=(3, 5)),
            {"output_size": (3, 5)},
        ),
        Case(f"nn.adaptive_{kind}_pool2d", (X2,), X2, label="the input's extents"),
        Case(
            f"nn.adaptive_{kind}_pool2d",
            (numpy_of(X2, "NCHW", "NHWC"),),
            moved(two(torch.as_tensor(X2), 2), "NCHW", "NHWC"),
            {"output_size": (2,), **NHWC},
        ),
        Case(
            f"contrib.adaptive_{kind}_pool2d",
            (X2,),
            on_torch(two, output_size=1),
            {"output_size": (1, 1)},
        ),
        Case(
            f"nn.adaptive_{kind}_pool3d",
            (X3,),
            on_torch(three, output_size=(2, 3, 4)),
            {"output_size": (2, 3, 4)},
        ),
        Case(
            f"nn.global_{kind}_pool2d",
            (X2,),
            lambda x, kind=kind: (x.max if kind == "max" else x.mean)((2, 3), keepdims=True),
        ),
        Case(
            f"nn.global_{kind}_pool2d",
            (numpy_of(X2, "NCHW", "NHWC"),),
            lambda x, kind=kind: (x.max if kind == "max" else x.mean)((1, 2), keepdims=True),
            NHWC,
        ),
    ]

DY = floats(1, 4, 4, 3)
BOTH = {"kernel_size": (3, 2), "stride": (2, 3), "padding": (1, 0)}

CASES += [
    Case("nn.max_pool2d_grad", (DY, X2), gradient(F.max_pool2d, **BOTH), STRIDED),
    Case(
        "nn.max_pool2d_grad",
        (numpy_of(DY, "NCHW", "NHWC"), numpy_of(X2, "NCHW", "NHWC")),
        moved(gradient(F.max_pool2d, **BOTH)(DY, X2), "NCHW", "NHWC"),
        {**STRIDED, **NHWC},
    ),
    Case(
        "nn.avg_pool2d_grad",
        (DY, X2),
        gradient(F.avg_pool2d, **BOTH, count_include_pad=False),
        STRIDED,
    ),
    Case(
        "nn.avg_pool2d_grad",
        (DY, X2),
        gradient(F.avg_pool2d, **BOTH),
        {**STRIDED, "count_include_pad": True},
    ),
]
