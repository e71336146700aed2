"""Random words in generated kernels, those of CUDA emulated, against what ATen computes."""

from __future__ import annotations

from math import prod

import pytest
import torch
from tvm import te

import meta
from meta.dialect.torch.random import dropout_mask
from meta.dialect.tvm import random
from meta.dialect.tvm.lower import prim_func
from meta.testing.emulator import generated

KEYS = 0, 7, 0x7FFF_FFFF_FFFF_FFFF, 0x1234_5678_9ABC_DEF0
SHAPES = (37,), (5, 3), (64, 64), (3, 1, 130), (1,), (0, 4), (4, 0), ()


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.long
def test_an_emulated_kernel_keeps_what_aten_keeps(shape: tuple[int, ...], dtype: str) -> None:
    """Alone, and with the mask: in vectors of other lengths."""
    source = te.placeholder((1,), "int64", "key")
    x = te.placeholder(shape, dtype, "x")
    for key, p in zip(KEYS, (0.1, 0.5, 0.9, 0.0), strict=True):
        mask = random.mask_stage(shape, source(0), p)
        y = random._dropout_kernel(x, mask, p)
        given = torch.randn(shape).to(getattr(torch, dtype))
        expected = dropout_mask(torch.tensor([key]), 0, shape, p)
        for outputs in ([y], [y, mask]):
            results = [torch.empty_like(given), torch.empty(shape, dtype=torch.bool)]
            run = generated.emulated(prim_func([x, source], outputs))
            run(given, torch.tensor([key]), *results[: len(outputs)])
            values = torch.where(expected, given.double() / (1 - p), 0.0).to(given.dtype)
            torch.testing.assert_close(results[0], values, rtol=2e-3, atol=0.0)
            assert len(outputs) == 1 or bool((results[1] == expected).all())


@pytest.mark.parametrize("p", [1 - 2.0**-40, 1 - 2.0**-33, 1 - 2.0**-32, 2.0**-32, 2.0**-40])
def test_next_to_nothing_or_all_is_kept(p: float) -> None:
    key, shape = torch.tensor([5]), (70, 9)
    masks = []
    for name in ("tvm", "torch"):
        with meta.dialect.only(name):
            masks.append(meta.op.dropout_mask(meta.array(key), shape, p).torch())
    assert torch.equal(*masks)
    assert int(masks[0].sum()) == (prod(shape) if p < 0.5 else 0)
