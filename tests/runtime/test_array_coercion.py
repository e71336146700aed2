"""Numbers become arrays with all the digits that the dtype has, or an error."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

import meta
from meta.base.dtype import FLOATS, TO_TORCH, limits
from meta.base.errors import ArgumentError, NumberOutOfRange

INTEGERS = ("uint8", "int8", "int16", "int32", "int64", "uint64")


def forms(value: Any) -> list[Any]:
    """The ways to write one number."""
    scalar = [np.float64(value)] if isinstance(value, float) else []
    return [value, [value], [[value, value]], (value,), *scalar, *([s] for s in scalar)]


@pytest.mark.parametrize("value", [0.1, 1e300, -5e-324, math.pi, 2.0**60 + 256])
def test_float64_has_all_digits(value: float) -> None:
    for form in forms(value):
        found = meta.array(form, "float64")
        assert set(found.numpy().reshape(-1).tolist()) == {value}


@pytest.mark.parametrize("value", [16777217.0, 2**53 + 1, -(2**63), 2**63 - 1, float(2**62)])
def test_int64_has_all_digits(value: float) -> None:
    for form in forms(value):
        found = meta.array(form, "int64").numpy().reshape(-1).tolist()
        assert set(found) == {int(value)}


def test_ints_among_floats() -> None:
    assert meta.array([2**53 + 1, 0.0], "int64").numpy().tolist() == [2**53 + 1, 0]


@pytest.mark.parametrize("dtype", INTEGERS)
def test_integers_have_a_range(dtype: str) -> None:
    held = limits(dtype)
    low, high = int(held.min), int(held.max)
    assert meta.array([low, high], dtype).numpy().tolist() == [low, high]
    beyond = [low - 1, high + 1, float(high) * 4, math.nan, math.inf, -math.inf]
    for value in beyond:
        for form in forms(value):
            with pytest.raises(NumberOutOfRange, match=dtype) as caught:
                meta.array(form, dtype)
            assert str(low) in str(caught.value) and str(high) in str(caught.value)
    for bad in (OverflowError, ValueError):
        with pytest.raises(bad):
            meta.array(high + 1, dtype)


def test_fractions_are_dropped() -> None:
    assert meta.array([1.7, -1.7, -0.5, 127.9], "int8").numpy().tolist() == [1, -1, 0, 127]
    assert meta.array([-0.5, 255.5], "uint8").numpy().tolist() == [0, 255]


def test_bool_is_what_is_not_zero() -> None:
    assert meta.array([0, 2, -1], "bool").numpy().tolist() == [False, True, True]
    assert meta.array([0.5, 0.0, math.nan], "bool").numpy().tolist() == [True, False, True]


@pytest.mark.parametrize("dtype", sorted(FLOATS))
def test_floats_round(dtype: str) -> None:
    values = [0.1, -1e5, 3e38, 1e300, math.inf, 2**53 + 1]
    expected = torch.tensor(values, dtype=torch.float64).to(TO_TORCH[dtype])
    found = meta.array(values, dtype).torch()
    assert torch.equal(found, expected)
    assert math.isnan(meta.array(math.nan, dtype).item())


def test_wide_ints() -> None:
    assert meta.array([2**64 - 1], "uint64").torch()[0].item() == 2**64 - 1
    assert meta.array([2**70], "float64").item() == 2.0**70
    for value, dtype in ((10**400, "float64"), (2**64, None), (2**63, None)):
        with pytest.raises(ArgumentError):
            meta.array(value, dtype)


def test_scalars_of_numpy() -> None:
    assert meta.array(ml_dtypes.bfloat16(1.5), "float32").item() == 1.5
    assert meta.array(np.float16(1.5), "int8").item() == 1


TYPED: dict[str, Any] = {
    "a scalar of numpy": np.float64(0.1),
    "a list of scalars": [np.float64(0.1)],
    "a list of arrays": [np.array([0.1])],
    "nested": [[0.5], [np.float64(0.1)]],
    "of torch": [torch.tensor(0.1, dtype=torch.float64)],
    "of meta": (meta.array(0.1, "float64"), 0.5),
    "narrow and Python's": [np.float16(0.1), 0.1],
    "narrow": [np.float16(0.1)],
    "integers": [np.int32(1)],
    "complex": [np.complex128(1j), 1],
}


@pytest.mark.parametrize("name", TYPED)
def test_numbers_with_a_dtype_keep_it(name: str) -> None:
    found = meta.array(TYPED[name])
    wanted = np.asarray(TYPED[name])
    assert found.dtype == wanted.dtype
    np.testing.assert_array_equal(found.numpy(), wanted)


@pytest.mark.parametrize(("values", "dtype"), [([0.1], "float32"), ([[1j]], "complex64")])
def test_numbers_of_python_have_no_width(values: Any, dtype: str) -> None:
    assert meta.array(values).dtype == dtype


@pytest.mark.parametrize("value", [[], [[]]])
def test_nothing(value: Any) -> None:
    for dtype in ("int8", "bool", "float64"):
        assert meta.array(value, dtype).dtype == dtype


class TestUpdate:
    def test_digits(self) -> None:
        x = meta.array([0.0], "float64")
        x.update([0.1])
        assert x.item() == 0.1
        x = meta.array(0, "int64")
        x.update(2**53 + 1)
        assert x.item() == 2**53 + 1

    @pytest.mark.parametrize("shape", [(), (1,)])
    def test_range(self, shape: tuple[int, ...]) -> None:
        x = meta.zeros(shape, "int8")
        for value in (300, -129.0, math.nan):
            with pytest.raises(NumberOutOfRange, match="int8"):
                x.update(value if not shape else [value])
            assert x.item() == 0
        x.update(-1.5 if not shape else [-1.5])
        assert x.item() == -1
        half = meta.zeros(shape, "float16")
        half.update(1e6 if not shape else [1e6])
        assert half.item() == math.inf
