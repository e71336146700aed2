"""Statistics of many pixels are as precise as those of few, however the channels lie."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.dialect import only


@pytest.mark.product
@pytest.mark.parametrize("last", [False, True], ids=["channels first", "channels last"])
@pytest.mark.parametrize("shape", [(16, 56, 56, 8), (3, 1, 7, 5), (2, 9, 4)], ids=str)
def test_precision(shape: tuple[int, ...], last: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    x, dy = (torch.randn(shape, generator=generator) * 2 + 3 for _ in range(2))
    w, b = (torch.rand(shape[-1], generator=generator) + 0.5 for _ in range(2))
    to_first = (0, len(shape) - 1, *range(1, len(shape) - 1))

    def lies(t: torch.Tensor) -> meta.ndarray:
        return meta.array(t if last else t.permute(to_first).contiguous())

    mean, var = torch.zeros(shape[-1]), torch.ones(shape[-1])
    arrays = [lies(x), meta.array(mean), meta.array(var), meta.array(w), meta.array(b)]
    axis = len(shape) - 1 if last else 1
    with only("tvm"):
        y, m, v = op.batch_norm_train(*arrays, 0.1, 1e-5, axis)
        gradients = op.batch_norm_train_dxwb(lies(dy), arrays[0], arrays[3], None, 1e-5, axis)
    exact, gamma, beta = x.permute(to_first).double(), w.double(), b.double()
    leaves = [t.requires_grad_() for t in (exact, gamma, beta)]
    rm, rv = mean.double(), var.double()
    expected = F.batch_norm(exact, rm, rv, gamma, beta, True)
    slopes = torch.autograd.grad(expected, leaves, dy.permute(to_first).double())
    for found, right in zip((y, m, v, *gradients), (expected, rm, rv, *slopes), strict=True):
        value = found.torch().double()
        value = value.permute(to_first) if last and value.ndim > 1 else value
        # The sum of dy * xhat is of numbers of both signs: beside the sum of their sizes.
        scale = right.abs().max() if right is not slopes[1] else dy.abs().sum() / shape[-1]
        assert (value - right).abs().max() <= 2e-6 * scale
