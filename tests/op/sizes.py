"""What the operators of `meta/op/sizes.py` have to do."""

import torch

from meta.testing import B, F, I, OpCase, error, refusals, sample


def size(x, axis=None):
    """torch's size; it has no tuple of axes."""
    if isinstance(axis, tuple):
        return tuple(x.size(a) for a in axis)
    return tuple(x.size()) if axis is None else x.size(axis)


SAMPLES = [
    sample(F(2, 3)),
    sample(F()),
    sample(F(0, 4)),
    sample(F(1)),
    sample(I(2, 1, 3, low=0, high=9)),
    sample(B(4)),
]

CASES = [
    OpCase(
        "size",
        samples=[
            *SAMPLES,
            sample(F(2, 3), 1),
            sample(F(2, 3), -2),
            sample(F(2, 3, 4), (2, -3)),
            sample(F(2, 3), ()),
        ],
        oracle=size,
        grad=False,
    ),
    OpCase("numel", samples=SAMPLES, oracle=torch.numel, grad=False),
    OpCase("ndarray_size", samples=SAMPLES, oracle=torch.numel, grad=False),
    OpCase(
        "shape_as_tensor",
        samples=SAMPLES,
        oracle=lambda x: torch.tensor(x.shape, dtype=torch.int64),
        grad=False,
    ),
]

CASES += refusals(
    {
        "size": [
            error(F(2, 3), 2, match="axis 2 is out of range"),
            error(F(2, 3), (0, -3), match="axis -3 is out of range"),
        ]
    }
)
