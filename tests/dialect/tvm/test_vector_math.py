"""The polynomials against torch's float64, over the whole range of the type."""

from __future__ import annotations

import pytest
import torch
from tvm import te, tirx

from meta.base.device import CPU
from meta.base.dtype import TO_TORCH
from meta.dialect.tvm.build import kernel
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.target import for_device
from tests.dialect.tvm.functions import tensor

N = 200_000
ULPS = {"exp": 1.5, "log": 1.5, "tanh": 6, "erf": 7, "sigmoid": 3}


def _values() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31, (N // 2,), generator=generator).to(torch.int32)
    special = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 1e-45, -1e-40, 88.72, 88.73]
    special += [-87.0, -103.0, -105.0, 1e30, -1e30, 1.0, 3e-4, 5e-4]
    usual = torch.randn(N - N // 2 - len(special), generator=generator) * 8
    return torch.cat([torch.tensor(special), bits.view(torch.float32), usual])


def _run(name: str, x: torch.Tensor, dtype: str) -> torch.Tensor:
    p = tensor(len(x), dtype=dtype)
    y = te.compute((len(x),), lambda i: getattr(tirx, name)(p[i]))
    result = torch.empty_like(x)
    kernel(prim_func([p], [y], in_place=False), for_device(CPU))(x, result)
    return result


@pytest.mark.parametrize("name", ULPS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_accuracy(name, dtype):
    x = _values().to(TO_TORCH[dtype])
    result = _run(name, x, dtype)
    exact = getattr(torch, name)(x.double())
    expected = exact.to(x.dtype)
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isinf(), expected.isinf())
    keep = expected.isfinite() & ((expected.abs() > 1e-37) | (name != "sigmoid"))
    infinity = torch.full_like(expected, torch.inf)
    ulp = (torch.nextafter(expected.abs(), infinity) - expected.abs()).double()
    assert ((result.double() - exact).abs() / ulp)[keep].max() <= max(ULPS[name], 4)


@pytest.mark.parametrize("name", ULPS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_computed_in_float32(name, dtype):
    x = _values().to(TO_TORCH[dtype])
    expected = getattr(torch, name)(x.float()).to(x.dtype)
    torch.testing.assert_close(
        _run(name, x, dtype), expected, rtol=torch.finfo(x.dtype).eps, atol=1e-37, equal_nan=True
    )
