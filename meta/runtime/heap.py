"""The C library's heap: what ATen's CPU kernels allocate their results and workspaces from."""

from __future__ import annotations

from functools import cache

import torch

_LARGEST = 32 << 20
_HEADER = 8192  # the block itself, with all that is added to it, has to stay below the limit


@cache
def keep_freed_memory() -> None:
    """Let the heap keep memory that is freed between two calls of a program.

    glibc takes large blocks from the system and gives them back when they are freed, and so the end
    of the heap: every step of a training program then pays for fresh pages, an eighth of the time
    of ResNet-18's. Both limits follow the largest block that was ever freed, up to 32 MiB
    (mallopt(3), M_MMAP_THRESHOLD): one such block, never written to and so never in memory, raises
    them. Other C libraries do not mind.
    """
    torch.empty(_LARGEST - _HEADER, dtype=torch.uint8)
