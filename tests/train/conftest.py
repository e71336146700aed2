"""Everything here runs on torch's kernels: nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.train.problem import kernels


@pytest.fixture(autouse=True)
def only_torch() -> Iterator[None]:
    with kernels():
        yield
