"""Scratch memory of algorithms: one piece per device and stream, of torch's allocator.

Calls on one stream follow one another, so they share it. While a CUDA graph is captured a call gets
a piece of its own, which belongs to the graph: it may be replayed on another stream.
"""

from __future__ import annotations

import torch

WORKSPACE = 32 << 20
"""Bytes of scratch memory that an algorithm may take; NVIDIA's advice from Hopper on."""
STREAMS = 16
"""For how many streams a piece is kept; the oldest goes first, which its stream may then reuse."""
_pieces: dict[tuple[int, int], torch.Tensor] = {}


def scratch(device: int, stream: int) -> torch.Tensor:
    """Return scratch memory for a call on a stream, the current one of the device."""
    if torch.cuda.is_current_stream_capturing():
        return _allocate(device)
    found = _pieces.get((device, stream))
    if found is None:
        while len(_pieces) >= STREAMS:
            _pieces.pop(next(iter(_pieces)), None)
        found = _pieces[device, stream] = _allocate(device)
    return found


def kept_bytes() -> int:
    """Return how much memory is kept between calls."""
    return sum(piece.numel() for piece in list(_pieces.values()))


def _allocate(device: int) -> torch.Tensor:
    return torch.empty(WORKSPACE, dtype=torch.uint8, device=torch.device("cuda", device))
