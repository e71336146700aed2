"""Where hardware and libraries differ: floats beyond an integer dtype, and the signs of zeros."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.dtype import FLOATS, TO_TORCH, truncate
from meta.dialect import only
from meta.model import trace
from meta.testing.emulator import compiler
from meta.testing.emulator.operators import emulated_cuda
from meta.vm import compile

DIALECTS = ("tvm", "torch")
BITS = {"int8": 8, "int16": 16, "int32": 32, "int64": 64}
BITS |= {"uint8": 8, "uint16": 16, "uint32": 32, "uint64": 64}
NUMBERS = [
    300.0, -1.0, -300.0, 128.0, 255.9, 256.0, -128.9, -129.0, 70000.0, -70000.0, 3e9, -3e9, 1e10,
    -1e10, 1e19, -1e19, 2e19, math.inf, -math.inf, math.nan, 2.0**31, -(2.0**31), -(2.0**31) - 1.5,
    2.0**32 + 1, 1e18, 9.3e18, -0.5, 2.0**32 + 300, 2.0**63, -(2.0**63), 32768.0, 0.99, -0.0,
]  # fmt: skip


def as_integer(value: float, dtype: str) -> int:
    """What docs say of `astype`, in Python's integers."""
    carrier = 31 if dtype in ("int8", "int16", "int32") else 63
    if dtype == "uint64" and value >= 2.0**63:
        return int(value) if value < 2.0**64 else 0
    whole = int(value) if abs(value) < 2.0**carrier else -(2**carrier)
    low = whole % 2 ** BITS[dtype]
    return low - 2 ** BITS[dtype] if dtype[0] == "i" and low >= 2 ** (BITS[dtype] - 1) else low


def numbers(dtype: str, count: int) -> torch.Tensor:
    return torch.tensor((NUMBERS * 4)[:count], dtype=torch.float64).to(TO_TORCH[dtype])


@pytest.fixture
def on_cuda() -> Iterator[None]:
    compiler.compiler()
    with emulated_cuda():
        yield


@pytest.mark.product
@pytest.mark.parametrize("to", BITS)
@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_floats_beyond_the_integers(dtype: str, to: str) -> None:
    # All numbers in one vector of lanes or in none, and alone.
    for count in (len(NUMBERS), 3 * len(NUMBERS)):
        x = numbers(dtype, count)
        expected = [as_integer(v, to) for v in x.tolist()]
        for dialect in DIALECTS:
            with only(dialect):
                assert op.astype(meta.array(x), to).torch().tolist() == expected, dialect
        assert truncate(x, TO_TORCH[to]).tolist() == expected
        assert meta.array(x).to(dtype=to).torch().tolist() == expected


@pytest.mark.product
@pytest.mark.parametrize("to", ["int8", "uint8", "int16", "int32", "int64", "uint16", "uint32"])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_floats_beyond_the_integers_in_programs(dtype: str, to: str) -> None:
    x = meta.array(numbers(dtype, 3 * len(NUMBERS)))
    whole = np.array([as_integer(v, to) for v in x.torch().tolist()], to)
    fused = trace(lambda a: op.bitwise_xor(op.astype(op.copysign(a, a), to), 1))
    like = trace(lambda a: op.flip(op.cast_like(a, op.zeros_like(op.astype(a, to)))))
    for dialect in DIALECTS:
        with only(dialect):
            assert (compile(fused, x)(x).numpy() == (whole ^ 1)).all(), dialect
            assert (compile(like, x)(x).numpy() == whole[::-1]).all(), dialect
    assert op.cumsum(x[:8], 0, to).numpy().tolist() == np.cumsum(whole[:8], dtype=to).tolist()


@pytest.mark.parametrize("to", ["int8", "uint8", "int64", "uint16", "uint32"])
def test_floats_beyond_the_integers_on_cuda(to: str, on_cuda: None) -> None:
    for dtype in ("float32", "float64"):
        x = numbers(dtype, len(NUMBERS))
        with only("tvm"):
            found = op.astype(meta.array(x), to).torch().tolist()
        assert found == [as_integer(v, to) for v in x.tolist()]


QUOTIENTS = [
    (0.0, 1.0), (-0.0, 1.0), (0.0, -1.0), (-0.0, -1.0), (1.0, 3.0), (-1.0, -3.0), (1.0, -3.0),
    (1.0, math.inf), (-1.0, math.inf), (-1.0, -math.inf), (math.nan, 1.0), (math.inf, 2.0),
    (0.0, 0.0), (1.0, 0.0), (-1.0, 0.0), (7.5, 2.5), (-0.5, -2.0), (1e-7, -math.inf),
]  # fmt: skip
SIGNS = [math.nan, -math.nan, 0.0, -0.0, 2.5, -2.5, math.inf, -math.inf, 1e-30]


def spelled(x: torch.Tensor) -> list[str]:
    """Values with the signs of zeros."""
    return [str(v) for v in x.tolist()]


@pytest.mark.long
@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_the_sign_of_a_floored_zero(dtype: str) -> None:
    a, b = (torch.tensor(list(c) * 3, dtype=TO_TORCH[dtype]) for c in zip(*QUOTIENTS, strict=True))
    expected = spelled(torch.floor_divide(a, b))
    x, y = meta.array(a), meta.array(b)
    fused = trace(lambda x, y: op.copysign(op.floor_divide(x, y), op.floor_divide(x, y)))
    for dialect in DIALECTS:
        with only(dialect):
            assert spelled(op.floor_divide(x, y).torch()) == expected, dialect
            assert spelled(compile(fused, x, y)(x, y).torch()) == expected, dialect
    for p, q in QUOTIENTS:
        value = torch.floor_divide(torch.tensor(p).double(), torch.tensor(q).double())
        assert str(op.floor_divide(p, q)) == str(value.item())


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_the_sign_of_what_has_none(dtype: str) -> None:
    a = torch.tensor(SIGNS * 3, dtype=TO_TORCH[dtype])
    expected = spelled(torch.where(a.isnan(), a, torch.sign(a)))
    assert "nan" in expected and "0.0" in expected
    x = meta.array(a)
    fused = trace(lambda x: op.copysign(op.sign(op.copysign(x, x)), op.sign(x)))
    for dialect in DIALECTS:
        with only(dialect):
            assert spelled(op.sign(x).torch()) == expected, dialect
            assert spelled(compile(fused, x)(x).torch()) == expected, dialect
    for v in SIGNS:
        assert str(op.sign(v)) == ("nan" if v != v else str(torch.sign(torch.tensor(v)).item()))


def test_signs_on_cuda(on_cuda: None) -> None:
    a, b = (torch.tensor(c) for c in zip(*QUOTIENTS, strict=True))
    with only("tvm"):
        found = op.floor_divide(meta.array(a), meta.array(b)).torch()
        signs = op.sign(meta.array(torch.tensor(SIGNS))).torch()
    assert spelled(found) == spelled(torch.floor_divide(a, b))
    given = torch.tensor(SIGNS)
    assert spelled(signs) == spelled(torch.where(given.isnan(), given, torch.sign(given)))
