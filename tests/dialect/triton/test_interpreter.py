"""What the interpreter computes, against torch, and that it leaves Triton as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.runtime.jit import JITFunction

import meta
from meta.base.device import CPU
from meta.base.errors import BackendError
from meta.dialect.triton.interpreter import FUNCTIONS
from meta.dialect.triton.sequence import TritonLaunch
from tests.dialect.triton import kernels

FLOATS = ("float16", "bfloat16", "float32", "float64")
TOLERANCE = {"float16": 2e-3, "bfloat16": 1.6e-2, "float32": 2e-6, "float64": 1e-7}


@triton.jit
def arithmetic(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at, mask=at < n), tl.load(y + at, mask=at < n, other=1.0)
    tl.store(out + at, a * b - a / b + 3.0, mask=at < n)


@triton.jit
def compared(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a, b = tl.load(x + at, mask=at < n), tl.load(y + at, mask=at < n)
    tl.store(out + at, tl.where(a < b, -a, tl.maximum(a, b)), mask=at < n)


@triton.jit
def reduced(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n, other=0.0)
    b = tl.load(y + at, mask=at < n, other=-float("inf"))
    tl.store(out + at, tl.sum(a) + tl.max(b) + tl.cumsum(a, 0), mask=at < n)


@triton.jit
def functions(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    a = tl.load(x + at, mask=at < n).to(tl.float32)
    b = tl.load(y + at, mask=at < n, other=1.0).to(tl.float32)
    value = tl.exp(-a * a) + tl.sqrt(tl.abs(b)) + tl.sigmoid(a) + tl.rsqrt(tl.abs(b)) + tl.erf(a)
    tl.store(out + at, tl.fma(value, a, b), mask=at < n)


def _functions(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    value = (-a * a).exp() + b.abs().sqrt() + a.sigmoid() + b.abs().rsqrt() + a.erf()
    return value * a + b


CASES: list[tuple[Any, Callable[..., torch.Tensor]]] = [
    (arithmetic, lambda a, b: a * b - a / b + 3.0),
    (compared, lambda a, b: torch.where(a < b, -a, torch.maximum(a, b))),
    (reduced, lambda a, b: a.sum() + b.max() + a.cumsum(0)),
    (functions, _functions),
]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("kernel", "expected"), CASES, ids=[k.__name__ for k, _ in CASES])
def test_arithmetic(kernel: Any, expected: Callable[..., torch.Tensor], dtype: str):
    torch.manual_seed(0)
    x, y = ((torch.rand(13) + 0.5).to(getattr(torch, dtype)) for _ in range(2))
    out = torch.empty_like(x)
    TritonLaunch(kernel, CPU, (1,), x=dtype, y=dtype, out=dtype, n=13, BLOCK=16)(x, y, out)
    exact = expected(x.double(), y.double())
    # Operations in half precision round each, so that errors add up.
    error = 4 * TOLERANCE[dtype]
    torch.testing.assert_close(out.double(), exact, rtol=error, atol=error)


@triton.jit
def product(a, b, c, N: tl.constexpr):
    i = tl.arange(0, N)
    x = tl.load(a + i[:, None] * N + i[None, :])
    y = tl.load(b + i[:, None] * N + i[None, :])
    total = tl.zeros((N, N), tl.float32)
    total = tl.dot(x, y, total, input_precision="ieee")
    tl.store(c + i[:, None] * N + i[None, :], total)
    tl.atomic_add(c + N * N, 1.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_products_and_atomics(dtype: str):
    a, b = (torch.randn(16, 16).to(getattr(torch, dtype)) for _ in range(2))
    c = torch.zeros(16 * 16 + 1)
    TritonLaunch(product, CPU, (3,), a=dtype, b=dtype, c="float32", N=16)(a, b, c)
    torch.testing.assert_close(c[:-1].view(16, 16), a.float() @ b.float(), rtol=1e-5, atol=1e-5)
    assert c[-1] == 3


@triton.jit
def casts(x, out, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


@pytest.mark.parametrize("target", [*FLOATS, "int32", "int8", "bool"])
@pytest.mark.parametrize("dtype", [*FLOATS, "int32", "uint8", "bool"])
def test_casts_round_as_torch(dtype: str, target: str):
    values = torch.tensor([0.0, 1.0, 1.00390625, 3.1415926, 77.7, 1.0 + 2**-9, 2.5, 3.5])
    x = values.to(getattr(torch, dtype))
    out = torch.empty(8, dtype=getattr(torch, target))
    TritonLaunch(casts, CPU, (1,), x=dtype, out=target, BLOCK=8)(x, out)
    assert torch.equal(out, x.to(out.dtype))


@triton.jit
def of_device(x, out, NAME: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    if NAME == "tanh":
        value = libdevice.tanh(value)
    elif NAME == "pow":
        value = libdevice.pow(value, 2.0)
    elif NAME == "isnan":
        value = tl.where(libdevice.isnan(value), 1.0, 0.0)
    else:
        value = libdevice.normcdfinv(value)
    tl.store(out + at, value)


@pytest.mark.parametrize("name", ["tanh", "pow", "isnan"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_libdevice(name: str, dtype: str):
    x = torch.rand(8, dtype=getattr(torch, dtype))
    out = torch.empty_like(x)
    TritonLaunch(of_device, CPU, (1,), x=dtype, out=dtype, NAME=name, BLOCK=8)(x, out)
    expected = FUNCTIONS[name](x, 2.0) if name == "pow" else FUNCTIONS[name](x).to(x.dtype)
    torch.testing.assert_close(out, expected)


def test_what_it_has_not_is_an_error_that_names_the_kernel():
    x, out = torch.rand(8), torch.empty(8)
    with pytest.raises(BackendError, match="has no normcdfinv of libdevice") as caught:
        TritonLaunch(of_device, CPU, (1,), x="float32", out="float32", NAME="", BLOCK=8)(x, out)
    assert "test_interpreter.py" in str(caught.value) and "'of_device'" in str(caught.value)


@pytest.fixture
def untouched() -> Iterator[None]:
    """Nothing of Triton or of this module is changed by the test."""
    looked_at = (tl, tl.core, tl.math, tl.tensor, tl.dtype, tl.standard, libdevice, JITFunction)
    before = [dict(vars(one)) for one in looked_at]
    names = set(globals()), set(vars(kernels))
    yield
    for one, was in zip(looked_at, before, strict=True):
        now = dict(vars(one))
        assert now.keys() == was.keys() and all(now[n] is was[n] for n in was), one
    assert names == (set(globals()), set(vars(kernels)))


def test_it_leaves_triton_as_it_was(untouched: None):
    x, y, out = torch.rand(13), torch.rand(13), torch.empty(13)
    for kernel in (reduced, functions):
        TritonLaunch(kernel, CPU, (1,), x="float32", y="float32", out="float32", n=13, BLOCK=16)(
            x, y, out
        )
    TritonLaunch(kernels.relu, CPU, (1,), x="float32", out="float32", numel=13, BLOCK=16)(x, out)
    assert torch.equal(out, x)
    with pytest.raises(RuntimeError, match="outside of the scope of a kernel"):
        kernels.positive(x)
    assert isinstance(kernels.relu, JITFunction) and meta.ones((2,)).tolist() == [1.0, 1.0]
