"""Fixtures of the tests of hand-written kernels, which run as C++ on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache

import pytest

from meta.dialect.cuda import cubin, list_kernel
from meta.runtime import cuda_driver, gpu_properties
from meta.testing.emulator.compiler import compiler
from meta.testing.emulator.driver import emulated_driver, loaded
from meta.testing.emulator.handwritten import Function

made = lru_cache(None)(Function)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Function]]:
    """Let kernels run on the CPU; the list gets all that were asked for."""
    compiler()
    asked: list[Function] = []

    def function(source: str, name: str, device: int, shared: int = 0) -> cuda_driver.Function:
        assert device == 0
        asked.append(made(source, name, shared))
        return loaded(asked[-1], shared)

    monkeypatch.setattr(cubin, "function", function)
    monkeypatch.setattr(cubin, "deferred", lambda run, sources, device: run)
    monkeypatch.setattr(list_kernel, "large_parameters", lambda device: False)
    small = replace(gpu_properties.DEFAULT, processors=3)
    monkeypatch.setattr(gpu_properties, "query", lambda device: small)
    with emulated_driver():
        yield asked
