"""Test records of rounding and of the sign."""

import torch

from meta.testing import C, F, OpCase, sample
from tests.op.unary import EDGES, OTHERS

# Each well inside a step, so that rounding to half precision changes nothing.
STEPS = [sample(C([[0.25, -0.75, 1.25], [2.75, -3.25, -0.25]])), sample(C(1.75)), sample(F(0, 3))]
STEPS += [sample(F(2, 3, low=0.1, high=0.4))]
HALVES = [sample(C([0.5, -0.5, 1.5, 2.5, -2.5, 100.5, -1.0, 3.0, *EDGES]))]


def _cases(name, function):
    def oracle(x):
        return function(x) if x.is_floating_point() or name == "sign" else x.clone()

    return [
        OpCase(name, samples=STEPS, oracle=oracle),
        OpCase(name, samples=HALVES, oracle=oracle, grad=False),
        OpCase(name, samples=OTHERS, oracle=oracle, dtypes=("float32",), grad=False),
    ]


CASES = [
    *_cases("ceil", torch.ceil),
    *_cases("floor", torch.floor),
    *_cases("round", torch.round),
    *_cases("trunc", torch.trunc),
    *_cases("sign", torch.sign),
    OpCase("frac", samples=STEPS, oracle=torch.frac, second=False),
    OpCase("frac", samples=HALVES, oracle=torch.frac, grad=False),
]
