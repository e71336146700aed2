"""``x[index] = value``, ``x.at`` and ``out=`` on an NVIDIA GPU, beside numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import meta
from meta.base.errors import IndexOutOfRange, MetaError
from tests.op.test_indexing import ARRAYS, BASIC, MASKS, X

pytestmark = pytest.mark.cuda


@pytest.mark.parametrize("index", BASIC + ARRAYS + MASKS, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_assignment(index: Any, dtype: str) -> None:
    want = (X % 2).astype(dtype)
    value = np.arange(X[index].size).reshape(X[index].shape).astype(dtype)
    x = meta.array(want, device="cuda")
    memory = x.torch().data_ptr()
    for given in (value, meta.array(value), meta.array(value, device="cuda")):
        x[index] = given
    want[index] = value
    assert str(x.device) == "cuda:0" and x.torch().data_ptr() == memory
    np.testing.assert_array_equal(x.numpy(), want)


def test_indices_on_the_gpu_are_checked() -> None:
    x, i = meta.zeros((3,), device="cuda"), meta.array([0, -1], device="cuda")
    x[i] = 1.0
    x[x > 0] = 2.0
    assert x.tolist() == [2, 0, 2]
    with pytest.raises(IndexOutOfRange):
        x[i + 3] = 1.0
    assert x.tolist() == [2, 0, 2]  # the context is alive


@pytest.mark.parametrize("name", ["set", "add", "multiply", "min", "max"])
def test_functional_updates(name: str) -> None:
    index, value = np.array([2, 0, 0]), np.array([3.0, 4.0, 5.0], "float32")
    x = np.array([1.0, 2.0, 6.0], "float32")
    want = getattr(meta.array(x).at[index], name)(value).numpy()
    for i in (index, meta.array(index, device="cuda")):
        found = getattr(meta.array(x, device="cuda").at[i], name)(value)
        assert str(found.device) == "cuda:0"
        np.testing.assert_array_equal(found.numpy(), want)


def test_out() -> None:
    x, z = meta.array([1.0, 2.0], device="cuda"), meta.zeros((2,), device="cuda")
    assert meta.add(x, 1.0, out=z) is z and z.tolist() == [2, 3]
    with pytest.raises(MetaError, match="cuda"):
        meta.add(x, 1.0, out=meta.zeros((2,)))
