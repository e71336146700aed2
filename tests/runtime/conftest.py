"""Tests of this folder run on torch's kernels unless they choose others: nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import meta


@pytest.fixture(autouse=True)
def torch_kernels() -> Iterator[None]:
    with meta.dialect.only("torch"):
        yield
