"""Unsigned integers, of which ATen has little, beside numpy's; with Python numbers too."""

from __future__ import annotations

import itertools
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta import op
from meta.base.dtype import TO_TORCH, limits, promote
from meta.base.errors import NumberOutOfRange
from meta.ir import parse
from meta.model import trace
from meta.vm import compile

UNSIGNED = ("uint16", "uint32", "uint64")
NEW = ("uint16", "uint32")
DIALECTS = ("torch", "tvm")
PLACES = np.array([0, 3, 3])
SQUARE = (2, 3)


def first(dtype: str) -> np.ndarray[Any, Any]:
    """Numbers up to the largest one."""
    top = int(limits(dtype).max)
    half = (top + 1) // 2
    return np.array([0, 1, half, top, 5, int(half**0.84) + 1], dtype)


def second(dtype: str) -> np.ndarray[Any, Any]:
    top = int(limits(dtype).max)
    return np.array([3, top, 7, (top + 1) // 2 + 5, 1, 2], dtype)


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
    "square root": (lambda a: op.sqrt(a), lambda a: np.sqrt(a.astype(np.float32))),
    "sum": (op.sum, np.sum),
    "prod": (op.prod, np.prod),
    "sort": (op.sort, np.sort),
    "argsort": (op.argsort, lambda a: np.argsort(a, kind="stable")),
    "unique": (op.unique, np.unique),
    "concatenate": (lambda a: op.concat([a, a]), lambda a: np.concatenate([a, a])),
    "cumsum": (lambda a: op.cumsum(a, 0, a.dtype), lambda a: np.cumsum(a, dtype=a.dtype)),
    "any": (op.any, np.any),
    "roll": (lambda a: op.roll(a, 2, 0), lambda a: np.roll(a, 2)),
    "negative": (op.negative, np.negative),
    "bitwise_invert": (op.bitwise_invert, np.bitwise_not),
    "square": (op.square, np.square),
    "sign": (op.sign, np.sign),
    "abs": (op.abs, np.abs),
    "max": (op.max, np.max),
    "min": (op.min, np.min),
    "argmax": (op.argmax, np.argmax),
    "logical_not": (op.logical_not, np.logical_not),
    "update by maximum": (
        lambda a: a.at[meta.array(PLACES)].max(meta.array([3, 2, 9], a.dtype)),
        lambda a: np.concatenate([np.maximum(a[:1], 3), a[1:3], np.maximum(a[3:4], 9), a[4:]]),
    ),
    "flip": (lambda a: op.flip(a, 0), lambda a: a[::-1]),
    "slice": (lambda a: a[::-2], lambda a: a[::-2]),
    "mask": (lambda a: a[a > 4], lambda a: a[a > 4]),
    "nonzero": (lambda a: op.nonzero(a)[0], lambda a: np.nonzero(a)[0]),
    "take": (lambda a: op.take(a, meta.array(PLACES)), lambda a: a[PLACES]),
    "take_along_axis": (
        lambda a: op.take_along_axis(a, meta.array(PLACES)),
        lambda a: a[PLACES],
    ),
    "triu": (lambda a: op.triu(op.reshape(a, SQUARE)), lambda a: np.triu(a.reshape(SQUARE))),
    "add of 5": (lambda a: a + 5, lambda a: a + a.dtype.type(5)),
}


@pytest.mark.product
@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize("name", [*TWO, *ONE])
def test_as_numpy(name: str, dtype: str, dialect: str) -> None:
    function, oracle = (TWO | ONE)[name]
    given = (first(dtype), second(dtype)) if name in TWO else (first(dtype),)
    with np.errstate(all="ignore"), meta.dialect.prefer(dialect):
        expected = np.asarray(oracle(*given))
        found = function(*map(meta.array, given)).numpy()
    assert found.dtype == expected.dtype
    np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("dtype", UNSIGNED)
def test_shifts_beyond_the_bits_give_0(dtype: str, dialect: str) -> None:
    bits = np.iinfo(dtype).bits
    a, few = first(dtype), np.array([3, 0, 1, bits - 1, bits, limits(dtype).max], dtype)
    with meta.dialect.prefer(dialect):
        x, by = meta.array(a), meta.array(few)
        for found, function in ((x << by, np.left_shift), (x >> by, np.right_shift)):
            inside = function(a, np.minimum(few, few.dtype.type(bits - 1)))
            expected = np.where(few < bits, inside, 0)
            np.testing.assert_array_equal(found.numpy(), expected.astype(dtype))
        assert (x << 70).tolist() == (x >> 70).tolist() == [0] * len(a)


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("dtype", UNSIGNED)
@pytest.mark.parametrize("number", [-1, -(2**63), 0, 5, 2**15, 2**31, 2**63 - 1, True])
def test_comparison_with_a_python_number(number: int, dtype: str, dialect: str) -> None:
    values = [int(v) for v in first(dtype)]
    with meta.dialect.prefer(dialect):
        x = meta.array(first(dtype))
        assert (x < number).tolist() == [v < number for v in values]
        assert (x >= number).tolist() == [v >= number for v in values]
        assert (x == number).tolist() == [v == number for v in values]
        assert op.less(number, x).tolist() == [number < v for v in values]
        assert op.not_equal(number, x).tolist() == [number != v for v in values]


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("dtype", NEW)
def test_a_number_is_weak_and_has_to_fit(dtype: str, dialect: str) -> None:
    x, top = meta.array(first(dtype)), int(limits(dtype).max)
    with meta.dialect.prefer(dialect):
        for found, expected in ((x + top, first(dtype) - 1), (top - x, ~first(dtype))):
            assert found.dtype == dtype
            np.testing.assert_array_equal(found.numpy(), expected.astype(dtype))
        assert (x * 0.5).dtype == "float32"
        for wrong in (-1, top + 1):
            with pytest.raises(NumberOutOfRange, match=f"does not fit {dtype}"):
                x + wrong


INTEGERS = ("bool", "int8", "int16", "int32", "int64", "uint8", *UNSIGNED)


@pytest.mark.parametrize("a", NEW)
@pytest.mark.parametrize("b", INTEGERS)
def test_integers_promote_as_numpys(a: str, b: str) -> None:
    expected = str(np.promote_types(a, b))
    assert promote(a, b) == promote(b, a) == expected
    x, y = first(a), np.array([0, 1, 1, 0, 1, 1], b)
    for one, two in ((x, y), (y, x)):
        found = meta.array(one) + meta.array(two)
        assert found.dtype == expected
        np.testing.assert_array_equal(found.numpy(), one + two)


@pytest.mark.parametrize("dtype", NEW)
def test_others_promote_as_torchs_integers_do(dtype: str) -> None:
    for other in ("float16", "bfloat16", "float32", "float64", "complex64", "complex128"):
        assert promote(dtype, other) == promote(other, dtype) == other
        found = meta.array([2, 32768], dtype) * meta.astype(meta.array([0.5, 0.25]), other)
        assert found.dtype == other and found.tolist() == [1, 8192]
    assert promote(dtype, "float8_e5m2") == "float16"


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize(
    ("a", "b"), [*itertools.product(NEW, INTEGERS), *itertools.product(INTEGERS, NEW)]
)
def test_casts_between_integers_keep_the_low_bits(a: str, b: str, dialect: str) -> None:
    low, top = (int(x) for x in (limits(a).min, limits(a).max))
    given = np.array([0, 1, top, top // 2 + 1, top - 200, low, low // 3], a)
    with meta.dialect.prefer(dialect):
        found = op.astype(meta.array(given), b)
    np.testing.assert_array_equal(found.numpy(), given.astype(b))
    assert found.dtype == b


@pytest.mark.parametrize("dtype", NEW)
def test_casts_to_floating_point_round_once(dtype: str) -> None:
    given = first(dtype)
    for to in ("float16", "bfloat16", "float32", "float64"):
        expected = torch.from_numpy(given.astype(np.int64)).to(TO_TORCH[to])
        for dialect in DIALECTS:
            with meta.dialect.prefer(dialect):
                assert torch.equal(op.astype(meta.array(given), to).torch(), expected), (
                    to,
                    dialect,
                )


@pytest.mark.parametrize("dtype", UNSIGNED)
def test_ways_in_and_out(dtype: str) -> None:
    given = first(dtype)
    top, expected = int(limits(dtype).max), given.tolist()
    x = meta.array(given)
    theirs = torch.from_numpy(given.copy())
    for made in (
        meta.array(expected, dtype),
        meta.array(theirs),
        meta.from_dlpack(given.copy()),
        meta.from_dlpack(theirs),
        pickle.loads(pickle.dumps(x)),
        x.to(dtype="float64").to(dtype=dtype) if dtype != "uint64" else x,
    ):
        assert made.dtype == dtype and made.tolist() == expected
    assert np.from_dlpack(x).dtype == torch.from_dlpack(x).numpy().dtype == given.dtype
    assert x[3].item() == top and str(top) in str(x) and dtype in repr(meta.array(given[:2]))
    assert meta.full((2,), 5, dtype).tolist() == [5, 5]
    assert meta.arange(3, dtype=dtype).tolist() == [0, 1, 2]
    assert meta.zeros((1,), dtype).tolist() == [0] and meta.ones((1,), dtype).tolist() == [1]


@pytest.mark.parametrize("dtype", NEW)
def test_programs(dtype: str, tmp_path: Path) -> None:
    """Traced, printed and parsed, compiled, saved and loaded; with a constant of the dtype."""
    given = first(dtype)
    constant = meta.array(second(dtype))

    def function(x: Any, places: Any) -> Any:
        y = (x + constant) * 3 - x // 2
        return op.take(op.where(y > constant, y, op.bitwise_invert(x)), places, 0)

    places = np.array([5, 0, 1], dtype)
    y = (given + constant.numpy()) * given.dtype.type(3) - given // given.dtype.type(2)
    expected = np.where(y > constant.numpy(), y, ~given)[places]
    args = meta.array(given), meta.array(places)
    program = trace(function).program(*args).module
    assert str(parse(str(program))) == str(program) and f"const {dtype}" in str(program)
    exe = compile(trace(function), *args)
    exe.save(tmp_path / "program")
    for run in (function, trace(function), exe, meta.vm.load(tmp_path / "program")):
        np.testing.assert_array_equal(run(*args).numpy(), expected)
