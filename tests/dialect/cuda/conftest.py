"""Fixtures of the tests of hand-written kernels, which run as C++ on the CPU."""

from __future__ import annotations

from functools import lru_cache
from types import SimpleNamespace

import pytest
import torch

from meta.dialect.cuda import cubin, list_kernel
from tests.emulator.compiler import compiler
from tests.emulator.handwritten import Function

made = lru_cache(None)(Function)


@pytest.fixture
def emulated(monkeypatch: pytest.MonkeyPatch) -> list[Function]:
    """Let kernels run on the CPU; the list gets all that were asked for."""
    compiler()
    asked: list[Function] = []

    def function(source: str, name: str, device: int) -> Function:
        assert device == 0
        asked.append(made(source, name))
        return asked[-1]

    monkeypatch.setattr(cubin, "function", function)
    monkeypatch.setattr(cubin, "deferred", lambda run, sources, device: run)
    monkeypatch.setattr(list_kernel, "large_parameters", lambda device: False)
    chip = SimpleNamespace(multi_processor_count=3)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: chip)
    return asked
