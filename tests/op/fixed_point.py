"""Test records of products with fixed-point numbers: the oracles compute with fractions."""

from fractions import Fraction
from math import floor, frexp

import numpy as np
import torch

from meta.testing import C, F, I, OpCase, error, sample


def _rounded(value, rounding):
    if rounding == "upward" or value >= 0:
        return floor(value + Fraction(1, 2))
    return -floor(-value + Fraction(1, 2))


def multiplied(x, multiplier, shift, rounding="upward"):
    def one(value, factor, exponent):
        product = Fraction(int(value) * int(factor))
        return _rounded(product * Fraction(2) ** (int(exponent) - 31), rounding)

    operands = [np.asarray(v) for v in (x, multiplier, shift)]
    return torch.from_numpy(np.array(np.vectorize(one, otypes=["int64"])(*operands))).int()


def number(x):
    def one(value):
        fraction, shift = frexp(value)
        whole = _rounded(Fraction(fraction) * 2**31, "nearest")
        return (whole // 2, shift + 1) if abs(whole) == 2**31 else (whole, shift)

    pairs = [one(v) for v in x.flatten().tolist()]
    columns = zip(*pairs, strict=True) if pairs else ((), ())
    return tuple(torch.tensor(c, dtype=torch.int32).reshape(x.shape) for c in columns)


def _ints(*shape, low=-(2**31), high=2**31):
    return I(*shape, low=low, high=high, dtype="int32")


HALVES = C([-7, -6, -5, -3, -2, -1, 0, 1, 2, 3, 5, 6, 7], "int32")
EXTREMES = C([-(2**31), 2**31 - 1, -1, 1, 0], "int32")
FACTORS = (2**30, 2**31 - 1, 1288490188, 0, -(2**30))

CASES = [
    OpCase(
        "fixed_point_multiply",
        samples=[
            *(
                sample(x, factor, shift, rounding)
                for rounding in ("upward", "nearest")
                for x in (HALVES, EXTREMES)
                for factor, shift in zip(FACTORS, (0, -1, -2, -5, 0), strict=True)
            ),
            sample(HALVES, 2**30, -1, "nearest"),
            sample(EXTREMES, 2**31 - 1, -32),
            sample(EXTREMES, 2**31 - 1, -40, "nearest"),
            sample(_ints(3, 4), 1395864371, -7),
            sample(_ints(3, 4, low=-1000, high=1000), 1395864371, 9, "nearest"),
            sample(_ints(2, 5, 3), _ints(5, 1, low=2**30), _ints(5, 1, low=-9, high=1)),
            sample(_ints(2, 5), _ints(5, low=2**30), _ints(5, low=-9, high=1), rounding="nearest"),
            sample(_ints(0, 2), 2**30, 1),
            sample(_ints(), 2**30, 1),
        ],
        oracle=multiplied,
        dtypes=("float32",),
        grad=False,
        errors=[
            error(F(2), 2**30, 1, match="x must be int32"),
            error(_ints(2), I(2, low=0, high=2), 1, match="int64"),
            error(_ints(2), 2**30, 1, "down", match="unknown rounding"),
            error(_ints(2), _ints(3), 1, match="cannot be broadcast"),
        ],
    ),
    OpCase(
        "fixed_point_number",
        samples=[
            sample(C([0.5, 1.0, 0.25, 0.0, 3.0, 1e-60, 1e60, -0.3], "float64")),
            sample(C([1 - 2**-53, 0.5 + 2**-32, 0.5 - 2**-34, 2 - 2**-40, -1 + 2**-53], "float64")),
            sample(C([[0.1 / 0.3], [0.7 / 0.2]], "float64")),
            sample(C(0.3, "float64")),
        ],
        oracle=number,
        dtypes=("float32",),
        grad=False,
        errors=[error(C([0.5], "float32"), match="x must be float64")],
    ),
]
