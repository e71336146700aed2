"""Cases of convolution over one axis; the oracles are in `conv.py`."""

from meta.testing import F, sample
from tests.op.conv import arranged, cases, conv, refused

# x, w, stride, padding, dilation, groups, and the shape of the result
WINDOWS = [
    ((1, 1, 3), (1, 1, 2), (1, 0, 1, 1), (1, 1, 2)),
    ((2, 3, 9), (4, 3, 3), (1, 1, 1, 1), (2, 4, 9)),
    ((2, 4, 8), (6, 2, 3), (2, (1,), 1, 2), (2, 6, 4)),
    ((1, 4, 9), (4, 1, 3), ((3,), (0, 2), 2, 4), (1, 4, 3)),
    ((2, 2, 7), (3, 2, 1), (4, 0, 1, 1), (2, 3, 2)),
]
CASES = cases(
    "conv1d",
    conv,
    WINDOWS + arranged(1, conv, (2, 1, 1)),
    [sample(F(0, 3, 4), F(2, 3, 3))],
    [sample(F(1, 1, 2), F(1, 1, 2), F(1, 1, 2), (1, 1, 3), *WINDOWS[0][2])],
)
CASES += refused(1)
