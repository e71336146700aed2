"""Test records of the smooth activation functions and the shrinkages."""

import torch
import torch.nn.functional as nn

from meta.testing import C, F, I, OpCase, error, refusals, sample
from tests.op.unary import EDGES

SHAPES = [(3, 5), (), (0, 3), (2, 1, 7)]
FAR = [-1000.0, 1000.0, -30.0, 30.0, -4.0, 4.0]


def _cases(name, oracle, *numbers, low=-4.0, high=4.0, kinks=()):
    """All shapes without numbers, then others; special values; kinks, where torch has a slope."""
    first = [sample(F(*s, low=low, high=high)) for s in SHAPES]
    others = [sample(F(4, 3, low=low, high=high), *n) for n in numbers]
    return [
        OpCase(name, samples=[*first, *others], oracle=oracle),
        OpCase(name, samples=[sample(C([*kinks, *FAR, *EDGES]))], oracle=oracle, grad=False),
        *([OpCase(name, samples=[sample(C(list(kinks)))], oracle=oracle)] if kinks else []),
    ]


def _mish_dx(x, dy):
    again = x.requires_grad or dy.requires_grad
    leaf = x if x.requires_grad else x.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(nn.mish(leaf), leaf, dy, create_graph=again)[0]


MISH_DX = [sample(F(*s, low=-4.0, high=4.0), F(*s)) for s in SHAPES]
MISH_FAR = [sample(C(FAR), C([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))]

CASES = [
    *_cases("mish", nn.mish),
    OpCase("mish_dx", samples=MISH_DX, oracle=_mish_dx),
    OpCase("mish_dx", samples=MISH_FAR, oracle=_mish_dx, grad=False),
    *_cases("selu", nn.selu),
    *_cases("celu", lambda x, alpha=1.0: nn.celu(x, alpha), (0.5,), (2,)),
    *_cases("softsign", nn.softsign),
    *_cases("tanhshrink", nn.tanhshrink),
    *_cases("logsigmoid", nn.logsigmoid),
    *_cases("hardsigmoid", lambda x: nn.relu6(x + 3) / 6, low=-5.0, high=5.0, kinks=[-3.0, 3.0]),
    *_cases("relu6", nn.relu6, high=8.0, kinks=[0.0, 6.0]),
    *_cases("softshrink", nn.softshrink, (1.5,), (1,), kinks=[-0.5, 0.5]),
    *_cases("hardshrink", nn.hardshrink, (1.5,), (1,), kinks=[-0.5, 0.5]),
]

_FLOATS_ONLY = [error(I(3, low=0, high=2), match="x must be floating point")]

CASES += refusals(
    {
        "mish selu celu relu6 hardsigmoid softsign": _FLOATS_ONLY,
        "tanhshrink logsigmoid softshrink hardshrink": _FLOATS_ONLY,
        "mish_dx": [
            error(F(2), F(3), match="dy does not match x"),
            error(F(2), C([1.0, 2.0], "float16"), match="cast the float16 one"),
        ],
    }
)
