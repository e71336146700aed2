"""The polynomials against torch's float64, over the whole range of the type."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tvm import te, tirx

import meta
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
    kernel(prim_func([p], [y]), for_device(CPU))(x, result)
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


@pytest.mark.parametrize("name, end", [("tanh", 9.02), ("erf", 4.0), ("sigmoid", 17.4)])
def test_what_is_one_is_one(name: str, end: float) -> None:
    """A gradient multiplies what is left of it by what may be large."""
    x = torch.tensor([end, end + 1, 30.0, 100.0, 1e4, 1e30, float("inf")] * 3)
    assert torch.equal(_run(name, x, "float32"), torch.ones_like(x))
    if name != "sigmoid":
        assert torch.equal(_run(name, -x, "float32"), -torch.ones_like(x))


def test_the_gradient_of_gelu_by_tanh_of_large_numbers() -> None:
    x = torch.tensor([6.0, 9.0, 20.0, 100.0, 1e4, -9.0, -100.0, -1e4])
    with meta.dialect.only("tvm"):
        dx = meta.op.gelu_dx(meta.ndarray(x), None, meta.ndarray(torch.ones(8)), "tanh").torch()
    torch.testing.assert_close(dx, (x > 0).float(), rtol=0, atol=2e-5)


def _pairs() -> tuple[torch.Tensor, torch.Tensor]:
    """Anything with anything, small integers, and every special value with every other."""
    generator = torch.Generator().manual_seed(1)
    usual = torch.rand(N, generator=generator) * 4, torch.randn(N, generator=generator) * 20
    small = [torch.randint(-9, 10, (N,), generator=generator).float() for _ in range(2)]
    special = torch.tensor([0.0, 1.0, 2.0, 3.0, 0.5, 1e-45, 3e38, 16777217.0, float("inf")])
    special = torch.cat([special, -special, torch.tensor([float("nan")])])
    grid = [t.reshape(-1) for t in torch.meshgrid(special, special, indexing="ij")]
    first, second = _values(), _values().flip(0)
    return (
        torch.cat([first, usual[0], small[0], grid[0]]),
        torch.cat([second, usual[1], small[1], grid[1]]),
    )


def _run_pairs(name: str, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    p, q = tensor(len(x)), tensor(len(x))
    z = te.compute((len(x),), lambda i: getattr(tirx, name)(p[i], q[i]))
    result = torch.empty_like(x)
    kernel(prim_func([p, q], [z]), for_device(CPU))(x, y, result)
    return result


def _signs(x: torch.Tensor) -> list[bool]:
    return torch.signbit(x)[~x.isnan()].tolist()


def test_power_is_rounded_almost_right():
    x, y = _pairs()
    result, exact = _run_pairs("pow", x, y), torch.pow(x.double(), y.double())
    expected = exact.float()
    assert torch.equal(result.isnan(), expected.isnan())
    assert torch.equal(result.isinf(), expected.isinf())
    assert _signs(result) == _signs(expected)
    keep = expected.isfinite()
    ulp = torch.nextafter(expected.abs(), torch.tensor(torch.inf)) - expected.abs()
    assert ((result.double() - exact).abs() / ulp.double())[keep].max() <= 0.6


def test_fmod_is_exact():
    x, y = _pairs()
    result, expected = _run_pairs("fmod", x, y), torch.fmod(x.double(), y.double()).float()
    assert torch.equal(result.nan_to_num(7.5), expected.nan_to_num(7.5))
    assert _signs(result) == _signs(expected)


@pytest.mark.parametrize("name", ULPS)
@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_types_are_computed_in_float32(name, dtype):
    x = _values().to(TO_TORCH[dtype])
    expected = getattr(torch, name)(x.float()).to(x.dtype)
    torch.testing.assert_close(
        _run(name, x, dtype), expected, rtol=torch.finfo(x.dtype).eps, atol=1e-37, equal_nan=True
    )


def test_functions_of_functions_are_compiled_in_time() -> None:
    """Fused into one expression, six would take TVM hours."""

    @meta.model.trace
    def nested(x: Any) -> Any:
        for i in range(6):
            x = meta.tanh(meta.exp(x * (0.1 + i) - float(i)))
        return meta.relu(x * 1.0)

    x = torch.linspace(-1, 1, 64)
    expected = x
    for i in range(6):
        expected = torch.tanh(torch.exp(expected * (0.1 + i) - i))
    with meta.dialect.only("tvm"):
        exe = meta.vm.compile(nested, meta.array(x))
    torch.testing.assert_close(exe(meta.array(x)).torch(), expected, atol=1e-5, rtol=1e-5)
    assert sum(exe.kernels().values()) == 1
