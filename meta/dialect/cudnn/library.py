"""libcudnn 9 through ctypes: handles, errors, and the functions that no graph has."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import torch

from meta.base.errors import DeviceError
from meta.runtime.nvidia_packages import load

_pointer, _int = ctypes.c_void_p, ctypes.c_int
# The arguments of functions that launch a kernel, after the handle.
_LAUNCHES: dict[str, list[Any]] = {
    "cudnnSoftmaxForward": [_int, _int, *[_pointer] * 6],
    "cudnnSoftmaxBackward": [_int, _int, *[_pointer] * 8],
    "cudnnPoolingForward": [_pointer] * 7,
    "cudnnPoolingBackward": [_pointer] * 11,
    "cudnnActivationForward": [_pointer] * 7,
    "cudnnActivationBackward": [_pointer] * 11,
}


@cache
def functions() -> ctypes.CDLL:
    """Return the library with the types of its functions' arguments."""
    found = load("libcudnn.so.9")
    if found is None:
        raise DeviceError("libcudnn cannot be loaded", expected="cuDNN 9; it comes with torch")
    found.cudnnGetErrorString.restype = ctypes.c_char_p
    found.cudnnSetStream.argtypes = [_pointer, _pointer]
    found.cudnnSetActivationDescriptor.argtypes = [_pointer, _int, _int, ctypes.c_double]
    for name, arguments in _LAUNCHES.items():
        getattr(found, name).argtypes = [_pointer, *arguments]
    return found


@cache
def version() -> int:
    """Return the version of the library, such as 91900."""
    functions().cudnnGetVersion.restype = ctypes.c_size_t
    return int(functions().cudnnGetVersion())


def check(code: int, what: str) -> None:
    """Raise DeviceError if a call did not succeed."""
    if code != 0:
        message = functions().cudnnGetErrorString(code).decode()
        raise DeviceError(f"{what} failed", found=f"error {code}: {message}")


def create_handle(device: int) -> int:
    """Return a new handle of a device."""
    handle = _pointer()
    with torch.cuda.device(device):
        torch.empty(1, device=f"cuda:{device}")  # makes the device's context current
        check(functions().cudnnCreate(ctypes.byref(handle)), "cudnnCreate")
    assert handle.value is not None
    return handle.value
