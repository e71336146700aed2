"""What `meta` says of dtypes is what NumPy and torch say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import meta
from meta.base.dtype import DTYPES, TO_NUMPY, is_real
from meta.base.errors import ArgumentError

INTEGERS = [d for d in DTYPES if "int" in d]
FLOATS = ["float16", "float32", "float64"]


@pytest.mark.parametrize("dtype", FLOATS)
def test_finfo(dtype: str) -> None:
    for given in (dtype, TO_NUMPY[dtype], getattr(torch, dtype), meta.array([1.0], dtype)):
        found, expected = meta.finfo(given), np.finfo(dtype)
        for name in ("bits", "eps", "max", "min", "smallest_normal", "dtype"):
            assert getattr(found, name) == getattr(expected, name), name


@pytest.mark.parametrize("dtype", INTEGERS)
def test_iinfo(dtype: str) -> None:
    found, expected = meta.iinfo(dtype), np.iinfo(dtype)
    for name in ("bits", "max", "min", "dtype"):
        assert getattr(found, name) == getattr(expected, name), name


def test_the_other_kind_is_refused() -> None:
    with pytest.raises(ArgumentError, match="iinfo"):
        meta.finfo("int32")
    with pytest.raises(ArgumentError, match="finfo"):
        meta.iinfo("float32")


@pytest.mark.parametrize("dtype", [d for d in DTYPES if d in (*INTEGERS, *FLOATS, "bool")])
def test_isdtype_is_numpys(dtype: str) -> None:
    kinds = ["bool", "signed integer", "unsigned integer", "integral", "real floating",
             "complex floating", "numeric"]  # fmt: skip
    for kind in kinds:
        assert meta.isdtype(dtype, kind) == np.isdtype(np.dtype(dtype), kind), kind
    assert meta.isdtype(dtype, dtype) and meta.isdtype(dtype, ("complex floating", dtype))
    assert meta.isdtype("bfloat16", "real floating") and is_real("bfloat16")
    with pytest.raises(ArgumentError, match="kind"):
        meta.isdtype(dtype, "number")


CAST = [d for d in DTYPES if d in ("bool", "uint8", "int8", "int16", "int32", "int64", *FLOATS)]


@pytest.mark.parametrize("a", CAST)
@pytest.mark.parametrize("b", CAST)
def test_can_cast_and_result_type_are_torchs(a: str, b: str) -> None:
    one, two = getattr(torch, a), getattr(torch, b)
    common = torch.promote_types(one, two)
    assert meta.can_cast(a, b) == (common == two)
    assert meta.result_type(a, meta.array([1], b)) == str(common).removeprefix("torch.")


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (("float16", 2.5), "float16"),
        (("int8", 2), "int8"),
        (("int8", 2.5), "float32"),
        (("bool", 2), "int64"),
        (("bool", 2.5, "int16"), "float32"),
        (("bool", True), "bool"),
    ],
)
def test_numbers_are_weak(given: tuple[Any, ...], expected: str) -> None:
    assert meta.result_type(*given) == expected


def test_numbers_alone_have_no_result_type() -> None:
    with pytest.raises(ArgumentError, match="needs an array"):
        meta.result_type(1, 2.0)
