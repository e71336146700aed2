"""The order of a program's runs on a GPU: each has the memory that the one before it had.

Between the kernels of one stream the order is that of the calls. A call from another stream, such
as a thread's own, waits there for the stream of the call before it, with all that was put on it
until then: what was run there, and what reads a result that was lent.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from meta.base.device import Device

_raw: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: 0)
"""The handle of the current stream of a device: a tenth of the time that an object of it takes."""


class StreamOrder:
    """The stream of the last run of a program, which calls it before each run.

    A call while the stream is recorded, into a graph of the caller's, waits for nothing: a recorded
    stream cannot wait for what is not recorded, and whoever records it has waited before.
    """

    def __init__(self, device: Device) -> None:
        self._ordinal = device.ordinal
        self._handle: int | None = None
        self._last: torch.cuda.Stream | None = None

    def __call__(self) -> None:
        handle = _raw(self._ordinal)
        if handle != self._handle:
            self._changed(handle)

    def _changed(self, handle: int) -> None:
        if torch.cuda.is_current_stream_capturing():
            return
        current = torch.cuda.current_stream(self._ordinal)
        if self._last is not None:
            current.wait_stream(self._last)
        self._handle, self._last = handle, current
