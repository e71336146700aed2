"""Dropout, and sums and products down columns, in Triton, on a GPU, beside other dialects."""

from __future__ import annotations

import pytest
import torch

import meta
from meta import op
from meta.dialect import only

pytestmark = pytest.mark.cuda
pytest.importorskip("triton")

BOUNDS = {torch.float16: 2e-2, torch.bfloat16: 1e-1, torch.float32: 1e-4, torch.float64: 1e-10}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("shape", [(1000, 777), (5,), (4096, 4096)])
@pytest.mark.parametrize("keyed", [False, True])
def test_dropout(dtype: torch.dtype, shape: tuple[int, ...], keyed: bool) -> None:
    x = meta.array(torch.randn(shape, device="cuda").to(dtype))
    key = meta.array(torch.tensor([2**40 + 7], device="cuda")) if keyed else None
    results = []
    for dialect in (op.triton, op.torch):
        meta.random.seed(3)
        y, mask, _ = dialect.dropout_train(x, 0.1, key)
        results.append((y.torch(), mask.torch()))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected)


def test_dropout_of_unaligned_memory() -> None:
    whole = torch.randn(1001, device="cuda").half()
    key = meta.array(torch.tensor([5], device="cuda"))
    y, mask, _ = op.triton.dropout_train(meta.array(whole[1:]), 0.5, key)
    other, kept, _ = op.torch.dropout_train(meta.array(whole[1:].clone()), 0.5, key)
    torch.testing.assert_close(y.torch(), other.torch())
    assert torch.equal(mask.torch(), kept.torch())


@pytest.mark.parametrize("dtype", [*BOUNDS, torch.int64])
@pytest.mark.parametrize(
    ("shape", "axis"), [((1000, 777), 0), ((3, 4097, 33), 1), ((2, 5, 64, 8), -3), ((8, 1, 3), 1)]
)
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_scans(name: str, shape: tuple[int, ...], axis: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(shape, generator=generator) * 0.2 + (0.9 if name == "cumprod" else -0.1)
    x = x.to("cuda", dtype) if dtype.is_floating_point else (x * 3).to("cuda", dtype)
    expected = getattr(torch, name)(x.double() if dtype.is_floating_point else x, axis)
    with only("triton"):
        found = getattr(meta, name)(meta.array(x), axis).torch()
    if dtype.is_floating_point:
        bound = BOUNDS[dtype]
        torch.testing.assert_close(found.double(), expected, rtol=bound, atol=bound)
    else:
        assert torch.equal(found, expected)
