"""What the tests of arrays compare."""

from __future__ import annotations

from typing import Any

import numpy as np

import meta


def same(found: meta.ndarray, expected: Any, dtype: str | None = None) -> None:
    """Assert equal values and, if given, the dtype."""
    np.testing.assert_array_equal(found.numpy(), np.asarray(expected))
    assert found.shape == np.asarray(expected).shape
    if dtype is not None:
        assert found.dtype == dtype
