"""Offsets beyond 2**31 elements: kernels then count in int64, also where only a stage between is
so large.
"""

from __future__ import annotations

import pytest
import torch
import tvm_ffi
from tvm import te, tirx

import meta
from meta.dialect import only
from meta.dialect.tvm.lower import prim_func

LARGE = 2**31 + 11


def _index_dtypes(function: tirx.PrimFunc) -> set[str]:
    found: set[str] = set()

    def visit(loop: tirx.For) -> None:
        found.add(str(loop.loop_var.ty.dtype))

    tvm_ffi.structural_walk(function.body, (tirx.For, visit))
    return found


@pytest.mark.parametrize(("extent", "dtype"), [(LARGE, "int64"), (16, "int32")])
def test_the_width_follows_the_size(extent: int, dtype: str) -> None:
    x = te.placeholder((extent,), "uint8")
    y = te.compute((extent,), lambda i: x(i) + tirx.const(1, "uint8"))
    assert _index_dtypes(prim_func([x], [y])) == {dtype}


def test_a_large_stage_between_counts() -> None:
    x = te.placeholder((65536,), "uint8")
    square = te.compute((65536, 65536), lambda i, j: x(i) + x(j))
    axis = te.reduce_axis((0, 65536))
    y = te.compute((65536,), lambda i: te.max(square(i, axis), axis=axis))
    assert _index_dtypes(prim_func([x], [y])) == {"int64"}


@pytest.mark.slow
@pytest.mark.parametrize("dialect", ["tvm", "torch"])
def test_a_large_tensor(dialect: str) -> None:
    x = torch.zeros(LARGE, dtype=torch.uint8)
    x[-1] = 5
    with only(dialect):
        inverted = meta.bitwise_invert(meta.array(x)).torch()
    assert inverted[-1] == 250
    assert inverted[0] == 255
