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


def sparse_fill_empty_rows(indices, values, shape, default):
    """Row by row."""
    places, numbers, empty = [], [], []
    for row in range(int(shape[0])):
        own = [k for k, at in enumerate(indices.tolist()) if at[0] == row]
        empty.append(not own)
        places += [indices[k] for k in own] or [torch.tensor([row] + [0] * (len(shape) - 1))]
        numbers += [values[k] for k in own] or [default]
    return (
        torch.stack(places).to(indices.dtype),
        torch.stack(numbers),
        torch.tensor(empty, dtype=torch.bool),
    )


ENTRIES = C([[3, 1], [0, 3], [0, 1], [2, 0]], "int64")
NONE = C([[0, 0]], "int64")

CASES += [
    OpCase(
        "sparse_fill_empty_rows",
        samples=[
            sample(ENTRIES, F(4), C([5, 6], "int64"), F()),
            sample(ENTRIES, I(4, low=0, high=9), C([4, 6], "int64"), C(10, "int64")),
            sample(NONE, F(1), C([3, 1], "int64"), F()),
        ],
        oracle=sparse_fill_empty_rows,
        dialects=("torch",),
        grad=False,
        errors=[
            error(F(4, 2), F(4), C([5, 6], "int64"), F(), match="integer"),
            error(ENTRIES, F(4), F(2), F(), match="integer"),
            error(ENTRIES, F(4, 1), C([5, 6], "int64"), F(), match="no sparse tensor"),
            error(ENTRIES, F(4), C([5, 6], "int64"), C(1, "int64"), match="dtype"),
        ],
    )
]
