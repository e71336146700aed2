"""Zeros that the compiler knows are computed with as others: 0 * x and 0 / x are NaN where x is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import meta
from meta.base.dtype import TO_TORCH

VALUES = [5.0, -3.0, 0.0, -0.0, math.inf, -math.inf, math.nan, 0.5] * 5
FORMS: dict[str, Callable[[Any, Any], tuple[Any, Any]]] = {
    "number behind": lambda x, zero: (x, zero),
    "number before": lambda x, zero: (zero, x),
    "zeros behind": lambda x, zero: (x, meta.zeros_like(x)),
    "zeros before": lambda x, zero: (meta.zeros_like(x), x),
    "full behind": lambda x, zero: (x, meta.full(x.shape, zero, x.dtype)),
}
ORACLES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "multiply": torch.multiply,
    "divide": torch.divide,
    "floor_divide": torch.floor_divide,
    "remainder": torch.remainder,
}


SLOW = [pytest.param(d, marks=pytest.mark.slow) for d in ("float16", "bfloat16", "float64")]


@pytest.mark.long
@pytest.mark.parametrize("dtype", ["float32", *SLOW])
@pytest.mark.parametrize("name", ORACLES)
def test_fused_with_neighbours(name: str, dtype: str) -> None:
    x = meta.array(torch.tensor(VALUES, dtype=TO_TORCH[dtype]))

    @meta.model.trace
    def program(x: Any) -> Any:
        doubled = x + x
        return tuple(
            getattr(meta.op, name)(*form(doubled, zero)) - 1.0
            for form in FORMS.values()
            for zero in (0.0, -0.0)
        )

    with meta.dialect.prefer("tvm"):
        found = meta.vm.compile(program, x)(x)
    assert found[0].shape == x.shape
    doubled = x.torch().double() * 2
    for i, (form, zero) in enumerate((f, z) for f in FORMS for z in (0.0, -0.0)):
        filled = torch.full_like(doubled, 0.0 if "zeros" in form else zero)
        pair = (doubled, filled) if "behind" in form else (filled, doubled)
        wanted = ORACLES[name](*pair) - 1.0
        torch.testing.assert_close(
            found[i].torch().double(), wanted, equal_nan=True, rtol=0, atol=0, msg=f"{form} {zero}"
        )
