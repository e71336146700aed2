"""What the converters of `meta/frontend/relay/converters/conv.py` have to give."""

import torch
import torch.nn.functional as F

from tests.frontend.relay.converters.conv import numpy_of
from tests.frontend.relay.records import ConverterCase as Case
from tests.frontend.relay.tensors import floats, integers, moved

X1, W1 = floats(2, 3, 5), floats(3, 4, 3)
X2, W2 = floats(1, 4, 4, 3), floats(4, 2, 3, 3)
X3, W3 = floats(1, 2, 3, 2, 3), floats(2, 3, 2, 2, 2)


def transposed(**options):
    """torch's transposed convolution in float64, of channels-first tensors."""

    def run(x, w):
        function = (F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d)[x.ndim - 3]
        x, w = torch.as_tensor(x), torch.as_tensor(w)
        return function(x.double(), w.double(), **options).to(torch.float32)

    return run


SWAPPED = numpy_of(W2, "IOHW", "OIHW")
EXACT = (
    integers(1, 2, 3, 3, low=-128, high=128, dtype="int8"),
    integers(2, 2, 2, 2, low=-128, high=128, dtype="int8"),
)

CASES = [
    Case("nn.conv1d_transpose", (X1, W1), transposed()),
    Case(
        "nn.conv1d_transpose",
        (X1, W1),
        transposed(stride=2, padding=1, output_padding=1),
        {"strides": (2,), "padding": (1,), "output_padding": (1,), "kernel_size": (3,)},
    ),
    Case("nn.conv1d_transpose", (X1, W1), transposed(), {"kernel_layout": "OIW"}, version=(0, 7)),
    Case("nn.conv2d_transpose", (X2, W2), transposed()),
    Case(
        "nn.conv2d_transpose",
        (X2, W2),
        transposed(stride=(2, 1), padding=1, output_padding=(1, 0)),
        {"strides": (2, 1), "padding": (1, 1), "output_padding": (1, 0), "channels": 2},
    ),
    Case(
        "nn.conv2d_transpose",
        (X2, W2),
        transposed(stride=2)(X2, W2)[:, :, 1:-2, :-1],
        {"strides": (2, 2), "padding": (1, 0, 2, 1)},
    ),
    Case("nn.conv2d_transpose", (X2, W2), transposed(groups=2), {"groups": 2}),
    Case("nn.conv2d_transpose", (X2, W2), transposed(dilation=2), {"dilation": (2, 2)}),
    Case("nn.conv2d_transpose", (X2, W2), transposed(), version=(0, 6)),
    Case("nn.conv2d_transpose", (X2, W2), transposed(), {"kernel_layout": "OIHW"}, version=(0, 7)),
    Case("nn.conv2d_transpose", (X2, W2), transposed(), {"kernel_layout": "IOHW"}, version=(0, 9)),
    Case("nn.conv2d_transpose", (X2, SWAPPED), transposed()(X2, W2), version=(0, 9)),
    Case("nn.conv2d_transpose", (X2, W2), transposed(), version=(0, 15)),
    Case(
        "nn.conv2d_transpose",
        (X2, SWAPPED),
        transposed()(X2, W2),
        {"kernel_layout": "OIHW"},
        version=(0, 15),
    ),
    Case(
        "nn.conv2d_transpose",
        (numpy_of(X2, "NCHW", "NHWC"), numpy_of(W2, "IOHW", "HWOI")),
        moved(transposed()(X2, W2), "NCHW", "NHWC"),
        {"data_layout": "NHWC", "kernel_layout": "HWOI"},
    ),
    Case(
        "nn.conv2d_transpose",
        EXACT,
        lambda x, w: transposed(stride=2)(x, w).to(torch.int32),
        {"out_dtype": "int32", "strides": (2, 2)},
        label="int8",
    ),
    Case("nn.conv2d_transpose", (X2, SWAPPED), refused="input channels"),
    Case("nn.conv3d_transpose", (X3, W3), transposed()),
    Case(
        "nn.conv3d_transpose",
        (X3, W3),
        transposed(stride=2, padding=1, output_padding=1),
        {"strides": (2, 2, 2), "padding": (1, 1, 1), "output_padding": (1, 1, 1)},
    ),
]
