"""What the converters of `meta/frontend/relay/converters/indexing.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
M = np.arange(12, dtype=np.float32).reshape(3, 4)
PLACES = np.array([[0, 5], [-1, 2]], np.int32)
IN_BATCHES = np.array([[2, 0], [1, 1]], np.int64)


def clipped(axis):
    return lambda x, i: np.take(x, i, axis, mode="clip")


def in_batches(x, i):
    """The axis behind the one of the batch."""
    return np.stack([a[j] for a, j in zip(x, i, strict=True)])


def last_in_batches(x, i):
    return np.stack([a[:, j] for a, j in zip(x, i, strict=True)])


def gathered_in_batches(x, i):
    """One coordinate, for each of the first axis."""
    return np.stack([x[b, i[0, b]] for b in range(len(x))])


CASES = [
    Case("take", (M, np.array([-1, 1, 7], np.int32)), clipped(1), {"axis": 1}),
    Case("take", (M, PLACES), clipped(0), {"axis": 0}),
    Case("take", (M, PLACES), lambda x, i: np.take(x, i, 1, mode="wrap"),
         {"axis": 1, "mode": "wrap"}),
    Case("take", (M, np.abs(PLACES) % 3), lambda x, i: x[i], {"axis": 0, "mode": "fast"}),
    Case("take", (M, np.array([[11, 0]])), lambda x, i: x.reshape(-1)[i]),
    Case("take", (M, np.array(2, np.int64)), lambda x, i: x[2], {"axis": 0}),
    Case("take", (M, np.array([1.0, 0.0], np.float32)), lambda x, i: x[[1, 0]], {"axis": 0},
         label="indices in floats"),
    Case("take", (X, IN_BATCHES), in_batches, {"axis": 1, "batch_dims": 1}),
    Case("take", (X, IN_BATCHES), last_in_batches, {"axis": 2, "batch_dims": 1}),
    Case("take", (X, IN_BATCHES - 9), lambda x, i: last_in_batches(x, i % 4),
         {"axis": -1, "batch_dims": -1, "mode": "wrap"}),
    Case("take", (X, IN_BATCHES + 9), lambda x, i: x[:, -1:].repeat(2, 1),
         {"axis": 1, "batch_dims": 1}, label="in batches, clipped"),
    Case("take", (X, IN_BATCHES), attrs={"axis": 0, "batch_dims": 1}, refused="batch axes"),
    Case("gather", (M, IN_BATCHES), lambda x, i: np.take_along_axis(x[:2], i, 1), {"axis": 1}),
    Case("gather", (M, IN_BATCHES), lambda x, i: np.take_along_axis(x[:, :2], i, 0), {"axis": 0}),
    Case("gather_nd", (X, IN_BATCHES % 2), lambda x, i: x[tuple(i)]),
    Case("gather_nd", (X, np.array([[1, 2]])), gathered_in_batches,
         {"batch_dims": 1, "index_rank": 1}),
    Case("adv_index", ((M, np.array([[0], [2]]), np.array([1, -1])),),
         lambda p: p[0][p[1], p[2]]),
    Case("unravel_index", (np.array([22, 0, 13], np.int32), np.array([2, 3, 4], np.int32)),
         lambda i, s: np.array(np.unravel_index(i, s), np.int32), constants=(1,)),
    Case("unravel_index", (np.array([22, 0, 13]), np.array([2, 3, 4], np.int32)),
         lambda i, s: np.array(np.unravel_index(i, s)), label="the shape is an input"),
    Case("unravel_index", (np.array(7), np.array([3, 4])), np.array([1, 3]), constants=(1,)),
]  # fmt: skip
