"""Test records of the trigonometric and hyperbolic functions."""

import math

import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample
from tests.op.unary import EDGES, _real

TURNS = [1e-3, -1e3, 1.0, -2.0, *EDGES]
SIGNED_ZEROS = [0.0, 0.0, -0.0, -0.0, 1.0, -1.0, math.inf, math.nan]


def _shapes(low, high):
    return [sample(F(*s, low=low, high=high)) for s in ((3, 5), (), (0, 3), (2, 1, 7))]


def _atan2(x1, x2):
    like = x1 if isinstance(x1, torch.Tensor) else x2
    dtype = like.dtype if like.dtype.is_floating_point else torch.float32
    return torch.atan2(*[torch.as_tensor(x, dtype=dtype) for x in (x1, x2)])


ANGLES = [
    sample(F(3, 4), F(3, 4)),
    sample(F(2, 1, 3), F(4, 1)),
    sample(F(), F(3)),
    sample(F(0, 2), F(2)),
    sample(F(3), 2),
    sample(1.5, F(3)),
    sample(C([0.0, 1.0, -1.0]), C([0.0, 0.0, -2.0])),
]
ANGLES_OF_OTHERS = [
    sample(C(SIGNED_ZEROS), C([0.0, -0.0, 0.0, -0.0, -0.0, 0.0, -math.inf, 1.0])),
    sample(I(3, low=-4, high=5, dtype="int32"), I(2, 3, low=-4, high=5, dtype="int32")),
    sample(I(3, low=-4, high=5, dtype="int8"), 2),
    sample(B(3), B(3)),
]

CASES = [
    *_real("sin", torch.sin, _shapes(-4, 4), TURNS),
    *_real("cos", torch.cos, _shapes(-4, 4), TURNS),
    *_real("tan", torch.tan, _shapes(-1.2, 1.2), TURNS),
    *_real("asin", torch.asin, _shapes(-0.9, 0.9), [1.0, -1.0, 1.5, *EDGES]),
    *_real("acos", torch.acos, _shapes(-0.9, 0.9), [1.0, -1.0, 1.5, *EDGES]),
    *_real("atan", torch.atan, _shapes(-4, 4), [1e4, -1e4, *EDGES]),
    *_real("sinh", torch.sinh, _shapes(-2, 2), [-1000.0, 1000.0, 1e-3, *EDGES]),
    *_real("cosh", torch.cosh, _shapes(-2, 2), [-1000.0, 1000.0, 1e-3, *EDGES]),
    *_real("asinh", torch.asinh, _shapes(-4, 4), [-1e4, 1e4, 1e-3, *EDGES]),
    *_real("acosh", torch.acosh, _shapes(1.2, 4), [1.0, 1e4, 0.5, *EDGES]),
    *_real("atanh", torch.atanh, _shapes(-0.9, 0.9), [1.0, -1.0, 1.5, 1e-3, *EDGES]),
    *_real("deg2rad", torch.deg2rad, _shapes(-2, 2), [180.0, -1e4, *EDGES]),
    *_real("rad2deg", torch.rad2deg, _shapes(-2, 2), [3.0, -100.0, *EDGES]),
    OpCase("atan2", samples=ANGLES, oracle=_atan2),
    OpCase("atan2", samples=ANGLES_OF_OTHERS, oracle=_atan2, grad=False),
]

CASES += refusals(
    {
        "atan2": [
            error(F(3), C([1.0], "float64"), match="cast the float32 one"),
            error(F(2), F(3), match="broadcast"),
            error(I(3, low=1, high=3), 0.5, match="does not fit a tensor of int64"),
        ]
    }
)
