"""In place of the CUDA driver: what is launched runs on the CPU, by the handle of its kernel."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch

from meta.runtime import cuda_driver


class Library:
    """The functions of the driver that launch."""

    def cuLaunchKernelEx(self, config_at: Any, handle: Any, addresses: Any, extra: Any) -> int:
        """Run a kernel; a handle is a function of grid, block and the addresses of parameters."""
        config = config_at._obj
        handle(tuple(config.grid), tuple(config.block), addresses)
        return 0


def loaded(run: Any, shared: int = 0) -> cuda_driver.Function:
    """Return a kernel whose launches call ``run``."""
    return cuda_driver.Function(run, ctypes.c_void_p(), 0, shared)


@contextmanager
def emulated_driver(current: Sequence[int] = (0,)) -> Iterator[None]:
    """Let launches in a block go to their handles; ``current``: the device of the thread."""
    library = Library()
    names = {"_cuda_getDevice": lambda: current[0], "_cuda_getCurrentRawStream": lambda device: 0}
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(cuda_driver, "library", lambda: library))
        for name, function in names.items():
            stack.enter_context(mock.patch.object(torch._C, name, function, create=True))
        yield
