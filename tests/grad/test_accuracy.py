"""Gradients that are as good as their dtype where the textbook's formula is not."""

from __future__ import annotations

import math

import pytest
import torch

import meta
from meta import op


def sinc_slope(x: float) -> float:
    """Return sinc'(x) by its series, in which nothing cancels for x below 1."""
    z = math.pi * x
    terms = [(-1) ** k * 2 * k * z ** (2 * k - 1) / math.factorial(2 * k + 1) for k in range(1, 25)]
    return math.pi * math.fsum(terms)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-6), ("float64", 2e-15)])
def test_sinc(dtype: str, tolerance: float) -> None:
    values = [0.0, -0.0, 1e-20, -1e-6, 1e-4, 0.003, -0.02, 0.1, 0.3333, 0.3334, -0.5, 0.9]
    x = meta.array(torch.tensor(values, dtype=torch.float64), dtype)
    x.requires_grad = True
    op.sinc(x).backward(meta.ones_like(x))
    assert x.grad is not None
    expected = torch.tensor(
        [sinc_slope(v) for v in x.torch().double().tolist()], dtype=torch.float64
    )
    torch.testing.assert_close(x.grad.torch().double(), expected, rtol=tolerance, atol=0)
