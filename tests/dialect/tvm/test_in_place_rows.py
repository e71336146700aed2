"""Kernels that write over an operand and add a bias: vectors along the rows."""

from __future__ import annotations

import pytest
import torch
from tvm import te

from meta.base.device import CPU
from meta.dialect.tvm.build import kernel
from meta.dialect.tvm.lower import prim_func
from meta.dialect.tvm.schedule_cpu import schedule
from meta.dialect.tvm.target import for_device
from tests.dialect.tvm.functions import tensor

TARGET = for_device(CPU)


@pytest.mark.parametrize(("columns", "vectors"), [(32, True), (20, False)])
def test_rows(columns: int, vectors: bool) -> None:
    x, b = tensor(5, columns), tensor(columns, name="b")
    y = te.compute((5, columns), lambda i, j: te.erf(x[i, j] + b[j]))
    function = prim_func([x, b], [y], in_place=(0,))
    assert ("T.vectorized" in schedule(function, TARGET).script()) == vectors
    values, bias = torch.randn(5, columns), torch.randn(columns)
    expected = torch.erf(values + bias)
    kernel(function, TARGET)(values, bias, values)
    torch.testing.assert_close(values, expected, rtol=1e-6, atol=1e-6)
