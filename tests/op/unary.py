"""Test records of the elementwise operators of one tensor."""

import math

import torch
import torch.nn.functional as nn

from meta.testing import B, C, F, I, OpCase, error, refusals, sample

SHAPES = [sample(F(3, 5)), sample(F()), sample(F(0, 3)), sample(F(2, 1, 7))]
POSITIVE = [sample(F(*s, low=0.25, high=4.0)) for s in ((3, 5), (), (0, 3), (2, 1, 7))]
EDGES = [0.0, -0.0, math.inf, -math.inf, math.nan]
KINK = [0.0, 1.0, -1.0]
INTEGERS = [sample(I(2, 3, low=-4, high=5, dtype=d)) for d in ("int8", "int32", "int64")]
OTHERS = [*INTEGERS, sample(I(4, low=0, high=200, dtype="uint8")), sample(B(3, 2))]


def _floats(name, oracle, samples):
    return OpCase(name, samples=samples, oracle=oracle)


def _others(name, oracle, samples):
    """Samples that have no gradient: integers and bools, infinities and NaN."""
    return OpCase(name, samples=samples, oracle=oracle, dtypes=("float32",), grad=False)


def _real(name, oracle, samples, extremes):
    """A real function, which is computed in float32 for integers and bools."""

    def as_float(x):
        return oracle(x if x.is_floating_point() else x.float())

    return [
        _floats(name, oracle, samples),
        _others(name, as_float, OTHERS),
        OpCase(name, samples=[sample(C(extremes))], oracle=oracle, grad=False),
    ]


def _derivative(forward, of_y=None):
    """Return the oracle of a gradient operator: torch's own gradient, itself differentiable.

    ``of_y`` gives the derivative as a function of y, which the operators use if they have it.
    """

    def oracle(x, y, dy):
        if y is not None and of_y is not None:
            return dy * of_y(y)
        again = any(t is not None and t.requires_grad for t in (x, dy))
        leaf = x if x.requires_grad else x.detach().requires_grad_()
        with torch.enable_grad():
            (found,) = torch.autograd.grad(forward(leaf), leaf, dy, create_graph=again)
        return found

    return oracle


def _derivative_case(name, forward, low, high, of_y=None, y_low=0.0, y_high=1.0):
    x, y = F(3, 4, low=low, high=high), F(3, 4, low=y_low, high=y_high)
    samples = [
        sample(x, None, F(3, 4)),
        sample(F(low=low, high=high), None, F()),
        sample(F(0, 2), None, F(0, 2)),
        sample(x=F(2, 1, low=low, high=high), y=None, dy=F(2, 1)),
    ]
    if of_y is not None:
        samples.append(sample(None, y, F(3, 4)))
    return OpCase(name, samples=samples, oracle=_derivative(forward, of_y))


def _gelu_tanh(x, approximate="tanh"):
    return nn.gelu(x, approximate=approximate)


def _gelu_tanh_dx(x, y, dy, approximate):
    return _derivative(_gelu_tanh)(x, y, dy)


TANH_FORM = [sample(F(3, 5), "tanh"), sample(F(), approximate="tanh"), sample(F(0, 3), "tanh")]
TANH_FORM_DX = [sample(F(3, 4), None, F(3, 4), "tanh"), sample(F(), None, F(), approximate="tanh")]

CASES = [
    _floats("relu", torch.relu, SHAPES),
    _others("relu", torch.relu, [*INTEGERS, sample(C([-1.0, *EDGES]))]),
    *_real("gelu", nn.gelu, SHAPES, [-9.0, 9.0, 0.0]),
    _floats("gelu", _gelu_tanh, TANH_FORM),
    OpCase("gelu", samples=[sample(C([-9.0, 9.0, 0.0]), "tanh")], oracle=_gelu_tanh, grad=False),
    *_real("tanh", torch.tanh, SHAPES, [-100.0, 100.0, 1e-3, *EDGES]),
    *_real("sigmoid", torch.sigmoid, SHAPES, [-1000.0, 1000.0, *EDGES]),
    *_real("erf", torch.erf, SHAPES, [-6.0, 6.0, *EDGES]),
    *_real("sqrt", torch.sqrt, POSITIVE, [-1.0, *EDGES]),
    _derivative_case("relu_dx", torch.relu, -2, 2, lambda y: (y > 0).to(y.dtype), -1),
    _others("relu_dx", lambda x, y, dy: dy * (x > 0), [sample(C(KINK), None, C([5.0, 6.0, 7.0]))]),
    _derivative_case("gelu_dx", nn.gelu, -2, 2),
    OpCase("gelu_dx", samples=TANH_FORM_DX, oracle=_gelu_tanh_dx),
    _derivative_case("tanh_dx", torch.tanh, -2, 2, lambda y: 1 - y * y, -1),
    _derivative_case("sigmoid_dx", torch.sigmoid, -2, 2, lambda y: y * (1 - y)),
    _derivative_case("erf_dx", torch.erf, -2, 2),
    _derivative_case("sqrt_dx", torch.sqrt, 0.5, 4, lambda y: 1 / (2 * y), 0.5, 2),
    *_real("exp", torch.exp, SHAPES, [-1000.0, 2.0, *EDGES]),
    *_real("log", torch.log, POSITIVE, [-1.0, *EDGES]),
    *_real("rsqrt", torch.rsqrt, POSITIVE, [16.0, -1.0, *EDGES]),
    _floats("negative", torch.neg, SHAPES),
    _others("negative", torch.neg, [*OTHERS[:-1], sample(C(EDGES))]),
    _floats("abs", torch.abs, SHAPES),
    _others("abs", torch.abs, [*OTHERS[:-1], sample(C(EDGES))]),
    _others("abs", torch.clone, [sample(B(3, 2))]),
    _others("logical_not", torch.logical_not, [*SHAPES, *OTHERS, sample(C(EDGES))]),
    _floats("copy", torch.clone, SHAPES),
    _others("copy", torch.clone, [*OTHERS, sample(C(EDGES))]),
]

_INTS = I(3, low=0, high=2)
MISMATCHED = [
    error(F(2), None, F(3), match="x does not match dy"),
    error(F(3), None, C([1.0] * 3, "float64"), match="cast the float32 one"),
    error(_INTS, None, F(3), match="x must be floating point"),
]
NO_ARGUMENT = error(None, None, F(3), match="neither x nor y is given")
NO_X = error(None, F(3), F(3), match="x is not given")

CASES += refusals(
    {
        "gelu": [error(F(3), "sigmoid", match="unknown form")],
        "negative": [error(B(3), match="bool has no negative")],
        "relu_dx tanh_dx sigmoid_dx sqrt_dx": [*MISMATCHED, NO_ARGUMENT],
        "erf_dx": [*MISMATCHED, NO_X],
        "gelu_dx": [*MISMATCHED, NO_X, error(F(3), None, F(3), "erf", match="unknown form")],
    }
)
