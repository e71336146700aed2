"""Tests of this folder run on torch's kernels unless they choose others: nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import meta


@pytest.fixture(autouse=True)
def torch_kernels() -> Iterator[None]:
    with meta.dialect.only("torch"):
        yield


def same(found: meta.ndarray, expected: Any, dtype: str | None = None) -> None:
    """Assert equal values and, if given, the dtype."""
    np.testing.assert_array_equal(found.numpy(), np.asarray(expected))
    assert found.shape == np.asarray(expected).shape
    if dtype is not None:
        assert found.dtype == dtype
