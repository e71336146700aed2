"""Cases of convolution over three axes; the oracles are in `conv.py`."""

from meta.testing import F, sample
from tests.op.conv import cases

# x, w, stride, padding, dilation, groups, and the shape of the result
WINDOWS = [
    ((1, 1, 3, 3, 3), (1, 1, 2, 2, 2), (1, 0, 1, 1), (1, 1, 2, 2, 2)),
    ((2, 2, 3, 4, 3), (2, 1, 3, 3, 1), (1, (1, 1, 0), 1, 2), (2, 2, 3, 4, 3)),
    (
        (1, 2, 4, 5, 6),
        (3, 2, 1, 2, 2),
        ((1, 2, 3), (0, 1, 2, 1, 0, 1), (1, 2, 1), 1),
        (1, 3, 5, 2, 3),
    ),
]
CASES = cases(
    "conv3d",
    WINDOWS,
    [
        sample(F(1, 3, 3, 4, 2), F(2, 2, 1, 2, 3), layout="NDHWC", kernel_layout="DHWIO",
               out_layout="NDHWC"),
        sample(F(0, 2, 3, 3, 3), F(2, 2, 2, 2, 2)),
    ],
)  # fmt: skip
