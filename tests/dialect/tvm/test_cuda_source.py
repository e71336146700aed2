"""Constants in kernels for CUDA, emulated: no digit is lost, and NaN is NaN."""

from __future__ import annotations

import math
import shutil

import pytest
import torch
from tvm import te, tirx

from meta.dialect.tvm import cuda_source
from meta.dialect.tvm.lower import prim_func
from meta.runtime.nvrtc import run_nvcc
from meta.testing.emulator.generated import TARGET, emulated, sources


def times(number: float, dtype: str) -> tirx.PrimFunc:
    x = te.placeholder((40,), dtype, name="x")
    y = te.compute((40,), lambda i: x[i] * tirx.const(number, dtype), name="y")
    return prim_func([x], [y])


@pytest.mark.parametrize("number", [1e-300, -1 / 3, math.sqrt(0.5), 0.1, 2.0, 1e18, math.inf])
def test_none_is_rounded(number: float) -> None:
    x = torch.linspace(1, 2, 40, dtype=torch.float64)
    y = torch.empty_like(x)
    emulated(times(number, "float64"), TARGET)(x, y)
    assert torch.equal(y, x * number)


def test_source() -> None:
    """Only those that TVM would round are given by their bits."""
    assert "__longlong_as_double" in sources(times(1e-18, "float64"))
    for number, dtype in ((0.5, "float64"), (0.1, "float64"), (1e-18, "float32")):
        assert "__longlong_as_double" not in sources(times(number, dtype))
    if compiler := shutil.which("nvcc"):
        assert run_nvcc(compiler, cuda_source.complete(sources(times(1e-18, "float64"))), "sm_90")


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_not_finite(dtype: str) -> None:
    """Infinities and NaN of half precision; the mean of nothing is one."""
    values = [math.nan, math.inf, -math.inf, 1.5]
    constants = [tirx.const(value, dtype) for value in values]

    def chosen(i: tirx.Var) -> tirx.PrimExpr:
        made = constants[3]
        for n in range(3):
            made = tirx.Select(i % 4 == n, constants[n], made)
        return made

    made = prim_func([], [te.compute((40,), chosen, name="y")])
    y = torch.empty(40, dtype=getattr(torch, dtype))
    emulated(made, TARGET)(y)
    torch.testing.assert_close(y, torch.tensor(values * 10, dtype=y.dtype), equal_nan=True)
    if compiler := shutil.which("nvcc"):
        assert run_nvcc(compiler, cuda_source.complete(sources(made)), "sm_90")


OFTEN = {("bfloat16", "int64"), ("float16", "int8"), ("int32", "bfloat16")}
CASTS = [
    pytest.param(found, wanted, marks=[] if (found, wanted) in OFTEN else pytest.mark.slow)
    for found in ("float16", "bfloat16", "float64", "int32")
    for wanted in ("float16", "bfloat16", "float64", "int8", "int32", "int64")
]


@pytest.mark.parametrize(("found", "wanted"), CASTS)
def test_casts_of_casts(found: str, wanted: str) -> None:
    """Through a half: no constructor of an integer stands for a conversion."""
    source = ((torch.arange(37) - 18).to(torch.float64) * 1.75).to(getattr(torch, found))
    for half in {"float16", "bfloat16"} - {found}:
        function = recast(found, half, wanted)
        result = torch.empty(37, dtype=getattr(torch, wanted))
        emulated(function, TARGET)(source, result)
        assert torch.equal(result, source.to(getattr(torch, half)).to(result.dtype))
        if compiler := shutil.which("nvcc"):
            assert run_nvcc(compiler, cuda_source.complete(sources(function)), "sm_90")


def recast(found: str, half: str, wanted: str) -> tirx.PrimFunc:
    x = te.placeholder((37,), found, name="x")
    y = te.compute((37,), lambda i: x[i].astype(half).astype(wanted), name="y")
    return prim_func([x], [y])
