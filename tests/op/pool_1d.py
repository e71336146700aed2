"""Cases of pooling over one axis; the oracles are in `pool.py`."""

import torch

from tests.op.pool import cases, refused

# kernel, stride, padding, dilation, ceil_mode, include_pad
WINDOWS = [
    (2, 2, 0, 1, False, True),
    (3, 2, 1, 1, True, False),
    ((3,), (1,), (0, 2), 1, False, False),
    (2, 3, (1, 0), 1, True, True),
    (3, 1, 2, 2, False, True),
]
SHAPES = [(2, 2, 6), (1, 3, 8), (1, 2, 5), (2, 1, 6), (1, 2, 7)]
ADAPTIVE = [((2, 3, 8), (3,)), ((1, 2, 3), 5), ((2, 1, 4), 1)]
TIES = torch.tensor([[[1.0, 1.0, 0.0, 1.0, 1.0]]])
CASES = cases(1, SHAPES, WINDOWS, ADAPTIVE, (2, 5, 3), (TIES, 2, 1, 0, 1, False, True))
CASES += refused(1)
