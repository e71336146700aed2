"""Cases of softmax and bias. Add a record of the family here."""

import torch

from meta.testing import C, F, I, OpCase, error, refusals, sample


def add_along(x, bias, axis=1):
    return (x.movedim(axis, -1) + bias).movedim(-1, axis)


ROWS = [
    sample(F(3, 5)),
    sample(F(2, 3, 4), axis=0),
    sample(F(2, 3, 4), axis=-2),
    sample(F(7)),
    sample(F(4, 1)),
    sample(F(0, 5)),
    sample(F(5, 0)),
    sample(F(2, 130, low=-30.0, high=30.0)),
    sample(F(3, 5, 2, 2), axis=1),
    sample(C([[-1e4, 0.0, 1e4], [3.0, 3.0, 3.0]])),
]
PAIRS = [
    sample(F(3, 5), F(3, 5)),
    sample(F(2, 3, 4), F(2, 3, 4), axis=0),
    sample(F(2, 3, 4), F(2, 3, 4), axis=-2),
    sample(F(7), F(7)),
    sample(F(4, 1), F(4, 1)),
    sample(F(0, 5), F(0, 5)),
    sample(F(2, 130), F(2, 130)),
]

CASES = [
    OpCase("softmax", ROWS, lambda x, axis=-1: torch.softmax(x, axis)),
    OpCase("log_softmax", ROWS, lambda x, axis=-1: torch.log_softmax(x, axis)),
    OpCase(
        "softmax_dx",
        PAIRS,
        lambda y, dy, axis=-1: y * dy - y * (y * dy).sum(axis, keepdim=True),
        # A difference of sums of 130 products that nearly cancel.
        atol={"float16": 2e-2, "bfloat16": 1e-1},
    ),
    OpCase(
        "log_softmax_dx",
        PAIRS,
        lambda y, dy, axis=-1: dy - y.exp() * dy.sum(axis, keepdim=True),
        atol={"float16": 2e-2, "bfloat16": 2e-1},
    ),
    OpCase(
        "bias_add",
        [
            sample(F(2, 3), F(3)),
            sample(F(2, 3, 4, 5), F(3)),
            sample(F(2, 3, 4), F(4), axis=-1),
            sample(F(2, 3, 4), F(2), axis=0),
            sample(F(5), F(5), axis=0),
            sample(F(0, 3), F(3)),
            sample(F(2, 1), F(1), axis=1),
        ],
        add_along,
    ),
    OpCase(
        "bias_add",
        [sample(I(2, 3, low=-5, high=5), I(3, low=-5, high=5))],
        add_along,
        dtypes=(),
        grad=False,
    ),
]

_FLOATS_ONLY = error(I(2, 3, low=0, high=3), match="x must be floating point")
NO_AXIS = [
    error(F(2, 3), axis=2, match="axis 2 is out of range for ndim 2"),
    error(F(), match="at least one axis"),
    _FLOATS_ONLY,
]
NO_PAIR = [
    error(F(2, 3), F(3, 2), match="dy is not of y's type"),
    error(F(2, 3), F(2, 3), axis=-3, match="axis -3 is out of range"),
]

CASES += refusals(
    {
        "softmax log_softmax": NO_AXIS,
        "softmax_dx log_softmax_dx": NO_PAIR,
        "bias_add": [
            error(F(2, 3), F(2), match="bias does not fit"),
            error(F(2, 3), F(1, 3), match="bias must have 1 axes"),
            error(F(2, 3), F(3), axis=2, match="axis 2 is out of range"),
            error(F(2, 3), C([1.0, 2.0, 3.0], "float64"), match="cast the float32 one"),
        ],
    }
)
