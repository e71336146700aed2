"""The few functions of the CUDA driver that load kernels and launch them, through ctypes."""

from __future__ import annotations

import ctypes
import threading
from dataclasses import dataclass
from functools import cache

import torch

from meta.base.errors import DeviceError

LARGE_PARAMETERS = 32764
"""Bytes of parameters that a kernel takes, from CUDA 12.1 and compute capability 7.0 on."""
PARAMETERS = 4096
"""Bytes of parameters that every kernel takes."""
_MOST_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""
_lock = threading.Lock()


@dataclass(frozen=True, slots=True)
class Function:
    """A kernel loaded into the context of a device. ``module`` keeps it loaded. ``shared``: bytes
    of shared memory that a thread block gets at the launch.
    """

    handle: ctypes.c_void_p
    module: ctypes.c_void_p
    device: int
    shared: int = 0


def load(cubin: bytes, name: str, device: int, shared: int = 0) -> Function:
    """Return the kernel ``name`` of machine code, on a device; ``shared`` as in `Function`."""
    module, handle = ctypes.c_void_p(), ctypes.c_void_p()
    with _lock, torch.cuda.device(device):
        # A call of the runtime makes the device's context current: threads of torch's autograd may
        # have none. An allocation from torch's cache is no such call.
        torch.cuda.mem_get_info(device)
        check(library().cuModuleLoadData(ctypes.byref(module), cubin), "cuModuleLoadData")
        found = library().cuModuleGetFunction(ctypes.byref(handle), module, name.encode())
        check(found, "cuModuleGetFunction")
        if shared:  # the limit without this counts what the kernel declares, too
            asked = library().cuFuncSetAttribute(handle, _MOST_SHARED, shared)
            check(asked, "cuFuncSetAttribute")
    return Function(handle, module, device, shared)


@cache
def version() -> tuple[int, int]:
    """Return the version of CUDA that the driver knows."""
    number = ctypes.c_int()
    check(library().cuDriverGetVersion(ctypes.byref(number)), "cuDriverGetVersion")
    return number.value // 1000, number.value % 1000 // 10


@cache
def library() -> ctypes.CDLL:
    """Return the driver's library; DeviceError if it is not there."""
    try:
        found = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise DeviceError("the CUDA driver's library cannot be loaded", found=str(error)) from error
    pointer = ctypes.c_void_p
    found.cuModuleLoadData.argtypes = [pointer, ctypes.c_char_p]
    found.cuModuleGetFunction.argtypes = [pointer, pointer, ctypes.c_char_p]
    found.cuFuncSetAttribute.argtypes = [pointer, ctypes.c_int, ctypes.c_int]
    return found


def check(code: int, what: str) -> None:
    """Raise DeviceError for an error of the function ``what``."""
    if code == 0:
        return
    text = ctypes.c_char_p()
    library().cuGetErrorString(code, ctypes.byref(text))
    message = text.value.decode() if text.value else "unknown error"
    raise DeviceError(f"{what} failed", found=f"error {code}: {message}")
