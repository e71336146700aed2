"""What a product in groups needs besides: ends of groups as CUTLASS takes them, and zeros in rows
that belong to no group. One small kernel writes both before the product runs.
"""

from __future__ import annotations

import struct
from functools import cache
from math import prod
from pathlib import Path

import torch

from meta.base.dtype import bits
from meta.dialect.core import Launch
from meta.dialect.cuda import cubin
from meta.runtime import gpu_properties, nvrtc

THREADS = 256
BLOCKS_EACH = 2
"""Thread blocks for each multiprocessor."""
C_TYPES = {"int32": "int", "int64": "long long"}
PARAMETERS = struct.Struct("<3Q2iq")
PIECE = 16
"""Bytes that a thread writes at a time."""


def source(dtype: str) -> str:
    """Return the source of the kernel for ends of a dtype."""
    return nvrtc.with_macros(Path(__file__).parent / "ends.cu", {"INDEX": C_TYPES[dtype]})


class Ends:
    """The kernel of a call: a function of the ends of groups and of the result."""

    def __init__(self, groups: int, out: tuple[int, ...], dtype: str) -> None:
        """Prepare for so many groups and a result of this shape, in half precision."""
        self.groups, self.dtype = groups, dtype
        self.rows, self.row = out[0], prod(out[1:]) * bits("float16") // 8 // PIECE

    def __call__(
        self, offs: torch.Tensor, out: torch.Tensor
    ) -> tuple[torch.Tensor, None, None, None]:
        """Write zeros and return what the product takes of groups."""
        device = out.device.index
        starts = torch.empty(self.groups + 1, dtype=torch.int32, device=out.device)
        at = offs.data_ptr(), starts.data_ptr(), out.data_ptr()
        _kernel(self.dtype, device)(PARAMETERS.pack(*at, self.groups, self.row, self.rows))
        return starts, None, None, None


@cache
def _kernel(dtype: str, device: int) -> Launch:
    grid = BLOCKS_EACH * gpu_properties.query(device).processors, 1
    return cubin.launch(source(dtype), "ends", device, grid, THREADS, PARAMETERS.size)
