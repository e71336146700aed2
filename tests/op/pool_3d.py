"""Cases of pooling over three axes; the oracles are in `pool.py`."""

import torch

from tests.op.pool import cases, refused

# kernel, stride, padding, dilation, ceil_mode, include_pad
WINDOWS = [
    (2, 2, 0, 1, False, True),
    ((1, 2, 3), (1, 2, 2), (0, 1, 1), 1, True, False),
    (2, (1, 2, 1), (1, 0, 0, 0, 1, 1), (1, 2, 1), False, False),
]
SHAPES = [(2, 2, 4, 4, 4), (1, 2, 3, 4, 6), (1, 1, 3, 4, 3)]
ADAPTIVE = [((1, 2, 3, 4, 5), (2, 4, 3)), ((2, 1, 2, 3, 1), 2)]
TIES = torch.tensor([1.0, 1.0, 0.0, 1.0] * 4 + [1.0, 0.0]).reshape(1, 1, 2, 3, 3)
CASES = cases(3, SHAPES, WINDOWS, ADAPTIVE, (1, 4, 5, 4, 3), (TIES, 2, 1, 0, 1, False, True))
CASES += refused(3)
