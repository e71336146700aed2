"""Functions of CUDA kernels whose results are halves, of every half, beside float64; emulated."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.dialect import only
from meta.testing.emulator import compiler
from meta.testing.emulator.operators import emulated_cuda

EVERY = torch.arange(-(1 << 15), 1 << 15, dtype=torch.int32).to(torch.int16)


@pytest.fixture
def on_cuda() -> Iterator[None]:
    compiler.compiler()
    with emulated_cuda(), only("tvm"):
        yield


def gelu(x: np.ndarray) -> np.ndarray:
    return x * np.array([math.erfc(-v * math.sqrt(0.5)) / 2 for v in x])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("run", "exact"),
    [
        (op.gelu, gelu),
        (op.exp, np.exp),
        (op.sigmoid, lambda x: 1 / (1 + np.exp(-x))),
    ],
)
def test_an_error_is_that_of_rounding(
    run: Callable, exact: Callable, dtype: torch.dtype, on_cuda: None
) -> None:
    x = EVERY.view(dtype)
    x = x[x.isfinite()]
    with np.errstate(all="ignore"):
        wide = torch.from_numpy(exact(x.double().numpy()))
    found, right = run(meta.array(x)).torch(), wide.to(dtype)
    finite = right.isfinite() & found.isfinite()
    # The nearest half, or the other one beside the exact result where that is nearly between both.
    # What is below 2e-38 may be 0.
    floor = max(torch.finfo(dtype).tiny, 2.0**-118)
    unit = wide.abs().clamp(min=floor) * torch.finfo(dtype).eps
    error = (found.double() - wide).abs() / unit
    assert error[finite].max() < 0.53
    assert torch.equal(found.double()[~finite], right.double()[~finite])


def test_what_is_no_number_or_infinite(on_cuda: None) -> None:
    x = meta.array(torch.tensor([math.inf, -math.inf, math.nan], dtype=torch.float16))
    inf, nan = math.inf, math.nan
    for run, expected in [
        (op.exp, [inf, 0.0, nan]),
        (op.gelu, [inf, nan, nan]),
        (op.sigmoid, [1.0, 0.0, nan]),
    ]:
        torch.testing.assert_close(
            run(x).torch().float(), torch.tensor(expected), rtol=0, atol=0, equal_nan=True
        )
