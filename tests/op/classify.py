"""Test records of the questions about floating point elements."""

import torch

from meta.testing import C, OpCase, sample
from tests.op.unary import EDGES, OTHERS, SHAPES

SAMPLES = [*SHAPES, *OTHERS, sample(C([1.0, *EDGES, -3e4]))]

CASES = [
    OpCase("isnan", samples=SAMPLES, oracle=torch.isnan, grad=False),
    OpCase("isinf", samples=SAMPLES, oracle=torch.isinf, grad=False),
    OpCase("isfinite", samples=SAMPLES, oracle=torch.isfinite, grad=False),
]
