"""In place of the CUDA driver: it notes what is launched, and with which parameters."""

from __future__ import annotations

import ctypes
import struct
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from meta.runtime import cuda_driver as driver

STREAM = 77


@dataclass
class Launched:
    """One launch: the kernel's name, grid, threads, bytes of shared memory, stream, attributes by
    their number, and the addresses of the parameters."""

    name: str
    grid: tuple[int, ...]
    threads: int
    shared: int
    stream: int
    attributes: dict[int, list[int]]
    addresses: list[int]
    content: list[bytes]

    def read(self, number: int, word: str) -> Any:
        """Return a parameter as it was at the launch, in the format of `struct`."""
        size = struct.calcsize(word)
        return struct.unpack(f"<{word}", self.content[number][:size])[0]


class FakeDriver:
    """Notes what is loaded and launched; ``code`` is what the next launches return."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.launched: list[Launched] = []
        self.loaded: list[tuple[str, bytes, int, int]] = []
        self.current, self.code = 0, 0
        patch.setattr(driver, "load", self.load)
        library = SimpleNamespace(
            cuLaunchKernelEx=self.launch, cuGetErrorString=lambda code, text: None
        )
        patch.setattr(driver, "library", lambda: library)
        patch.setattr(torch._C, "_cuda_getDevice", lambda: self.current, raising=False)
        streams = "_cuda_getCurrentRawStream"
        patch.setattr(torch._C, streams, lambda device: STREAM + device, raising=False)

    def load(self, cubin: bytes, name: str, device: int, shared: int = 0) -> driver.Function:
        self.loaded.append((name, cubin, device, shared))
        module: Any = name
        return driver.Function(module, module, device, shared)

    def launch(self, config_at: Any, handle: Any, addresses: Any, extra: Any) -> int:
        assert extra is None
        config = config_at._obj
        found = list(addresses)
        attributes = {
            config.attributes[i].id: list(config.attributes[i].value[:3])
            for i in range(config.count)
        }
        assert tuple(config.block)[1:] == (1, 1)
        grid, threads = tuple(config.grid), config.block[0]
        content = [ctypes.string_at(address, 8) for address in found]
        how = threads, config.shared, config.stream, attributes
        self.launched.append(Launched(str(handle), grid, *how, found, content))
        return self.code
