"""cuDNN's handles: one for each thread and device, on torch's current stream."""

from __future__ import annotations

import threading
from collections import defaultdict
from typing import Any

import torch

from meta.dialect.cudnn import library


class _Handle:
    """A handle that one thread uses; one of a thread that has ended serves the next."""

    __slots__ = ("number", "pool", "stream")

    def __init__(self, device: int) -> None:
        self.pool, self.number = _unused[device], 0
        with _creating:  # one that is being made ahead is waited for
            self.number = self.pool.pop() if self.pool else library.create_handle(device)
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
            _unused[device].append(library.create_handle(device))


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
        library.check(library.functions().cudnnSetStream(handle.number, stream), "cudnnSetStream")
        handle.stream = stream
    return handle.number
