"""Memory that a CUDA graph only reads, as its kernels may ask while it is recorded.

What was written there before is complete when the graph begins, so that a kernel may read it before
it waits for the kernels in front of it (programmatic dependent launch).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from meta.runtime.allocate import storage_address

_ONLY_READ: ContextVar[frozenset[int]] = ContextVar("only_read", default=frozenset())


@contextmanager
def only_reads(memory: frozenset[int]) -> Iterator[None]:
    """Say, while a graph is recorded, the addresses of storages that none of its kernels writes."""
    token = _ONLY_READ.set(memory)
    try:
        yield
    finally:
        _ONLY_READ.reset(token)


def is_only_read(tensor: torch.Tensor) -> bool:
    """Whether a graph is being recorded whose kernels do not write a tensor's memory; False also
    where that is not known.
    """
    memory = _ONLY_READ.get()
    return bool(memory) and storage_address(tensor) in memory
