"""TVM's kernels on shapes that the schedules cut in slices: the operators' cases are small."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

import meta
from meta import op
from meta.dialect import only
from meta.testing.compare import check

pytestmark = pytest.mark.cuda


def _random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).cuda()


@pytest.mark.parametrize("axis", [None, 0, 1])
@pytest.mark.parametrize("function", ["sum", "mean", "max", "min", "argmax", "argmin", "all"])
@pytest.mark.parametrize("shape", [(2048, 1024), (1021, 2003), (3, 500_000), (500_000, 3)])
def test_reductions(shape: tuple[int, int], function: str, axis: int | None) -> None:
    x = _random(*shape)
    like_torch = {"max": "amax", "min": "amin"}.get(function, function)
    arguments = () if axis is None else (axis,)
    expected = getattr(torch, like_torch)(x, *arguments)
    with only("tvm"):
        found = getattr(meta, function)(x, *arguments)
    scale = {"sum": x.numel() ** 0.5, "mean": 1.0}.get(function, 0.0)
    check(found, expected, 1e-4, 1e-5 * scale)


@pytest.mark.parametrize("shape", [(200_000, 10), (300, 1000), (64, 60_000), (4, 1_000_000)])
def test_rows(shape: tuple[int, int]) -> None:
    """Softmax, layer normalisation, cross entropy and its gradient."""
    x, columns = _random(*shape), shape[1]
    label = torch.arange(shape[0]).cuda() % columns
    theirs = x.clone().requires_grad_(True)
    expected = F.cross_entropy(theirs, label)
    expected.backward()
    ones = torch.ones(columns).cuda()
    with only("tvm"):
        check(op.softmax(x), torch.softmax(x, -1), 1e-4, 1e-7)
        check(op.log_softmax(x), torch.log_softmax(x, -1), 1e-4, 1e-4)
        check(
            op.layer_norm.plain(x, ones, ones), F.layer_norm(x, (columns,), ones, ones), 1e-4, 1e-4
        )
        check(op.cross_entropy(x, label), expected, 1e-4, 1e-5)
        gradient = op.cross_entropy_dpred(torch.ones(()).cuda(), x, label)
    check(gradient, theirs.grad, 1e-4, 1e-8)


@pytest.mark.parametrize("shape", [(32, 64, 28, 28), (8, 1024, 7, 7), (1, 3, 512, 512)])
def test_batch_norm(shape: tuple[int, ...]) -> None:
    x, channels = _random(*shape), shape[1]

    def statistics() -> list[Any]:
        return [torch.zeros(channels).cuda(), torch.ones(channels).cuda()]

    expected, running = F.batch_norm(x, *(own := statistics()), training=True), own
    with only("tvm"):
        found = op.batch_norm_train(x, *(mine := statistics()), None, None, 0.1, 1e-5)
    check(found[0], expected, 1e-3, 1e-4)
    check(mine, running, 1e-3, 1e-5)
