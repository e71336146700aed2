"""Dtypes that torch computes in, against torch."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch

import meta
from meta.base.dtype import FROM_TORCH
from meta.frontend.aten.arguments import promote, result_dtype
from meta.frontend.core import Unconvertible

DTYPES = [torch.bool, torch.uint8, torch.int32, torch.int64, torch.float16, torch.bfloat16]
DTYPES += [torch.float32, torch.float64, torch.complex64]
OPERANDS: list[Any] = [torch.ones(shape, dtype=d) for d in DTYPES for shape in ((2,), ())]
OPERANDS += [True, 2, 0.5, 1j]


def ours(value: Any) -> Any:
    return meta.array(value) if isinstance(value, torch.Tensor) else value


@pytest.mark.parametrize("first", range(len(OPERANDS)))
def test_pairs_promote_as_torch_s(first: int) -> None:
    for a, b in itertools.product([OPERANDS[first]], OPERANDS):
        expected = torch.result_type(a, b)
        if expected not in FROM_TORCH:  # complex32, and from 2.14 on bcomplex32
            assert expected.is_complex and expected.itemsize == 4
            with pytest.raises(Unconvertible, match=str(expected)):
                result_dtype(ours(a), ours(b))
        else:
            assert result_dtype(ours(a), ours(b)) == FROM_TORCH[expected], (a, b)


def test_numbers_stay_numbers() -> None:
    x, y, z = promote(meta.array([1, 2]), 0.5, None)
    assert x.dtype == "float32" and y == 0.5 and z is None
    (x,) = promote(meta.array([1, 2]), floating=True)
    assert x.dtype == "float32"
