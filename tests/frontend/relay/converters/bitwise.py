"""What the converters of `meta/frontend/relay/converters/math.py` have to give."""

import numpy as np

from tests.frontend.relay.records import ConverterCase as Case

A = np.array([[12, -7, 255], [0, 1, -128]], np.int32)
B = np.array([10, 3, 4], np.int32)

CASES = [
    *[Case(f"bitwise_{n}", (A, B), getattr(np, f"bitwise_{n}")) for n in ("and", "or", "xor")],
    Case("bitwise_not", (A,), np.bitwise_not),
    Case("left_shift", (A, B), np.left_shift),
    Case("right_shift", (A, B), np.right_shift),
]
