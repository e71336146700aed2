"""Elements added along rows in CUDA, run as C++ on the CPU, beside torch in float64."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch

from meta import op
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect.core import Unsupported
from meta.dialect.cuda.scatter_add import rows
from meta.ir import TensorType
from meta.op.core.call import CallValues

TOLERANCES = {"float32": 1e-6, "float16": 1e-3, "bfloat16": 8e-3}


def call(types: Iterable[TensorType], axis: int = -1) -> CallValues:
    x, index, src = types
    found: CallValues = op.scatter_add.call_values((x, axis, index, src), Device("cuda:0"))
    return found


@pytest.mark.usefixtures("emulated")
@pytest.mark.product
@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize(
    ("outer", "width", "count", "more", "distinct"),
    [
        ((3, 4), 64, 40, 0, True),  # vector accesses, a chunk that is not full
        ((5,), 40, 96, 3, False),  # elements that indices are missing for; many are equal
        ((2,), 33, 70, 0, False),  # single elements
        ((), 6, 9, 0, False),
        ((4,), 8, 0, 2, True),
        ((4,), 1, 5, 0, False),  # all are added to one
        ((0,), 8, 4, 0, True),
    ],
)
def test_as_torch(
    outer: tuple[int, ...], width: int, count: int, more: int, distinct: bool, dtype: str
) -> None:
    generator = torch.Generator().manual_seed(0)
    indices = torch.rand(*outer, max(width, count), generator=generator).argsort(-1)[..., :count]
    indices = indices % width if distinct else indices // 3 % width
    draw = [torch.randn(*outer, n, generator=generator) for n in (width, count + more)]
    x, src = (t.to(TO_TORCH[dtype]) for t in draw)
    of = "int32" if distinct else "int64"
    types = [TensorType(tuple(t.shape), dtype) for t in (x, src)]
    made = rows(call([types[0], TensorType(tuple(indices.shape), of), types[1]]))
    out = torch.full_like(x, float("nan"))
    made.run(x, indices.to(TO_TORCH[of]), src, out)
    expected = x.double().scatter_add(-1, indices, src.double())
    tolerance = TOLERANCES[dtype]
    torch.testing.assert_close(out.double(), expected, rtol=tolerance, atol=10 * tolerance)


@pytest.mark.usefixtures("emulated")
def test_indices_outside_mean_the_nearest_place() -> None:
    x, index, src = torch.zeros(1, 4), torch.tensor([[-3, 9, 1]]), torch.ones(1, 3)
    types = (
        TensorType((1, 4), "float32"),
        TensorType((1, 3), "int64"),
        TensorType((1, 3), "float32"),
    )
    made = rows(call(types))
    out = torch.empty(1, 4)
    made.run(x, index, src, out)
    assert out.tolist() == [[1, 1, 0, 1]]


@pytest.mark.parametrize(
    ("x", "index", "axis", "dtype", "why"),
    [
        ((4, 3), (4, 3), 0, "float32", "last axis"),
        ((4, 3), (2, 3), 1, "float32", "not all rows"),
        ((4, 5000), (4, 3), 1, "float32", "too wide"),
        ((4, 3), (4, 3), 1, "float64", "no kernel"),
        ((4, 3), (4, 3), 1, "int64", "no kernel"),
    ],
)
def test_declines(
    x: tuple[int, ...], index: tuple[int, ...], axis: int, dtype: str, why: str
) -> None:
    types = [TensorType(x, dtype), TensorType(index, "int64"), TensorType(index, dtype)]
    with pytest.raises(Unsupported, match=why):
        rows(call(types, axis))
