"""Launches of emulated kernels: limits of a GPU, memory that a kernel may access."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch

MAX_THREADS, MAX_GRID = 1024, (2**31 - 1, 65535, 65535)
FOLLOWED = 1 << 22
"""Bytes up to which every access is remembered, to find races."""


class EmulationError(AssertionError):
    """A kernel did what no GPU allows."""


class Launch(ctypes.Structure):
    _fields_ = (("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("fibers", ctypes.c_int))


class Range(ctypes.Structure):
    """Of `runtime.h`."""

    _fields_ = (
        ("begin", ctypes.c_void_p),
        ("bytes", ctypes.c_longlong),
        ("granule", ctypes.c_int),
        ("shared", ctypes.c_bool),
        ("accesses", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
    )


class Pointer(ctypes.Structure):
    """Of `device.h`."""

    _fields_ = (("at", ctypes.c_void_p), ("range", ctypes.POINTER(Range)))


class Memory:
    """The tensors that a kernel is given: it may access nothing else."""

    def __init__(self, runtime: ctypes.CDLL, tensors: Sequence[torch.Tensor]) -> None:
        self._runtime = runtime
        runtime.new_accesses.restype = ctypes.c_void_p
        self._ranges: dict[int, Range] = {}
        for i, tensor in enumerate(tensors):
            size = tensor.numel() * tensor.element_size()
            known = self._ranges.get(tensor.data_ptr())
            if size and (known is None or known.bytes < size):
                self._ranges[tensor.data_ptr()] = Range(
                    tensor.data_ptr(), size, tensor.element_size(), False, None, b"tensor %d" % i
                )

    def pointer(self, address: int | None) -> Pointer:
        """Return a checked pointer; one to nothing if no tensor begins at an address."""
        found = self._ranges.get(address or 0)
        if found is None:
            found = self._ranges.setdefault(0, Range(0, 0, 1, False, None, b"an empty tensor"))
        return Pointer(address, ctypes.pointer(found))

    def launch(
        self, run: Any, grid: Sequence[int], block: Sequence[int], values: Any, fibers: bool
    ) -> None:
        """Run all threads; raises EmulationError."""
        check_limits(grid, block)
        followed = [one for one in self._ranges.values() if 0 < one.bytes <= FOLLOWED]
        for one in followed:
            one.accesses = self._runtime.new_accesses()
        run.restype = ctypes.c_char_p
        try:
            how = Launch((ctypes.c_uint * 3)(*grid), (ctypes.c_uint * 3)(*block), int(fibers))
            wrong = run(ctypes.byref(how), values)
        finally:
            for one in followed:
                self._runtime.delete_accesses(ctypes.c_void_p(one.accesses))
                one.accesses = None
        if wrong is not None:
            raise EmulationError(f"{run.__name__}: {wrong.decode()}")


def check_limits(grid: Sequence[int], block: Sequence[int]) -> None:
    """Raise EmulationError for a launch that a GPU refuses."""
    threads = block[0] * block[1] * block[2]
    if not 0 < threads <= MAX_THREADS or block[2] > 64:
        raise EmulationError(f"a thread block of {tuple(block)} threads")
    if not all(0 < extent <= limit for extent, limit in zip(grid, MAX_GRID, strict=True)):
        raise EmulationError(f"a grid of {tuple(grid)} thread blocks")
