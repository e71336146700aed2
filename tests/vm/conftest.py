"""Tests of this folder run on torch's kernels unless they choose others: nothing is compiled."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import meta
from tests.vm.fakes import Fakes


@pytest.fixture(autouse=True)
def torch_kernels() -> Iterator[None]:
    with meta.dialect.only("torch"):
        yield


@pytest.fixture
def fakes() -> Iterator[Fakes]:
    """Dialects with made-up times, which are forgotten after the test."""
    made = Fakes()
    yield made
    made.remove()
