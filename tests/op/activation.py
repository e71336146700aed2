"""Test records of the activation functions with parameters of their own."""

import math

import torch
import torch.nn.functional as nn

from meta.testing import B, C, F, I, OpCase, error, refusals, sample
from tests.op.unary import EDGES, INTEGERS

SHAPES = [(3, 5), (), (0, 3), (2, 1, 7)]
FAR = [-1000.0, 1000.0, -30.0, 30.0, -4.0, 4.0, 0.0]
DY = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]


def _cases(name, oracle, *numbers, low=-2.0, high=2.0):
    """An activation and its gradient operator: all shapes with the first numbers, then others."""

    def derivative(x, dy, *numbers):
        again = x.requires_grad or dy.requires_grad
        leaf = x if x.requires_grad else x.detach().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(oracle(leaf, *numbers), leaf, dy, create_graph=again)
        return found

    def samples(*more):
        return [
            sample(F(*shape, low=low, high=high), *[F(*shape) for _ in more], *n)
            for n, shapes in kinds
            for shape in shapes
        ]

    first, *others = numbers or [()]
    kinds = [(first, SHAPES), *[(n, [(4, 3)]) for n in others]]
    return [
        OpCase(name, samples=samples(), oracle=oracle),
        OpCase(name, samples=[sample(C(FAR + EDGES), *first)], oracle=oracle, grad=False),
        OpCase(f"{name}_dx", samples=samples("dy"), oracle=derivative),
        OpCase(
            f"{name}_dx", samples=[sample(C(FAR), C(DY), *first)], oracle=derivative, grad=False
        ),
    ]


def _clip(x, a_min, a_max):
    return torch.clamp(x, a_min, a_max)


def _threshold(x, threshold=0.0, value=0.0):
    return nn.threshold(x, threshold, value)


def _threshold_dx(x, dy, threshold=0.0):
    return dy * (x > threshold)


def _prelu(x, weight):
    shape = (-1, *[1] * (x.ndim - 2)) if x.ndim else ()
    return torch.where(x > 0, x, x * weight.reshape(shape))


PRELU = [
    sample(F(2, 3, 4), F(3)),
    sample(F(2, 3, 4, 2), F(1)),
    sample(F(2, 3), F()),
    sample(F(2, 3), F(3)),
    sample(F(4), F(1)),
    sample(F(), F()),
    sample(F(), F(1)),
    sample(F(0, 3, 2), F(3)),
    sample(F(2, 1, 3), F(1)),
]
GLU = [
    sample(F(3, 4)),
    sample(F(4)),
    sample(F(4, 3), axis=0),
    sample(F(2, 6, 3), axis=-2),
    sample(F(2, 0)),
    sample(F(0, 2)),
]
CLIPS = [
    sample(C([-1.0, 0.0, 0.5, 1.0, math.inf, -math.inf, math.nan]), 0.0, 1.0),
    sample(C([-1.0, 0.5, 3.0]), 2, -2),
    sample(C([1.0, math.nan]), math.nan, 1.0),
]
INT_CLIPS = [
    *[sample(s.args[0], -1, 2) for s in INTEGERS],
    sample(I(3, low=0, high=200, dtype="uint8"), 3, 100),
]
INT_THRESHOLDS = [
    *[sample(s.args[0]) for s in INTEGERS],
    sample(I(6, low=-4, high=5, dtype="int32"), 2, 7),
]

CASES = [
    *_cases("silu", nn.silu, low=-4.0, high=4.0),
    *_cases("leaky_relu", lambda x, s=0.01: nn.leaky_relu(x, s), (), (0.2,), (2,)),
    *_cases("elu", lambda x, alpha=1.0: nn.elu(x, alpha), (), (0.5,)),
    *_cases("softplus", nn.softplus, (), (2.0, 1.0), (0.5,), low=-3.0, high=3.0),
    *_cases("hardswish", nn.hardswish, low=-5.0, high=5.0),
    OpCase("prelu", samples=PRELU, oracle=_prelu),
    OpCase("glu", samples=GLU, oracle=lambda x, axis=-1: nn.glu(x, axis)),
    OpCase("threshold", samples=[sample(F(*s)) for s in SHAPES], oracle=_threshold),
    OpCase("threshold", samples=[sample(F(4, 3), 0.5, -2.0)], oracle=_threshold),
    OpCase("threshold", samples=[sample(C([*FAR, *EDGES]))], oracle=_threshold, grad=False),
    OpCase("threshold", samples=INT_THRESHOLDS, oracle=_threshold, grad=False),
    OpCase(
        "threshold_dx",
        samples=[*[sample(F(*s), F(*s)) for s in SHAPES], sample(F(4, 3), F(4, 3), 0.5)],
        oracle=_threshold_dx,
    ),
    *_cases("clip", _clip, (-1.0, 0.5), (-0.3, 0.2), (0, 1)),
    OpCase("clip", samples=CLIPS, oracle=_clip, grad=False),
    OpCase("clip", samples=INT_CLIPS, oracle=_clip, dtypes=("float32",), grad=False),
]

_ONES = I(2, 3, low=0, high=2)
NO_FLOATS = [error(_ONES, match="x must be floating point"), error(B(3), match="found: .*bool")]
NO_PAIR = [
    error(F(2, 3), F(3, 2), match="dy does not match x"),
    error(F(2, 3), C([[1.0] * 3] * 2, "float64"), match='float32 one: meta.cast.x, "float64"'),
    error(_ONES, _ONES, match="x must be floating point"),
]

CASES += refusals(
    {
        "silu leaky_relu elu softplus hardswish": NO_FLOATS,
        "silu_dx leaky_relu_dx elu_dx softplus_dx": NO_PAIR,
        "hardswish_dx threshold_dx": NO_PAIR,
        "clip_dx": [error(*one.args, 0.0, 1.0, match=one.match) for one in NO_PAIR],
        "prelu": [
            error(F(2, 3), F(2), match="weight does not match x"),
            error(F(2, 3), C([1.0], "float64"), match="differ in dtype"),
            error(_ONES, F(3), match="x must be floating point"),
        ],
        "glu": [
            error(F(2, 3), match="axis 1 has no two halves"),
            error(F(2, 4), axis=2, match="axis 2 is out of range"),
            error(F(), match="at least one axis"),
        ],
        "threshold": [error(B(3), match="bool has no order")],
        "clip": [
            error(B(3), 0, 1, match="bool has no order"),
            error(_ONES, 0, 1.5, match="a Python float does not fit a tensor of int64"),
        ],
    }
)
