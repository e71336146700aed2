"""Cases of convolution over three axes; the oracles are in `conv.py`."""

from meta.testing import F, sample
from tests.op.conv import arranged, cases, conv, refused

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
    conv,
    WINDOWS + arranged(3, conv, (2, 1, 1)),
    [sample(F(0, 2, 3, 3, 3), F(2, 2, 2, 2, 2))],
)
CASES += refused(3)
