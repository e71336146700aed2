"""A dialect with the kernels of `kernels.py`, which is forgotten after the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meta.dialect.triton import TritonDialect
from tests.registered import remove_dialects


@pytest.fixture(scope="module")
def tested() -> Iterator[TritonDialect]:
    """The dialect "tested"; tests may register more kernels on it."""
    pytest.importorskip("triton")
    from tests.dialect.triton import kernels

    dialect = TritonDialect("tested")
    kernels.register(dialect)
    yield dialect
    remove_dialects(dialect)
