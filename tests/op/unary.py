"""Test records of the elementwise operators of one tensor."""

import math

import torch
import torch.nn.functional as nn

from meta.testing import B, C, F, I, OpCase, sample

SHAPES = [sample(F(3, 5)), sample(F()), sample(F(0, 3)), sample(F(2, 1, 7))]
POSITIVE = [sample(F(*s, low=0.25, high=4.0)) for s in ((3, 5), (), (0, 3), (2, 1, 7))]
EDGES = [0.0, -0.0, math.inf, -math.inf, math.nan]
INTEGERS = [sample(I(2, 3, low=-4, high=5, dtype=d)) for d in ("int8", "int32", "int64")]
OTHERS = [*INTEGERS, sample(I(4, low=0, high=200, dtype="uint8")), sample(B(3, 2))]


def _of_others(oracle):
    """What an operator does to integers and bools: a real function computes it in float32."""

    def as_float(x):
        return oracle(x.float())

    return OpCase(oracle.__name__, samples=OTHERS, oracle=as_float, dtypes=("float32",), grad=False)


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


def _gradient_samples(low, high, y_low, y_high, by_y=True):
    x, y = F(3, 4, low=low, high=high), F(3, 4, low=y_low, high=y_high)
    samples = [sample(x, None, F(3, 4)), sample(F(low=low, high=high), None, F())]
    samples += [
        sample(F(0, 2), None, F(0, 2)),
        sample(x=F(2, 1, low=low, high=high), y=None, dy=F(2, 1)),
    ]
    return [*samples, sample(None, y, F(3, 4))] if by_y else samples


CASES = [
    OpCase(
        "relu",
        samples=[*SHAPES, *INTEGERS, sample(C([-1.0, 0.0, math.inf, -math.inf, 2.0]))],
        oracle=torch.relu,
    ),
    OpCase("gelu", samples=[*SHAPES, sample(C([-9.0, 9.0, 0.0]))], oracle=nn.gelu),
    OpCase(
        "tanh",
        samples=[*SHAPES, sample(C([-100.0, 100.0, 1e-3, -math.inf, math.nan]))],
        oracle=torch.tanh,
    ),
    OpCase(
        "sigmoid",
        samples=[*SHAPES, sample(C([-1000.0, 1000.0, 0.0, math.inf, -math.inf]))],
        oracle=torch.sigmoid,
    ),
    OpCase("erf", samples=[*SHAPES, sample(C([-6.0, 6.0, *EDGES]))], oracle=torch.erf),
    OpCase("sqrt", samples=[*POSITIVE, sample(C([1.0, math.inf]))], oracle=torch.sqrt),
    OpCase(
        "relu_dx",
        samples=[
            *_gradient_samples(-2, 2, -2, 2),
            sample(C([0.0, 1.0, -1.0]), None, C([5.0, 6.0, 7.0])),
        ],
        oracle=lambda x, y, dy: torch.where((x if y is None else y) > 0, dy, 0.0),
    ),
    OpCase(
        "gelu_dx", samples=_gradient_samples(-2, 2, 0, 1, by_y=False), oracle=_derivative(nn.gelu)
    ),
    OpCase(
        "tanh_dx",
        samples=_gradient_samples(-2, 2, -1, 1),
        oracle=_derivative(torch.tanh, lambda y: 1 - y * y),
    ),
    OpCase(
        "sigmoid_dx",
        samples=_gradient_samples(-2, 2, 0, 1),
        oracle=_derivative(torch.sigmoid, lambda y: y * (1 - y)),
    ),
    OpCase(
        "erf_dx", samples=_gradient_samples(-2, 2, 0, 1, by_y=False), oracle=_derivative(torch.erf)
    ),
    OpCase(
        "sqrt_dx",
        samples=_gradient_samples(0.5, 4, 0.5, 2),
        oracle=_derivative(torch.sqrt, lambda y: 1 / (2 * y)),
    ),
    OpCase(
        "exp",
        samples=[*SHAPES, sample(C([-1000.0, 0.0, -math.inf, 2.0]))],
        oracle=torch.exp,
    ),
    OpCase(
        "log",
        samples=[*POSITIVE, sample(C([math.inf, 1.0]))],
        oracle=torch.log,
    ),
    OpCase("rsqrt", samples=[*POSITIVE, sample(C([1.0, 16.0]))], oracle=torch.rsqrt),
    OpCase("negative", samples=[*SHAPES, *OTHERS[:-1], sample(C(EDGES))], oracle=torch.neg),
    OpCase(
        "abs",
        samples=[*SHAPES, *OTHERS, sample(C(EDGES))],
        oracle=lambda x: x if x.dtype == torch.bool else torch.abs(x),
    ),
    OpCase(
        "logical_not",
        samples=[*SHAPES, *OTHERS, sample(C(EDGES))],
        oracle=torch.logical_not,
        grad=False,
    ),
    OpCase("copy", samples=[*SHAPES, *OTHERS, sample(C(EDGES))], oracle=torch.clone),
    *map(_of_others, (torch.tanh, torch.sigmoid, torch.erf, torch.exp, nn.gelu)),
    *map(_of_others, (torch.sqrt, torch.log, torch.rsqrt)),
]
