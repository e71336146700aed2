"""Kernels of the `cuda` dialect, run on the CPU."""

from __future__ import annotations

import ctypes

from tests.emulator import compiler, source
from tests.emulator.launching import EmulationError, Launch, check_limits


class Function:
    """Stands for `meta.dialect.cuda.driver.Function`."""

    def __init__(self, text: str, name: str, shared: int = 0) -> None:
        self.name = name
        compiler.runtime()
        self._run = compiler.library(source.handwritten(text, name, shared))[f"run_{name}"]
        self._run.restype = ctypes.c_char_p

    def launch(self, blocks: int, threads: int, parameters: bytes, columns: int = 1) -> None:
        """Run a grid of ``blocks`` times ``columns`` thread blocks of ``threads`` threads."""
        grid, block = (blocks, columns, 1), (threads, 1, 1)
        check_limits(grid, block)
        how = Launch((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), 1)
        given = ctypes.create_string_buffer(parameters)
        values = (ctypes.c_void_p * 1)(ctypes.addressof(given))
        wrong = self._run(ctypes.byref(how), values)
        if wrong is not None:
            raise EmulationError(f"{self.name}: {wrong.decode()}")
