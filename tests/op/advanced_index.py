"""What the operators of `meta/op/advanced_index.py` have to do."""

import torch

from meta.testing import B, C, F, I, OpCase, error, refusals, sample


def adv_index(inputs):
    """torch's own indexing."""
    x, *indices = inputs
    return x[tuple(i.long() for i in indices)] if indices else x.clone()


def adv_index_dx(dy, inputs):
    """The gradient of the oracle above; that of x is 0."""
    x, *indices = inputs
    at = torch.zeros(x.shape, dtype=torch.float64, requires_grad=True)
    dx = torch.autograd.grad(adv_index((at, *indices)), at, dy.double(), create_graph=True)[0]
    return 0 * x + dx


INPUTS = [
    (F(5, 3), I(4, low=-5, high=5)),
    (F(5, 3), I(4, low=-5, high=5), I(4, low=-3, high=3, dtype="int32")),
    (F(5, 3, 2), I(2, 1, low=0, high=5, dtype="uint8"), I(3, low=-3, high=3)),
    (F(4, 3, 2), I(low=0, high=4), I(2, low=0, high=3), I(2, 1, low=0, high=2, dtype="int8")),
    (F(3, 2), I(low=0, high=3), I(low=0, high=2)),
    (F(3, 2), C([-3, 2, -1, 2], "int64")),
    (F(3, 2), I(0, low=0, high=1)),
    (F(0, 2), I(0, low=0, high=1)),
    (F(2, 0), I(3, low=0, high=2)),
    (F(2, 3),),
    (F(1, 3), I(2, low=0, high=1), I(1, low=0, high=3)),
]
DYS = [F(4, 3), F(4), F(2, 3, 2), F(2, 2), F(), F(4, 2), F(0, 2), F(0, 2), F(3, 0), F(2, 3), F(2)]

CASES = [
    OpCase(
        "adv_index",
        samples=[
            *map(sample, INPUTS),
            sample((B(5), I(3, low=-5, high=5))),
            sample((I(5, low=0, high=9), I(3, low=-5, high=5))),
        ],
        oracle=adv_index,
    ),
    OpCase("adv_index_dx", samples=list(map(sample, DYS, INPUTS)), oracle=adv_index_dx),
]

CASES += refusals(
    {
        "adv_index": [
            error((F(3), C(0, "int64"), C(0, "int64")), match="more indices than axes"),
            error((F(3), F(2)), match="indices must be integers"),
            error((F(3, 3), C([0, 1], "int64"), C([0, 1, 2], "int64")), match="broadcast"),
            error((F(0), C([0], "int64")), match="nothing can be picked of an empty axis"),
        ],
        "adv_index_dx": [error(F(3), (F(4), C([0, 1], "int64")), match="dy has another shape")],
    }
)
