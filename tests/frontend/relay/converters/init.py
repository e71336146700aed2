"""What the converters of `meta/frontend/relay/converters/create.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.array([[1.5, -2.0]], np.float32)
HALF, TWO = np.array(2.5, np.float32), np.array(2, np.int32)
INDICES = np.array([2, 0, 5], np.int32)
ON, OFF = np.array(2.0, np.float32), np.array(-1.0, np.float32)


def scalars(*values, dtype):
    return tuple(np.array(v, dtype) for v in values)


def hot(axis, dtype):
    rows = np.where(np.arange(4) == INDICES[:, None], 2.0, -1.0).astype(dtype)
    return np.moveaxis(rows, 1, axis)


CASES = [
    Case("zeros", (), np.zeros((2, 3), np.int64), {"shape": (2, 3), "dtype": "int64"}),
    Case("zeros", (), np.zeros((), np.float32), {"shape": ()}, label="a scalar"),
    Case("ones", (), np.ones(2, bool), {"shape": (2,), "dtype": "bool"}),
    Case("full", (HALF,), np.full((2, 2), 2.5, np.float32), {"shape": (2, 2), "dtype": "float32"},
         constants=(0,)),
    Case("full", (HALF,), np.full((2,), 2, np.int32), {"shape": (2,), "dtype": "int32"},
         label="the number is an input"),
    Case("full", (TWO,), np.full((3,), 2, np.int32), {"shape": (3,)}, constants=(0,)),
    Case("full_like", (X, HALF), np.full((1, 2), 2.5, np.float32), constants=(1,)),
    Case("full_like", (X, TWO), np.full((1, 2), 2.0, np.float32), label="the number is an input"),
    Case("arange", scalars(1.0, 4.0, 0.5, dtype=np.float32), np.arange(1, 4, 0.5, np.float32),
         {"dtype": "float32", "start": None}, constants=(0, 1, 2)),
    Case("arange", scalars(7, 0, -3, dtype=np.int32), np.array([7, 4, 1], np.int64),
         {"dtype": "int64"}, constants=(0, 1, 2)),
    Case("arange", scalars(1, 9, 3, dtype=np.int64), np.array([1, 4, 7], np.int32),
         {"dtype": "int32"}, constants=(0, 2), label="the end is an input"),
    Case("one_hot", (INDICES, ON, OFF), hot(1, np.float32), {"depth": 4, "dtype": "float32"}),
    Case("one_hot", (INDICES, ON, OFF), hot(0, np.int32),
         {"depth": 4, "axis": 0, "dtype": "int32"}, constants=(1, 2)),
]  # fmt: skip
