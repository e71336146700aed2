"""Test records of the questions about floating point elements, and of `nan_to_num`."""

import torch

from meta.testing import C, F, OpCase, sample
from tests.op.unary import EDGES, OTHERS, SHAPES

SAMPLES = [*SHAPES, *OTHERS, sample(C([1.0, *EDGES, -3e4]))]

NUMBERS = [*SHAPES, sample(F(4), 1.0, 2.0, -2.0), sample(C([1.0, *EDGES]), posinf=3.0, neginf=-1)]
REPLACED = [
    sample(C([1.0, *EDGES]), 0.5, 4.0, -8.0),
    sample(C([1.0, *EDGES]), neginf=-1.0, posinf=2),
]

CASES = [
    OpCase("isnan", samples=SAMPLES, oracle=torch.isnan, grad=False),
    OpCase("isinf", samples=SAMPLES, oracle=torch.isinf, grad=False),
    OpCase("isfinite", samples=SAMPLES, oracle=torch.isfinite, grad=False),
    OpCase("isposinf", samples=SAMPLES, oracle=torch.isposinf, grad=False),
    OpCase("isneginf", samples=SAMPLES, oracle=torch.isneginf, grad=False),
    OpCase("signbit", samples=SAMPLES, oracle=torch.signbit, grad=False),
    OpCase("nan_to_num", samples=NUMBERS, oracle=torch.nan_to_num),
    OpCase("nan_to_num", samples=REPLACED, oracle=torch.nan_to_num, grad=False),
    OpCase("nan_to_num", OTHERS, torch.nan_to_num, ("float32",), grad=False),
]
