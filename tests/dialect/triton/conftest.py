"""A dialect with the kernels of `kernels.py`, which is forgotten after the tests of a module."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from meta.dialect.core import DIALECTS
from meta.dialect.core.preference import forget
from meta.dialect.triton import TritonDialect
from meta.ir import OP_RESOLVERS


@pytest.fixture(scope="module")
def tested() -> Iterator[TritonDialect]:
    """The dialect "tested"; tests may register more kernels on it."""
    pytest.importorskip("triton")
    from tests.dialect.triton import kernels

    dialect = TritonDialect("tested")
    kernels.register(dialect)
    yield dialect
    DIALECTS.remove(dialect.name)
    del OP_RESOLVERS[dialect.name]
    for one in dialect.ops.values():
        one.base.aspects.dialect_ops.remove(one)
    forget()
