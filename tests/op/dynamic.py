"""What the operators of `meta/op/dynamic.py` have to do: what numpy's do."""

import numpy as np
import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample

NAN = float("nan")


def argwhere(condition):
    """numpy's."""
    return torch.from_numpy(np.argwhere(condition.numpy()))


def upper_bound_argwhere(condition):
    """numpy's, with rows of -1 behind it."""
    found = argwhere(condition)
    indices = torch.full((condition.numel(), condition.ndim), -1)
    indices[: len(found)] = found
    return indices, torch.tensor(found.shape)


def nonzero(x):
    """numpy's."""
    return tuple(map(torch.from_numpy, np.nonzero(x.numpy())))


def unique(x, return_inverse=False, return_counts=False):
    """numpy's, in which the inverse may be flat."""
    found = np.unique(
        x.numpy(),
        return_inverse=return_inverse,
        return_counts=return_counts,
        equal_nan=False,
    )
    if not isinstance(found, tuple):
        return torch.from_numpy(found)
    results = [torch.from_numpy(f) for f in found]
    if return_inverse:
        results[1] = results[1].reshape(x.shape)
    return tuple(results)


PLACES = [
    sample(B(3, 4)),
    sample(I(2, 3, 2, low=0, high=2, dtype="int32")),
    sample(C([0.0, -0.0, NAN, 2.0])),
    sample(F(0, 3)),
]

CASES = [
    OpCase("argwhere", [*PLACES, sample(F())], argwhere, dialects=("torch",), grad=False),
    OpCase(
        "upper_bound_argwhere",
        samples=[
            *PLACES,
            sample(F()),
            sample(C(0.0)),
            sample(I(3, 5, 7, 31, low=0, high=2)),
            sample(I(0, 0, 2, low=0, high=2)),
            sample(I(2, 3, low=0, high=1, dtype="uint8")),
        ],
        oracle=upper_bound_argwhere,
        grad=False,
    ),
    OpCase("nonzero", PLACES, nonzero, dialects=("torch",), grad=False),
    OpCase(
        "unique",
        samples=[
            sample(I(3, 5, low=-3, high=3)),
            sample(C([[2.0, 1.0, 2.0], [0.0, -1.0, 1.0]]), True),
            sample(C([2.0, NAN, 1.0, 2.0, NAN]), return_counts=True),
            sample(I(9, low=0, high=4, dtype="uint8"), True, True),
            sample(B(7)),
            sample(F(0)),
        ],
        oracle=unique,
        dialects=("torch",),
        grad=False,
    ),
]

CASES += refusals({"nonzero": [error(F(), match="x has no axis")]})
