"""Random numbers in CUDA, run as C++ on the CPU: bit by bit those of ATen on the CPU."""

from __future__ import annotations

import pytest
import torch

import meta
from meta import op
from meta.base.device import Device
from meta.base.dtype import TO_TORCH
from meta.dialect.core import Unsupported
from meta.dialect.cuda import random as kernels
from meta.ir import TensorType

KEY = 0x7123456789ABCDEF
DTYPES = ("float16", "bfloat16", "float32", "float64")
SHAPES = ((7,), (3, 333), (1024,), (), (0, 4))


@pytest.fixture(autouse=True)
def fresh_launches():
    """Those of the emulator are for this test only."""
    kernels._launch.cache_clear()
    yield
    kernels._launch.cache_clear()


def drawn(operator, shape, *args, numbers=()):
    """Return what the kernel fills a result with, and what another dialect does."""
    call = operator.call_values((TensorType((1,), "int64"), shape, *args), Device("cuda:0"))
    made = kernels._make(call)
    out, other = (torch.full(shape, 77, dtype=TO_TORCH[call.outputs[0].dtype]) for _ in range(2))
    key = torch.tensor([KEY])
    made.run(key, *numbers, out)
    kernels.fill(operator, KEY, *(numbers or args[:2]), out=other)
    assert torch.equal(out, other), "a key that is a number is another"
    return out, operator(meta.array(key), shape, *args).torch()


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", DTYPES)
def test_real_numbers(dtype: str) -> None:
    for shape in SHAPES:
        for low, high in ((0.0, 1.0), (-1.3, 0.1), (0.5, 0.7), (2.0, 2.0)):
            found = drawn(op.random_uniform, shape, low, high, dtype, numbers=(low, high))
            assert torch.equal(*found)
        for mean, std in ((0.0, 1.0), (0.3, 0.02)):
            found = drawn(op.random_normal, shape, mean, std, dtype, numbers=(mean, std))
            assert torch.equal(*found)


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize(
    ("dtype", "low", "last"),
    [
        ("int64", -3, 9), ("int64", -(2**63), 2**63 - 1), ("int64", 5, 2**62 + 77),
        ("int32", -(2**31), 2**31 - 1), ("int8", -128, 127), ("uint8", 3, 250),
    ],
)  # fmt: skip
def test_integers(dtype: str, low: int, last: int) -> None:
    for shape in SHAPES:
        assert torch.equal(*drawn(op.random_integers, shape, low, last, dtype))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_row_has_a_key(dtype: str) -> None:
    keys, rows = torch.tensor([KEY, -1, 5]), []
    for shape in ((3, 7), (3, 333), (3, 2, 512), (3,), (3, 0)):
        args = TensorType((3,), "int64"), shape, 0.0, 1.0, dtype
        made = kernels._make(op.random_uniform.call_values(args, Device("cuda:0")))
        found = torch.full(shape, 77, dtype=TO_TORCH[dtype])
        made.run(keys, 0.0, 1.0, found)
        rows = [op.random_uniform(meta.array(k), shape[1:], dtype=dtype).torch() for k in keys]
        assert torch.equal(found, torch.stack(rows))


@pytest.mark.usefixtures("emulated")
@pytest.mark.parametrize("dtype", DTYPES)
def test_dropout(dtype: str) -> None:
    for shape in SHAPES:
        for p in (0.0, 0.1, 0.75):
            x = torch.randn(shape).to(TO_TORCH[dtype])
            types = TensorType(shape, dtype), p, TensorType((1,), "int64")
            made = kernels.dropout_train_launch(
                op.dropout_train.call_values(types, Device("cuda:0"))
            )
            y, mask = torch.full_like(x, float("nan")), torch.zeros(shape, dtype=torch.bool)
            made.run(x, torch.tensor([KEY]), y, mask, torch.empty(0, dtype=torch.uint8))
            wanted = op.dropout_train(meta.array(x), p, meta.array([KEY]))
            assert torch.equal(y, wanted[0].torch()) and torch.equal(mask, wanted[1].torch())


def test_extents_are_numbers() -> None:
    n = meta.ir.SymbolicDim("n")
    call = op.random_normal.call_values(
        (TensorType((1,), "int64"), (n,), 0.0, 1.0, "float32"), Device("cuda:0")
    )
    with pytest.raises(Unsupported):
        kernels._make(call)
