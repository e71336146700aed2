"""Every test of this folder has a kernel cache of its own, and no kernels from other tests; small
kernels stand for large ones.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from meta.base import caches
from meta.dialect.tvm import build, cache
from meta.dialect.tvm.schedule_cuda import injective
from meta.testing.emulator import compiler
from meta.testing.emulator.operators import emulated_cuda


@pytest.fixture(autouse=True)
def wide_vectors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small kernels for GPUs have the vectors of large ones."""
    monkeypatch.setattr(injective, "FEW_BLOCKS", 0)


@pytest.fixture
def on_cuda() -> Iterator[None]:
    """Kernels of CUDA run in the emulator."""
    compiler.compiler()
    with emulated_cuda():
        yield


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(build, "_kernels", {})
    monkeypatch.setattr(cache, "_trouble", {})
    monkeypatch.setattr(caches, "_warned_folders", set())
    monkeypatch.setenv("META_CACHE_DIR", str(tmp_path))  # seen by all threads, unlike an override
