"""What the operators of `meta/op/sizes.py` have to do."""

import torch

from meta.testing import B, F, I, OpCase, error, refusals, sample


def size(x, axis=None):
    """torch's size; it has no tuple of axes."""
    if isinstance(axis, tuple):
        return tuple(x.size(a) for a in axis)
    return tuple(x.size()) if axis is None else x.size(axis)


def reduce_axis(x1, x2):
    """Find by trial the axes that are summed, and whether they stay."""
    lead = x1.ndim - x2.ndim
    padded = (1,) * lead + tuple(x2.shape)
    return [i for i in range(x1.ndim) if i < lead or padded[i] != x1.shape[i]], lead


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
        "shape",
        samples=[sample(F(2, 3)), sample(F()), sample(F(0, 1))],
        oracle=lambda x: tuple(x.shape),
        dtypes=("float32",),
        grad=False,
    ),
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
    OpCase(
        "get_reduce_axis",
        samples=[
            sample(F(3, 4, 5), F(4, 1)),
            sample(F(3, 4), F(3, 4)),
            sample(F(2, 3), F()),
            sample(F(1, 3), F(1)),
        ],
        oracle=lambda x1, x2: tuple(reduce_axis(x1, x2)[0]),
        dtypes=("float32",),
        grad=False,
    ),
    OpCase(
        "get_kept_dims",
        samples=[
            sample(F(3, 4, 5), F(4, 1)),
            sample(F(3, 4), F(3, 4)),
            sample(F(2, 3), F()),
            sample(F(1, 3), F(1)),
        ],
        oracle=lambda x1, x2: tuple(
            int(a >= reduce_axis(x1, x2)[1]) for a in reduce_axis(x1, x2)[0]
        ),
        dtypes=("float32",),
        grad=False,
    ),
]

CASES += refusals(
    {
        "size": [
            error(F(2, 3), 2, match="axis 2 is out of range"),
            error(F(2, 3), (0, -3), match="axis -3 is out of range"),
        ],
        "get_reduce_axis get_kept_dims": [
            error(F(2, 3), F(2), match="broadcast"),
            error(F(3), F(2, 3), match="x2 does not broadcast to the shape of x1"),
        ],
    }
)
