"""Python's operators and indexing on arrays, with numbers, numpy arrays and torch tensors."""

from __future__ import annotations

import operator
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.errors import ArgumentError, TypeInferError
from tests.runtime.conftest import same

BINARY = [
    operator.add,
    operator.sub,
    operator.mul,
    operator.truediv,
    operator.floordiv,
    operator.mod,
    operator.pow,
    operator.lt,
    operator.le,
    operator.gt,
    operator.ge,
    operator.eq,
    operator.ne,
]


class TestOperators:
    values = torch.tensor([[1.5, -2.0], [3.0, 4.5]])
    other = torch.tensor([2.0, 3.0])

    @pytest.mark.parametrize("apply", BINARY)
    @pytest.mark.parametrize("kind", ["meta", "numpy", "torch", "number", "numpy scalar"])
    @pytest.mark.parametrize("swapped", [False, True])
    def test_binary(self, apply: Any, kind: str, swapped: bool) -> None:
        x = meta.array(self.values)
        other, reference = {
            "meta": (meta.array(self.other), self.other),
            "numpy": (self.other.numpy(), self.other),
            "torch": (self.other, self.other),
            "number": (2, torch.tensor(2.0)),
            "numpy scalar": (np.float64(2.5), torch.tensor(2.5)),
        }[kind]
        found = apply(other, x) if swapped else apply(x, other)
        expected = apply(reference, self.values) if swapped else apply(self.values, reference)
        assert isinstance(found, meta.ndarray)
        assert found.dtype == str(expected.dtype).removeprefix("torch.")
        torch.testing.assert_close(found.torch(), expected, equal_nan=True)

    def test_in_place_forms_make_new_arrays(self) -> None:
        x = y = meta.array([1.0])
        x += 1
        same(x, [2])
        same(y, [1])

    def test_numbers_take_the_arrays_dtype(self) -> None:
        half = meta.array([1.0], "float16")
        assert (half + 1).dtype == (2.5 * half).dtype == (half + True).dtype == "float16"
        assert (meta.array([1], "int8") + 1).dtype == "int8"
        for dtype, number, common in (("int64", 1.5, "float32"), ("bool", 1, "int64")):
            x = meta.array([1], dtype)
            same(x + number, [1 + number], common)
            with meta.strict_dtypes(), pytest.raises(TypeInferError, match="does not fit a tensor"):
                x + number

    def test_lists_are_arrays(self) -> None:
        x = meta.array([1.0, 2.0])
        same(x - [1.0, 2.0], [0, 0])
        same(x - [1, 2], [0, 0])
        with meta.strict_dtypes(), pytest.raises(TypeInferError, match="int64"):
            x - [1, 2]
        same(x - (meta.array(1.0), meta.array(2.0)), [0, 0])
        with pytest.raises(TypeInferError):
            x - ()

    def test_comparison_with_what_is_no_number(self) -> None:
        x = meta.array([1.0])
        assert (x == None) is False and (x != None) is True  # noqa: E711
        assert (x == "a") is False
        with pytest.raises(ArgumentError, match="cannot become an array"):
            x == object()  # noqa: B015

    @pytest.mark.parametrize("apply", [operator.and_, operator.or_, operator.xor])
    def test_logic(self, apply: Any) -> None:
        a, b = np.array([True, True, False, False]), np.array([True, False, True, False])
        x = meta.array(a)
        for other in (meta.array(b), b, torch.from_numpy(b)):
            same(apply(x, other), apply(a, b), "bool")
            same(apply(other, x), apply(b, a), "bool")
        same(apply(x, True), apply(a, True), "bool")
        same(apply(False, x), apply(False, a), "bool")
        with pytest.raises(TypeInferError, match="only integers have bits"):
            apply(meta.array([1.0]), True)

    @pytest.mark.parametrize("apply", [operator.and_, operator.or_, operator.xor])
    def test_bits(self, apply: Any) -> None:
        a, b = np.array([12, -7, 3]), np.array([10, 6, -1])
        x = meta.array(a)
        for other in (meta.array(b), b, torch.from_numpy(b)):
            same(apply(x, other), apply(a, b), "int64")
            same(apply(other, x), apply(b, a), "int64")
        same(apply(x, 6), apply(a, 6), "int64")
        same(apply(6, meta.array(a, "int8")), apply(6, a), "int8")
        for bools in (meta.array([True, False, True]), np.array([True, False, True])):
            for pair in ((x, bools), (bools, x)):
                same(apply(*pair), apply(a, np.array([True, False, True])), "int64")
                with meta.strict_dtypes(), pytest.raises(TypeInferError, match="differ in dtype"):
                    apply(*pair)

    def test_shifts(self) -> None:
        x = meta.array([1, -5, 100], "int32")
        same(x << 3, [8, -40, 800], "int32")
        same(x >> 1, [0, -3, 50], "int32")
        same(x >> 1000, [0, -1, 0], "int32")
        same(1 << meta.array([0, 3, 40]), [1, 8, 1 << 40], "int64")

    def test_unary(self) -> None:
        x = meta.array([1.0, -2.0])
        same(-x, [-1, 2], "float32")
        same(abs(x), [1, 2], "float32")
        same(~meta.array([True, False]), [False, True], "bool")
        same(~meta.array([5, -1]), [-6, 0], "int64")
        with pytest.raises(TypeInferError, match="only integers have bits"):
            operator.invert(x)

    def test_matmul(self) -> None:
        a, b = np.arange(6.0).reshape(2, 3), np.arange(12.0).reshape(3, 4)
        x = meta.array(a)
        for other in (meta.array(b), b, torch.from_numpy(b)):
            same(x @ other, a @ b)
        same(torch.from_numpy(a) @ meta.array(b), a @ b)
        same(a @ meta.array(b), a @ b)
        same(x @ np.ones(3), a @ np.ones(3))
        same(np.ones(2) @ x, np.ones(2) @ a)
        stack = np.arange(24.0).reshape(2, 1, 3, 4)
        same(x @ stack, a @ stack)
        for wrong in (2, np.ones(4)):
            with pytest.raises(TypeInferError):
                x @ wrong

    def test_indexing(self) -> None:
        values = np.arange(24).reshape(2, 3, 4)
        x = meta.array(values)
        rows = np.array([1, 0])
        for index in (
            0,
            -1,
            (1, 2, 3),
            np.s_[:, 1],
            np.s_[..., ::-2],
            np.s_[:, None, 1:],
            [1, 0],
            rows,
            np.s_[:, rows, [0, 3]],
            values > 5,
        ):
            same(x[index], values[index], "int64")
        same(x[meta.array(rows), torch.tensor([2, 0])], values[rows, [2, 0]])
        same(x[meta.array(1)], values[1])
        for wrong in (2, -3, (0, 0, 0, 0), [5]):
            with pytest.raises(IndexError):
                x[wrong]

    def test_too_large_numbers(self) -> None:
        for x in (meta.array([1.0]), meta.array([1])):
            for number in (2**63, -(2**63) - 1, 2**100):
                with pytest.raises(TypeInferError, match="64 bits"):
                    x + number
        same(meta.array([0]) + (2**63 - 1), [2**63 - 1])
