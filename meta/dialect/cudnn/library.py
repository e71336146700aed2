"""libcudnn 9 through ctypes: handles, errors, and the functions that no graph has.

cuDNN's handles: one for each thread and device, on torch's current stream.
"""

from __future__ import annotations

import ctypes
import threading
from collections import defaultdict
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


class _Handle:
    """A handle that one thread uses; one of a thread that has ended serves the next."""

    __slots__ = ("number", "pool", "stream")

    def __init__(self, device: int) -> None:
        self.pool, self.number = _unused[device], 0
        with _creating:  # one that is being made ahead is waited for
            self.number = self.pool.pop() if self.pool else create_handle(device)
        self.stream: int | None = None  # what is set is not known

    def __del__(self) -> None:
        if self.number:  # else there was none to be had
            self.pool.append(self.number)


_unused: dict[int, list[int]] = defaultdict(list)
_mine = threading.local()
_creating = threading.Lock()


def warmup(device: int) -> None:
    """Make a handle for the first who needs one, on whatever thread."""
    with _creating:
        if not _unused[device]:
            _unused[device].append(create_handle(device))


def current(device: int) -> int:
    """Return this thread's handle of a device, set to the stream that is torch's current one.

    cuDNN asks the driver several things when a stream is set, so that this is done only where it
    has changed.
    """
    stream = torch._C._cuda_getCurrentRawStream(device)
    mine: dict[Any, _Handle] = _mine.__dict__
    handle = mine.get(device)
    if handle is None:
        handle = mine[device] = _Handle(device)
    if handle.stream != stream:
        check(functions().cudnnSetStream(handle.number, stream), "cudnnSetStream")
        handle.stream = stream
    return handle.number
