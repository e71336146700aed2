"""Cases of transposed convolution over one axis; the oracles are in `conv_transpose.py`."""

from meta.testing import F, sample
from tests.op.conv import arranged, cases
from tests.op.conv_transpose import conv_transpose

# x, w, stride, padding, output_padding, dilation, groups, and the shape of the result
WINDOWS = [
    ((1, 1, 2), (1, 1, 2), (1, 0, 0, 1, 1), (1, 1, 3)),
    ((2, 3, 4), (3, 4, 3), (2, 1, 1, 1, 1), (2, 4, 8)),
    ((1, 4, 3), (4, 2, 2), ((3,), (1,), (2,), 1, 2), (1, 4, 8)),
    ((1, 2, 3), (2, 3, 3), (1, (0, 2), 0, 2, 1), (1, 3, 5)),
]
CASES = cases(
    "conv1d_transpose",
    conv_transpose,
    WINDOWS + arranged(1, conv_transpose, (2, 1, 1, 1), transposed=True),
    [sample(F(0, 2, 3), F(2, 1, 2))],
)
