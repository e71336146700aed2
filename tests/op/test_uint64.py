"""Arithmetic of uint64, of which ATen has little, beside numpy's; with Python numbers too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import meta
from meta import op

A = np.array([0, 1, 2**63, 2**64 - 1, 5, 2**53 + 1], np.uint64)
B = np.array([3, 2**64 - 1, 7, 2**63 + 5, 1, 2], np.uint64)
FEW = np.array([3, 0, 1, 63, 64, 2**64 - 1], np.uint64)
PLACES = np.array([0, 3, 3])
SQUARE = (2, 3)
TWO: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "add": (op.add, np.add),
    "subtract": (op.subtract, np.subtract),
    "multiply": (op.multiply, np.multiply),
    "floor_divide": (op.floor_divide, np.floor_divide),
    "remainder": (op.remainder, np.mod),
    "pow": (op.pow, np.power),
    "maximum": (op.maximum, np.maximum),
    "minimum": (op.minimum, np.minimum),
    "less": (op.less, np.less),
    "less_equal": (op.less_equal, np.less_equal),
    "greater": (op.greater, np.greater),
    "greater_equal": (op.greater_equal, np.greater_equal),
    "equal": (op.equal, np.equal),
    "not_equal": (op.not_equal, np.not_equal),
    "bitwise_and": (op.bitwise_and, np.bitwise_and),
    "searchsorted": (
        lambda a, b: op.searchsorted(op.sort(a), b),
        lambda a, b: np.sort(a).searchsorted(b),
    ),
    "matmul": (
        lambda a, b: op.reshape(a, (2, 3)) @ op.reshape(b, (3, 2)),
        lambda a, b: a.reshape(2, 3) @ b.reshape(3, 2),
    ),
    "where": (lambda a, b: op.where(a < b, a, b), lambda a, b: np.where(a < b, a, b)),
}
ONE: dict[str, tuple[Callable[..., Any], Callable[..., Any]]] = {
    "negative": (op.negative, np.negative),
    "bitwise_invert": (op.bitwise_invert, np.bitwise_not),
    "square": (op.square, np.square),
    "sign": (op.sign, np.sign),
    "abs": (op.abs, np.abs),
    "max": (op.max, np.max),
    "min": (op.min, np.min),
    "argmax": (op.argmax, np.argmax),
    "logical_not": (op.logical_not, np.logical_not),
    "flip": (lambda a: op.flip(a, 0), lambda a: a[::-1]),
    "slice": (lambda a: a[::-2], lambda a: a[::-2]),
    "mask": (lambda a: a[a > 4], lambda a: a[a > 4]),
    "nonzero": (lambda a: op.nonzero(a)[0], lambda a: np.nonzero(a)[0]),
    "take": (lambda a: op.take(a, meta.array(PLACES)), lambda a: a[PLACES]),
    "gather": (lambda a: op.gather(a, 0, meta.array(PLACES)), lambda a: a[PLACES]),
    "triu": (lambda a: op.triu(op.reshape(a, SQUARE)), lambda a: np.triu(a.reshape(SQUARE))),
    "add of 5": (lambda a: a + 5, lambda a: a + np.uint64(5)),
}


@pytest.mark.parametrize("dialect", ["torch", "tvm"])
@pytest.mark.parametrize("name", [*TWO, *ONE])
def test_as_numpy(name: str, dialect: str) -> None:
    function, oracle = (TWO | ONE)[name]
    given = (A, B) if name in TWO else (A,)
    with np.errstate(all="ignore"), meta.dialect.prefer(dialect):
        expected = np.asarray(oracle(*given))
        found = function(*map(meta.array, given)).numpy()
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dialect", ["torch", "tvm"])
def test_shifts_beyond_the_bits_give_0(dialect: str) -> None:
    with meta.dialect.prefer(dialect):
        x, by = meta.array(A), meta.array(FEW)
        for found, function in ((x << by, np.left_shift), (x >> by, np.right_shift)):
            expected = np.where(FEW < 64, function(A, np.minimum(FEW, np.uint64(63))), 0)
            np.testing.assert_array_equal(found.numpy(), expected.astype(np.uint64))


@pytest.mark.parametrize("dialect", ["torch", "tvm"])
@pytest.mark.parametrize("number", [-1, -(2**63), 0, 5, 2**63 - 1, True])
def test_comparison_with_a_python_number(number: int, dialect: str) -> None:
    values = [int(v) for v in A]
    with meta.dialect.prefer(dialect):
        x = meta.array(A)
        assert (x < number).tolist() == [v < number for v in values]
        assert (x >= number).tolist() == [v >= number for v in values]
        assert (x == number).tolist() == [v == number for v in values]
        assert op.less(number, x).tolist() == [number < v for v in values]
        assert op.not_equal(number, x).tolist() == [number != v for v in values]
