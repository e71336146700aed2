"""Scratch memory of algorithms: one piece per device and stream, of torch's allocator.

Calls on one stream follow one another, so they share it. While a CUDA graph is captured a call gets
a piece of its own, which belongs to the graph: it may be replayed on another stream.
"""

from __future__ import annotations

import torch

WORKSPACE = 32 << 20
"""Bytes of scratch memory that an algorithm may take; NVIDIA's advice from Hopper on."""
STREAMS = 16
"""For how many streams a piece is kept. One that goes, the oldest or one that is too small, may be
reused by its stream alone."""
_pieces: dict[tuple[int, int], torch.Tensor] = {}


def scratch(device: int, stream: int, size: int) -> torch.Tensor:
    """Return so many bytes of scratch memory, or more, for a call on a stream, the current one of
    the device.
    """
    if torch.cuda.is_current_stream_capturing():
        return _allocate(device, size)
    found = _pieces.get((device, stream))
    if found is None or found.numel() < size:
        while len(_pieces) >= STREAMS:
            _pieces.pop(next(iter(_pieces)), None)
        found = _pieces[device, stream] = _allocate(device, size)
    return found


def _allocate(device: int, size: int) -> torch.Tensor:
    return torch.empty(size, dtype=torch.uint8, device=torch.device("cuda", device))
