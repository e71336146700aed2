"""Kernels of the `cuda` dialect, run on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from meta.testing.emulator import compiler, source
from meta.testing.emulator.launching import EmulationError, Launch, check_limits


class Function:
    """The handle of a kernel for `emulated_driver`."""

    def __init__(self, text: str, name: str, shared: int = 0) -> None:
        self.name = name
        compiler.runtime()
        self._run = compiler.library(source.handwritten(text, name, shared))[f"run_{name}"]
        self._run.restype = ctypes.c_char_p

    def __call__(self, grid: Sequence[int], block: Sequence[int], addresses: Any) -> None:
        """Run all threads; the only parameter is a struct."""
        check_limits(grid, block)
        how = Launch((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), 1)
        wrong = self._run(ctypes.byref(how), addresses)
        if wrong is not None:
            raise EmulationError(f"{self.name}: {wrong.decode()}")
