"""Slices written at coordinates in CUDA, run as C++ on the CPU, beside torch."""

from __future__ import annotations

import pytest
import torch

from meta import op
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect.core import Unsupported
from meta.dialect.cuda.assign_at import slices
from meta.ir import TensorType


def call(shape: tuple[int, ...], dtype: str, at: tuple[int, ...], of: str, axis: int) -> object:
    rest, behind = at[1:], shape[axis + at[0] :]
    value = TensorType((*shape[:axis], *rest, *behind), dtype)
    types = TensorType(shape, dtype), TensorType(at, of), value, axis
    return op.assign_at.call_values(types, Device("cuda:0"))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("shape", "dtype", "at", "of", "axis"),
    [
        ((2, 3, 9, 8), "float16", (1, 1), "int64", 2),  # a token of a cache
        ((2, 9, 3, 8), "bfloat16", (1, 4), "int64", 1),
        ((4, 9, 5), "float32", (2, 3), "int32", 0),  # rows of their own places
        ((4, 9), "float64", (2, 2, 2), "int64", 0),
        ((7, 3), "int8", (1, 2), "int64", 0),  # words of one byte
        ((7, 3), "bool", (1,), "int64", 1),
        ((7, 0), "float32", (1, 2), "int64", 0),
    ],
)
def test_as_torch(
    shape: tuple[int, ...], dtype: str, at: tuple[int, ...], of: str, axis: int
) -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 2, shape, generator=generator).to(TO_TORCH[dtype])
    made = call(shape, dtype, at, of, axis)
    rows = [torch.randperm(n, generator=generator) for n in shape[axis : axis + at[0]]]
    count = max(1, torch.Size(at[1:]).numel())
    indices = torch.stack([r[:count] for r in rows]).reshape(at).to(TO_TORCH[of])
    values = made.args.value.static_shape  # type: ignore[attr-defined]
    value = torch.randint(2, 9, values, generator=generator).to(TO_TORCH[dtype])
    expected = x.clone()
    torch.ops.aten.index_put_(expected, [None] * axis + list(indices.long()), value)
    slices(made).run(x, indices, value)  # type: ignore[arg-type]
    assert torch.equal(x, expected)


@pytest.mark.usefixtures("emulated")
def test_indices_outside_mean_the_nearest_place() -> None:
    x, value = torch.zeros(4, 2), torch.ones(2, 2)
    made = call((4, 2), "float32", (1, 2), "int64", 0)
    slices(made).run(x, torch.tensor([[-1, 9]]), value)  # type: ignore[arg-type]
    assert x[:, 0].tolist() == [1, 0, 0, 1]


def test_other_indices_are_declined() -> None:
    with pytest.raises(Unsupported, match="indices of uint8"):
        slices(call((4, 2), "float32", (1, 2), "uint8", 0))  # type: ignore[arg-type]
