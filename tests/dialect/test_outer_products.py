"""Products of matrices of one column by one row, which are no sums: kernels of ATen on the CPU."""

from __future__ import annotations

import pytest
import torch

import meta
from meta.op.linalg import STORED_TRANSPOSED


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "int32"])
@pytest.mark.parametrize("batches", [(3, 3), (1, 3), (3, 1), (0, 0)])
@pytest.mark.parametrize("op", STORED_TRANSPOSED, ids=lambda op: op.name)
def test_one_term(op: meta.op.core.Op, batches: tuple[int, int], dtype: str) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = [(1, 5) if first else (5, 1) for first in (STORED_TRANSPOSED[op][0],)]
    shapes += [(4, 1) if STORED_TRANSPOSED[op][1] else (1, 4)]
    if op.name.startswith("batch"):
        shapes = [(n, *shape) for n, shape in zip(batches, shapes, strict=True)]
    given = [torch.randint(-9, 9, shape, generator=generator).double() for shape in shapes]
    x1, x2 = (meta.array(x, dtype) for x in given)
    with meta.dialect.only("torch"):
        found = op(x1, x2)
    transposed = zip(given, STORED_TRANSPOSED[op], strict=True)
    a, b = (x.mT if stored else x for x, stored in transposed)
    assert found.dtype == dtype and torch.equal(found.torch().double(), a * b)
