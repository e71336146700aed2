"""What the operators of `meta/op/sorting.py` have to do."""

import numpy as np
import torch

from meta.base.errors import ArgumentError
from meta.testing import B, C, F, I, OpCase, error, refusals, sample

NAN, INF = float("nan"), float("inf")

TIES = C([[1, 0, 1, 0, 2], [3, 3, -1, 3, -1]])

SPECIAL = C([[NAN, 1, -INF, INF, NAN], [0.0, -0.0, NAN, -1, 0.0]])


def argsort(x, axis=-1, descending=False, dtype="int64"):
    """numpy sorts ascending, NaN last; descending is ascending of what is reversed, reversed."""
    values = x.detach().numpy()
    if not descending:
        return torch.from_numpy(np.argsort(values, axis, kind="stable"))
    backwards = np.flip(np.argsort(np.flip(values, axis), axis, kind="stable"), axis)
    return torch.from_numpy(values.shape[axis] - 1 - backwards)


def sort(x, axis=-1, descending=False):
    """Take in the order of the indices."""
    return torch.gather(x, axis, argsort(x, axis, descending))


def topk(x, k, axis=-1, largest=True, ret_type="both", dtype="int64"):
    """The first k of everything."""
    indices = argsort(x, axis, largest).narrow(axis, 0, k)
    values = torch.gather(x, axis, indices)
    return {"both": (values, indices), "values": values, "indices": indices}[ret_type]


def searchsorted(x1, x2, right=False, dtype="int64"):
    """numpy's search, row by row."""
    side = "right" if right else "left"
    if x1.ndim == 1:
        return torch.as_tensor(np.searchsorted(x1.numpy(), x2.numpy(), side))
    rows = x1.reshape(-1, x1.shape[-1])
    wanted = x2.reshape(len(rows), -1)
    found = [np.searchsorted(r.numpy(), w.numpy(), side) for r, w in zip(rows, wanted, strict=True)]
    return torch.as_tensor(np.array(found)).reshape(x2.shape)


ORDERS = [
    sample(F(3, 7)),
    sample(F(3, 4, 2), axis=1),
    sample(F(5, 3), 0, True),
    sample(TIES),
    sample(TIES, descending=True),
    sample(SPECIAL),
    sample(SPECIAL, descending=True),
    sample(F(1)),
    sample(F(0)),
    sample(F(2, 0, 3), axis=0),
    sample(I(2, 9, low=-128, high=127, dtype="int8")),
    sample(I(2, 9, low=0, high=255, dtype="uint8"), descending=True),
    *[sample(I(2, 9, low=0, high=2**b, dtype=f"uint{b}")) for b in (16, 32)],
    sample(I(40, low=-9, high=9)),
    sample(B(9)),
]

CASES = [
    OpCase(
        "argsort",
        samples=[*ORDERS, sample(F(3, 7), -1, False, "int64"), sample(F(3, 7), dtype="int8")],
        oracle=argsort,
        grad=False,
    ),
    OpCase("sort", samples=ORDERS, oracle=sort),
    OpCase(
        "topk",
        samples=[
            sample(F(3, 7), 2),
            sample(F(3, 7), 2, 0, False),
            sample(F(3, 4, 2), 3, 1),
            sample(F(3, 4), 4, largest=False),
            sample(TIES, 3),
            sample(SPECIAL, 3),
            sample(SPECIAL, 2, largest=False),
            sample(F(3, 7), 0),
            sample(F(0, 7), 3),
            sample(I(2, 9, low=-9, high=9, dtype="int32"), 4),
        ],
        oracle=topk,
    ),
    OpCase(
        "topk",
        samples=[
            sample(F(3, 4), 4, largest=False, ret_type="values"),
            sample(F(3, 7), 2, 0, False, "both", "int32"),
        ],
        oracle=topk,
    ),
    OpCase(
        "topk",
        samples=[sample(F(3, 7), 2, ret_type="indices"), sample(TIES, 4, 1, False, "indices")],
        oracle=topk,
        grad=False,
    ),
    OpCase(
        "searchsorted",
        samples=[
            sample(C([-1.0, 0.0, 0.0, 1.5, 3.0]), F(4, 3)),
            sample(C([-1.0, 0.0, 0.0, 1.5, 3.0]), C([0.0, -0.0, 3.0, -1.0, 9.0, NAN, -INF, INF])),
            sample(C([-1.0, 0.0, 0.0, 1.5, 3.0]), C([0.0, 3.0, 9.0, NAN, INF]), right=True),
            sample(C([[0.0, 1.0, 2.0], [1.0, 1.0, 1.0]]), F(2, 4), True, "int32"),
            sample(C([1, 3, 3, 7], "int32"), I(3, 2, low=0, high=9, dtype="int32")),
            sample(C([1, 3, 3, 7], "uint8"), I(9, low=0, high=9, dtype="uint8"), right=True),
            sample(C([1, 3, 65000], "uint16"), I(9, low=0, high=2**16, dtype="uint16")),
            sample(C([1, 3, 2**32 - 2], "uint32"), C([2**32 - 1, 0, 3], "uint32"), right=True),
            sample(F(0), F(3)),
            sample(C([1.0]), F()),
            sample(C([1.0]), F(0, 2)),
        ],
        oracle=searchsorted,
        grad=False,
    ),
]

_X = F(2, 3)

_LONG = F(129)

CASES += refusals(
    {
        "argsort": [
            error(_X, 2, match="axis 2 is out of range"),
            error(_X, dtype="float32", match="indices must be integers"),
            error(_LONG, dtype="int8", match="the largest index does not fit int8"),
        ],
        "sort": [
            error(_X, 2, match="axis 2 is out of range"),
            error(F(), match="at least one axis"),
            error(_X, stable=1, match="stable must be True or False", raises=ArgumentError),
        ],
        "topk": [
            error(_X, 4, match="k is out of range"),
            error(_X, -1, match="k is out of range"),
            error(_X, 1, 2, match="axis 2 is out of range"),
            error(_X, 1, ret_type="all", match="unknown ret_type"),
            error(_LONG, 1, dtype="int8", match="the largest index does not fit int8"),
        ],
        "searchsorted": [
            error(F(3, 4), _X, match="x1 does not fit x2"),
            error(I(4, low=0, high=3), _X, match="cast the int64 one"),
            error(B(4), B(2, 3), match="bool cannot be searched"),
            error(F(4), _X, dtype="float32", match="indices must be integers"),
            error(F(128), _X, dtype="int8", match="the largest index does not fit int8"),
        ],
    }
)
