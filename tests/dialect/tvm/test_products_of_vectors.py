"""Products of one row on the CPU are generated code, where a row fits the first cache; attention of
one query, too. Values beside torch in float64.
"""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch

import meta
from meta import op
from meta.base.device import CPU
from meta.dialect.core.dispatch import dispatch
from meta.ir.types import TensorType

TOLERANCE = {"float32": 1e-5, "bfloat16": 2e-2, "float16": 3e-3, "float64": 1e-12}


def dialect_of(base: Any, *args: Any) -> str:
    """Return which dialect a compiled program has for a call of arrays and attributes."""
    types = [TensorType(a.shape, a.dtype) if isinstance(a, meta.ndarray) else a for a in args]
    chosen = dispatch(base.call_values(tuple(types), CPU)).dialect_op
    assert chosen is not None
    name: str = chosen.dialect.name
    return name


@pytest.mark.parametrize(
    ("rows", "columns", "extent", "dtype", "generated"),
    [
        ((1,), 40, 64, "float32", True),
        ((1,), 7, 96, "bfloat16", True),
        ((1,), 33, 1024, "float16", True),
        ((1,), 1, 32, "float32", True),
        ((1,), 5, 6144, "float32", True),
        ((1,), 5, 6176, "float32", False),  # the row is larger than the first cache
        ((1,), 5, 8192, "bfloat16", True),
        ((1,), 40, 33, "float32", False),  # no lanes
        ((1,), 40, 64, "float64", False),
        ((2,), 40, 64, "float32", False),
        ((0,), 40, 64, "float32", False),
    ],
)
def test_rows(rows: Any, columns: int, extent: int, dtype: str, generated: bool) -> None:
    x = meta.random.normal((*rows, extent)).astype(dtype)
    w = meta.random.normal((columns, extent)).astype(dtype)
    bias = meta.random.normal((columns,)).astype(dtype)
    traced = meta.model.trace(lambda x, w, b: op.relu(op.bias_add(op.dense(x, w), b)))
    executable = meta.vm.compile(traced, x, w, bias)
    assert dialect_of(op.dense, x, w) == ("tvm" if generated else "torch")
    wide = [a.torch().double() for a in (x, w, bias)]
    wanted = torch.relu(wide[0] @ wide[1].T + wide[2])
    found = executable(x, w, bias).torch().double()
    scale = extent**0.5
    torch.testing.assert_close(found / scale, wanted / scale, rtol=0, atol=TOLERANCE[dtype])


def test_a_choice_of_the_user_goes_first() -> None:
    x, w = meta.ones((1, 64)), meta.ones((8, 64))
    with meta.dialect.prefer("torch"):
        assert dialect_of(op.dense, x, w) == "torch"
    with meta.dialect.exclude("tvm"):
        assert dialect_of(op.dense, x, w) == "torch"
    with meta.dialect.prefer(dense="torch"):
        assert dialect_of(op.dense, x, w) == "torch"
    assert re.search(r"tvm +plevel 16", str(meta.explain(op.dense, x, w)))


@pytest.mark.product
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("queries", [1, 2])
@pytest.mark.parametrize("layout", ["BSHD", "BHSD"])
@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (6, 2), (4, 1)])
def test_attention_of_one_query(
    dtype: str, queries: int, layout: str, heads: int, groups: int
) -> None:
    def of(length: int, count: int) -> Any:
        shape = (2, length, count, 16) if layout == "BSHD" else (2, count, length, 16)
        return meta.random.normal(shape).astype(dtype)

    query, key, value = of(queries, heads), of(21, groups), of(21, groups)
    mask = meta.array(torch.rand(2, 1, queries, 21) < 0.6)
    attend = meta.model.trace(
        lambda q, k, v, m: op.fused_attention(q, k, v, m, scale=0.3, layout=layout)[0]
    )
    found = meta.vm.compile(attend, query, key, value, mask)(query, key, value, mask)
    chosen = dialect_of(op.fused_attention, query, key, value, mask, False, 0.3, layout)
    assert chosen == ("tvm" if queries == 1 else "torch")
    q, k, v = (
        x.torch().double().transpose(1, 2) if layout == "BSHD" else x.torch().double()
        for x in (query, key, value)
    )
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=mask.torch(), scale=0.3, enable_gqa=True
    )
    y = found.torch().double()
    y = y.transpose(1, 2) if layout == "BSHD" else y
    torch.testing.assert_close(y, wanted, rtol=0, atol=TOLERANCE[dtype])
