"""Test records of exponentials, logarithms and the reciprocal."""

import torch

from tests.op.unary import EDGES, POSITIVE, SHAPES, _real

CASES = [
    *_real("log2", torch.log2, POSITIVE, [8.0, -1.0, *EDGES]),
    *_real("log10", torch.log10, POSITIVE, [1000.0, -1.0, *EDGES]),
    *_real("log1p", torch.log1p, POSITIVE, [-1.0, -2.0, -0.5, 1e-3, 1e4, *EDGES]),
    *_real("expm1", torch.expm1, SHAPES, [-1000.0, 1000.0, 1e-3, *EDGES]),
    *_real("reciprocal", torch.reciprocal, POSITIVE, [-4.0, 1e-3, *EDGES]),
]
