"""Operands of several dtypes: what they are cast to, that the cast is seen, and strictness."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import TypeInferError
from meta.base.registry import OPERATORS
from meta.ir import parse
from meta.model import trace

DTYPES = ["bool", "uint8", "int8", "int16", "int32", "int64"]
DTYPES += ["float16", "bfloat16", "float32", "float64"]
VALUES = [1, 0, 3, 2]


def tensor(dtype: str) -> torch.Tensor:
    return torch.tensor(VALUES).to(getattr(torch, dtype))


def name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


BINARY = {
    "add": torch.add,
    "multiply": torch.mul,
    "divide": torch.true_divide,
    "maximum": torch.maximum,
    "atan2": torch.atan2,
    "less": torch.lt,
    "equal": torch.eq,
}


@pytest.mark.parametrize("pair", list(itertools.combinations(DTYPES, 2)), ids=str)
def test_arrays_promote_as_torchs_do(pair: tuple[str, str]) -> None:
    one, two = map(tensor, pair)
    for name, theirs in BINARY.items():
        for a, b in ((one, two), (two, one)):
            found, expected = getattr(meta, name)(a, b), theirs(a, b)
            assert found.dtype == name_of(expected.dtype), name
            torch.testing.assert_close(found.torch(), expected, equal_nan=True)
    condition = torch.tensor([True, False, False, True])
    found = meta.where(condition, one, two)
    torch.testing.assert_close(found.torch(), torch.where(condition, one, two))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("number", [True, 2, 2.5])
def test_numbers_are_weak(dtype: str, number: Any) -> None:
    x = tensor(dtype)
    for a, b in ((x, number), (number, x)):
        found, expected = meta.multiply(a, b), a * b
        assert found.dtype == name_of(expected.dtype)
        torch.testing.assert_close(found.torch(), expected)
    torch.testing.assert_close((meta.array(x) > number).torch(), x > number)


def test_the_cast_is_in_the_program() -> None:
    def f(a: Any, b: Any) -> Any:
        return meta.where(a > 1, a * 0.5, b) + b

    a, b = meta.array([1, 2, 3]), meta.array([1.5, 2.5, 3.5], "float16")
    program = trace(f).program(a, b).module
    assert str(program).count("astype(") == 3
    again = parse(str(program))  # strict: it says all of its casts
    assert str(again) == str(program)
    expected = np.array([3.0, 3.5, 5.0])
    for run in (f, trace(f), meta.vm.compile(trace(f), a, b)):
        found = run(a, b)
        assert found.dtype == "float32"
        np.testing.assert_allclose(found.numpy(), expected)


def test_gradients_come_back_in_the_operands_dtype() -> None:
    x, y = meta.array([1.0, 2.0], "float16"), meta.array([3.0, 4.0])
    x.requires_grad = y.requires_grad = True
    meta.sum(x * y + meta.array([1, 2]) * y).backward()
    assert (x.grad.dtype, y.grad.dtype) == ("float16", "float32")
    np.testing.assert_allclose(x.grad.numpy(), [3, 4])
    np.testing.assert_allclose(y.grad.numpy(), [2, 4])


MIXED: list[Any] = [
    lambda: meta.array([1, 2]) + meta.array([1.0, 2.0]),
    lambda: meta.array([1, 2]) * 2.5,
    lambda: meta.array([True]) + 1,
    lambda: meta.where(meta.array([True]), meta.array([1]), meta.array([1.0])),
    lambda: trace(lambda x: x + 0.5)(meta.array([1, 2])),
]


@pytest.mark.parametrize("call", MIXED)
def test_strict_dtypes_makes_them_errors(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    before = call()
    with meta.strict_dtypes(), pytest.raises(TypeInferError, match="cast"):
        call()
    monkeypatch.setenv("META_STRICT_DTYPES", "1")
    with pytest.raises(TypeInferError, match="cast"):
        call()
    monkeypatch.undo()
    assert call().dtype == before.dtype


def test_float8_is_not_promoted() -> None:
    x = meta.astype(meta.array([1.0]), "float8_e4m3fn")
    with pytest.raises(TypeInferError):
        x + meta.array([1.0])


JOINED: dict[str, Any] = {
    "matmul": lambda a, b: (meta.matmul(a, b), a.to(b.dtype) @ b),
    "batched": lambda a, b: (meta.matmul(a[None], b[None]), (a.to(b.dtype) @ b)[None]),
    "einsum": lambda a, b: (meta.einsum("ij,jk", a, b), a.to(b.dtype) @ b),
    "concat": lambda a, b: (meta.concat((a, b)), torch.concat((a, b))),
    "stack": lambda a, b: (meta.stack((a, b, a)), torch.stack((a.to(b.dtype), b, a.to(b.dtype)))),
    "clip": lambda a, b: (meta.clip(a, 0.5, 2.5), a.clip(0.5, 2.5)),
}


@pytest.mark.parametrize("name", JOINED)
def test_products_and_joins(name: str) -> None:
    a, b = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0.5, 1.5], [2.5, 3.5]])
    found, expected = JOINED[name](a, b)
    torch.testing.assert_close(found.torch(), expected)


def test_real_and_complex() -> None:
    z, x = meta.array(np.array([1 + 2j, 3j], "complex64")), meta.array([2, 3])
    for found in (z * x, z * 2.5 * 2 / 5 * x, x * z, z * x.numpy().astype("float32")):
        assert found.dtype == "complex64"
        np.testing.assert_allclose(found.numpy(), [2 + 4j, 9j])


def test_promoted_slots_exist() -> None:
    for op in OPERATORS.values():
        assert set(op.promotes) <= set(op.schema.names), op.name
