"""Test records of activation functions, softmax included."""

import math

import torch
import torch.nn.functional as nn

from meta.testing import B, C, F, I, OpCase, error, refusals, sample
from tests.op.elementwise import (
    EDGES,
    INTEGERS,
    MISMATCHED,
    NO_ARGUMENT,
    NO_X,
    TENSORS,
    _derivative,
    _derivative_case,
    _real,
    _unary_floats,
    _unary_others,
)

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


def _clip(x, min=None, max=None):
    return torch.clamp(x, min, max)


def _threshold(x, threshold=0.0, value=0.0):
    return nn.threshold(x, threshold, value)


def _threshold_dx(x, dy, threshold=0.0):
    return torch.where(x <= threshold, torch.zeros_like(dy), dy)


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
    sample(I(3, low=0, high=2**16, dtype="uint16"), 3, 40000),
    sample(I(3, low=0, high=2**32, dtype="uint32"), 3, 2**31 + 5),
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
    OpCase(
        "threshold_dx",
        samples=[sample(C([*FAR, *EDGES]), C([1.0] * len([*FAR, *EDGES])))],
        oracle=_threshold_dx,
        grad=False,
    ),
    *_cases("clip", _clip, (-1.0, 0.5), (-0.3, 0.2), (0, 1)),
    OpCase("clip", samples=CLIPS, oracle=_clip, grad=False),
    OpCase("clip", samples=INT_CLIPS, oracle=_clip, dtypes=("float32",), grad=False),
]

_ONES = I(2, 3, low=0, high=2)

NO_FLOATS = [error(_ONES, match="x must be floating point"), error(B(3), match="found: .*bool")]

NO_PAIR = [
    error(F(2, 3), F(3, 2), match="dy does not match x"),
    error(F(2, 3), C([[1.0] * 3] * 2, "float64"), match='float32 one: meta.astype.x, "float64"'),
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

SMOOTH_FAR = [-1000.0, 1000.0, -30.0, 30.0, -4.0, 4.0]


def _smooth_cases(name, oracle, *numbers, low=-4.0, high=4.0, kinks=()):
    """All shapes without numbers, then others; special values; kinks, where torch has a slope."""
    first = [sample(F(*s, low=low, high=high)) for s in SHAPES]
    others = [sample(F(4, 3, low=low, high=high), *n) for n in numbers]
    return [
        OpCase(name, samples=[*first, *others], oracle=oracle),
        OpCase(name, samples=[sample(C([*kinks, *SMOOTH_FAR, *EDGES]))], oracle=oracle, grad=False),
        *([OpCase(name, samples=[sample(C(list(kinks)))], oracle=oracle)] if kinks else []),
    ]


def _mish_dx(x, dy):
    again = x.requires_grad or dy.requires_grad
    leaf = x if x.requires_grad else x.detach().requires_grad_()
    with torch.enable_grad():
        return torch.autograd.grad(nn.mish(leaf), leaf, dy, create_graph=again)[0]


MISH_DX = [sample(F(*s, low=-4.0, high=4.0), F(*s)) for s in SHAPES]

MISH_FAR = [sample(C(SMOOTH_FAR), C([1.0, 2.0, 3.0, 4.0, 5.0, 6.0]))]

CASES += [
    *_smooth_cases("mish", nn.mish),
    OpCase("mish_dx", samples=MISH_DX, oracle=_mish_dx),
    OpCase("mish_dx", samples=MISH_FAR, oracle=_mish_dx, grad=False),
    *_smooth_cases("selu", nn.selu),
    *_smooth_cases("celu", lambda x, alpha=1.0: nn.celu(x, alpha), (0.5,), (2,)),
    *_smooth_cases("softsign", nn.softsign),
    *_smooth_cases("tanhshrink", nn.tanhshrink),
    *_smooth_cases("logsigmoid", nn.logsigmoid),
    *_smooth_cases(
        "hardsigmoid", lambda x: nn.relu6(x + 3) / 6, low=-5.0, high=5.0, kinks=[-3.0, 3.0]
    ),
    *_smooth_cases("relu6", nn.relu6, high=8.0, kinks=[0.0, 6.0]),
    *_smooth_cases("softshrink", nn.softshrink, (1.5,), (1,), kinks=[-0.5, 0.5]),
    *_smooth_cases("hardshrink", nn.hardshrink, (1.5,), (1,), kinks=[-0.5, 0.5]),
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

CASES += [
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
]

SOFTMAX_FLOATS_ONLY = error(I(2, 3, low=0, high=3), match="x must be floating point")

NO_AXIS = [
    error(F(2, 3), axis=2, match="axis 2 is out of range for ndim 2"),
    error(F(), match="at least one axis"),
    SOFTMAX_FLOATS_ONLY,
]

SOFTMAX_NO_PAIR = [
    error(F(2, 3), F(3, 2), match="dy is not of y's type"),
    error(F(2, 3), F(2, 3), axis=-3, match="axis -3 is out of range"),
]

CASES += refusals(
    {
        "softmax log_softmax": NO_AXIS,
        "softmax_dx log_softmax_dx": SOFTMAX_NO_PAIR,
    }
)

KINK = [0.0, 1.0, -1.0]


def _gelu_tanh(x, approximate="tanh"):
    return nn.gelu(x, approximate=approximate)


def _gelu_tanh_dx(x, y, dy, approximate):
    return _derivative(_gelu_tanh)(x, y, dy)


TANH_FORM = [sample(F(3, 5), "tanh"), sample(F(), approximate="tanh"), sample(F(0, 3), "tanh")]

TANH_FORM_DX = [sample(F(3, 4), None, F(3, 4), "tanh"), sample(F(), None, F(), approximate="tanh")]

CASES += [
    _unary_floats("relu", torch.relu, TENSORS),
    _unary_others("relu", torch.relu, [*INTEGERS, sample(C([-1.0, *EDGES]))]),
    *_real("gelu", nn.gelu, TENSORS, [-9.0, 9.0, 0.0]),
    _unary_floats("gelu", _gelu_tanh, TANH_FORM),
    OpCase("gelu", samples=[sample(C([-9.0, 9.0, 0.0]), "tanh")], oracle=_gelu_tanh, grad=False),
    *_real("tanh", torch.tanh, TENSORS, [-100.0, 100.0, 1e-3, *EDGES]),
    *_real("sigmoid", torch.sigmoid, TENSORS, [-1000.0, 1000.0, *EDGES]),
    _derivative_case("relu_dx", torch.relu, -2, 2, lambda y: (y > 0).to(y.dtype), -1),
    _unary_others(
        "relu_dx", lambda x, y, dy: dy * (x > 0), [sample(C(KINK), None, C([5.0, 6.0, 7.0]))]
    ),
    _derivative_case("gelu_dx", nn.gelu, -2, 2),
    OpCase("gelu_dx", samples=TANH_FORM_DX, oracle=_gelu_tanh_dx),
    _derivative_case("tanh_dx", torch.tanh, -2, 2, lambda y: 1 - y * y, -1),
    _derivative_case("sigmoid_dx", torch.sigmoid, -2, 2, lambda y: y * (1 - y)),
]

CASES += refusals(
    {
        "gelu": [error(F(3), "sigmoid", match="unknown form")],
        "relu_dx tanh_dx sigmoid_dx": [*MISMATCHED, NO_ARGUMENT],
        "gelu_dx": [*MISMATCHED, NO_X, error(F(3), None, F(3), "erf", match="unknown form")],
    }
)
