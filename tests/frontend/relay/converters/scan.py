"""What the converters of `meta/frontend/relay/converters/math.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.array([[1.5, -2.0, 3.0], [0.5, 4.0, -1.0]], np.float32)
INTS = np.array([[1, -2, 3], [5, 4, -1]], np.int32)
BOOLS = np.array([True, False, True])


def before(scan, first):
    """What is scanned before each element, along axis 1."""
    return lambda x: np.concatenate(
        [np.full((2, 1), first, x.dtype), scan(x, 1, dtype=x.dtype)[:, :-1]], 1
    )


CASES = [
    Case("cumsum", (X,), lambda x: np.cumsum(x, 1), {"axis": 1}),
    Case("cumsum", (X,), lambda x: np.cumsum(x), {"axis": None}),
    Case("cumsum", (INTS,), lambda x: np.cumsum(x, 0, np.int64), {"axis": 0, "dtype": "int64"}),
    Case("cumsum", (INTS,), lambda x: np.cumsum(x, -1, np.int32), {"axis": -1}),
    Case("cumsum", (X,), before(np.cumsum, 0), {"axis": 1, "exclusive": True}),
    Case("cumsum", (X,), lambda x: np.cumsum(x, 0), {"axis": 0, "exclusive": None}),
    Case("cumsum", (BOOLS,), np.array([1, 1, 2], np.int32), {"axis": 0}, label="bools"),
    Case("cumprod", (X,), lambda x: np.cumprod(x, 1), {"axis": 1}),
    Case("cumprod", (INTS,), lambda x: np.cumprod(x, dtype=np.int32), {"axis": None}),
    Case("cumprod", (INTS,), before(np.cumprod, 1), {"axis": 1, "exclusive": 1}),
    Case("cumprod", (INTS,), lambda x: np.cumprod(x, 0, np.float32),
         {"axis": 0, "dtype": "float32"}),
]  # fmt: skip
