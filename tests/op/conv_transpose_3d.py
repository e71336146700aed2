"""Cases of transposed convolution over three axes; the oracles are in `conv_transpose.py`."""

from meta.testing import F, sample
from tests.op.conv import arranged, cases
from tests.op.conv_transpose import conv_transpose

# x, w, stride, padding, output_padding, dilation, groups, and the shape of the result
WINDOWS = [
    ((1, 1, 2, 2, 2), (1, 1, 2, 2, 2), (1, 0, 0, 1, 1), (1, 1, 3, 3, 3)),
    ((1, 2, 2, 3, 2), (2, 2, 3, 2, 1), (2, (1, 0, 0), (1, 0, 1), 1, 2), (1, 4, 4, 6, 4)),
    (
        (1, 2, 2, 2, 3),
        (2, 1, 2, 2, 2),
        ((1, 2, 3), (0, 1, 2, 1, 0, 1), (0, 1, 0), (2, 1, 1), 1),
        (1, 1, 3, 4, 5),
    ),
]
CASES = cases(
    "conv3d_transpose",
    conv_transpose,
    WINDOWS + arranged(3, conv_transpose, (2, 1, 1, 1), transposed=True),
    [sample(F(0, 1, 2, 2, 2), F(1, 1, 2, 2, 2))],
)
