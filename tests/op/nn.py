"""Cases of softmax and bias. Add a record of the family here."""

import torch

from meta.testing import C, F, I, OpCase, sample


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
