"""What the operators of `meta/op/strided.py` have to do."""

import numpy as np
import torch

from meta.testing import B, F, I, OpCase, error, refusals, sample


def strided_set(data, v, begin, end, strides=None):
    """Say by Python's own slices which element of data or v each place holds, and look it up."""
    begins, ends = ([b] if isinstance(b, int) else b for b in (begin, end))
    steps = [1] if strides is None else [strides] if isinstance(strides, int) else strides
    steps = steps * len(begins) if len(steps) == 1 else steps
    source = np.arange(data.numel()).reshape(data.shape)
    where = tuple(slice(*bounds) for bounds in zip(begins, ends, steps, strict=True))
    source[where] = data.numel() + np.arange(v.numel()).reshape(v.shape)
    return torch.cat([data.reshape(-1), v.reshape(-1)])[torch.from_numpy(source)]


CASES = [
    OpCase(
        "strided_set",
        samples=[
            sample(F(5, 4), F(3, 3), (1, 0), (4, 3)),
            sample(F(5, 4), F(3, 4), 1, 4),
            sample(F(5, 4), F(3, 2), (0, 3), (5, 0), (2, -2)),
            sample(F(5), F(5), -1, -6, -1),
            sample(F(5), F(3), -3, 100),
            sample(F(5), F(0), 4, 1),
            sample(F(6, 4), F(3, 2), (0, 1), (6, 4), 2),
            sample(F(2, 3), F(2, 3), (), ()),
            sample(F(), F(), (), ()),
            sample(F(0, 3), F(0, 1), (0, 1), (9, 2)),
            sample(I(6, low=0, high=9), I(3, low=0, high=9), 5, 0, -2),
            sample(B(3), B(1), 1, 2),
        ],
        oracle=strided_set,
    ),
]

_X = F(4, 3)

CASES += refusals(
    {
        "strided_set": [
            error(_X, F(2, 2), 0, 2, match="v has another shape than the slice"),
            error(_X, I(2, 3, low=0, high=3), 0, 2, match="cast the int64 one"),
            error(_X, F(2, 3), 0, 4, 0, match="a stride is 0"),
        ]
    }
)
