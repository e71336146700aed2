"""What the converters of `meta/frontend/relay/converters/math.py` have to give."""

from fractions import Fraction

import numpy as np

from tests.frontend.relay import quantized as q
from tests.frontend.relay.records import ConverterCase as Case

RNG = np.random.default_rng(11)
X = RNG.integers(-(2**20), 2**20, (2, 3, 4)).astype(np.int32)
Y = RNG.integers(2**30, 2**31 - 1, 3).astype(np.int32)
LEFT, RIGHT = np.array([2, 0, 0], np.int32), np.array([0, 4, 0], np.int32)
GRID = RNG.integers(2**30, 2**31 - 1, (4, 2)).astype(np.int32)
NONE = np.zeros((4, 2), np.int32)


def product(x, y, shift):
    def one(value, factor, exponent):
        return q.half_up(Fraction(int(value) * int(factor)) * Fraction(2) ** (int(exponent) - 31))

    return q.each(one, x, np.broadcast_to(y, x.shape), np.broadcast_to(shift, x.shape), dtype="i4")


def _column(v):
    return v[:, None]


PER_AXIS = {"axes": (1,), "is_lshift_required": True, "is_rshift_required": True}

CASES = [
    Case(
        "fixed_point_multiply",
        (X,),
        product(X, factor, shift),
        {"multiplier": factor, "shift": shift},
    )
    for factor, shift in ((1288490188, -2), (1 << 30, 3), (1 << 30, 1), (1 << 30, -4), (0, 0))
] + [
    Case(
        "fixed_point_multiply_per_axis",
        (X, Y, LEFT, RIGHT),
        product(X, _column(Y), _column(LEFT - RIGHT)),
        PER_AXIS,
    ),
    Case(
        "fixed_point_multiply_per_axis",
        (X, Y, LEFT, RIGHT),
        product(X, _column(Y), _column(-RIGHT)),
        {**PER_AXIS, "axes": (-2,), "is_lshift_required": False},
    ),
    Case(
        "fixed_point_multiply_per_axis",
        (X, GRID, NONE, NONE),
        product(X, GRID.T[:, None], 0),
        {**PER_AXIS, "axes": (2, 0)},
    ),
    Case(
        "fixed_point_multiply_per_axis",
        (X, GRID, NONE, NONE),
        attrs={**PER_AXIS, "axes": (2,)},
        refused="do not name the axes",
    ),
]
