"""What the converters of `meta/frontend/relay/converters/math.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

X = np.array([[1.0, 2.0, np.nan], [3.0, -1.0, 0.0]], np.float32)
Y = np.array([1.0, 3.0, 0.0], np.float32)
P = np.array([[True, False], [True, False]])
Q = np.array([[True, True], [False, False]])

CASES = [
    *[Case(n, (X, Y), getattr(np, n))
      for n in ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal")],
    Case("less", (np.array([1, 5]), np.array([2, 2])), np.less, label="int64"),
    *[Case(n, (P, Q), getattr(np, n)) for n in ("logical_and", "logical_or", "logical_xor")],
    Case("logical_and", (np.array([2, 0], np.int8), np.array([1, 3], np.int8)),
         np.array([1, 0], np.int8), label="int8"),
    Case("logical_not", (P,), np.logical_not),
    Case("logical_not", (np.array([0, 3], np.int32),), np.array([1, 0], np.int32), label="int32"),
]  # fmt: skip
