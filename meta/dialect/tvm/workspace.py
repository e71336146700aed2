"""Intermediate results between the kernels of one function: memory that the caller passes.

TVM takes them from a pool of its own, which knows no streams: two streams of one thread would be
given the same memory, and a CUDA graph would keep an address that the pool frees later. Here they
become parameters (see `cuda_parameters`), and `launcher` allocates them from torch at each
call, on the current stream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch

from meta.base.dtype import TO_TORCH, bits


def counts(value: Any) -> bool:
    """Whether a value out of a file is a list of integers that are not negative."""
    return isinstance(value, list | tuple) and all(type(n) is int and n >= 0 for n in value)


@dataclass(frozen=True, slots=True)
class Workspace:
    """One intermediate array."""

    shape: tuple[int, ...]
    dtype: str

    @classmethod
    def read(cls, record: Any) -> Workspace | None:
        """Return the workspace of a ``[shape, dtype]`` out of a file, None if it is not one."""
        if not isinstance(record, list) or len(record) != 2:
            return None
        shape, dtype = record
        known = isinstance(dtype, str) and dtype in TO_TORCH
        return cls(tuple(shape), dtype) if known and counts(shape) else None

    def record(self) -> list[Any]:
        """Return what `read` reads."""
        return [list(self.shape), self.dtype]


def total_bytes(workspaces: Sequence[Workspace]) -> int:
    """Return the memory that a function takes for all of its intermediate arrays."""
    return sum(prod(w.shape) * bits(w.dtype) // 8 for w in workspaces)


def launcher(run: Callable[..., Any], workspaces: Sequence[Workspace]) -> Callable[..., Any]:
    """Return ``run`` without its last parameters, the workspaces.

    They are allocated on the device of the last argument, an output. Torch may give their memory
    to the next call while the kernels still run: on the same stream, so after them.
    """
    if not workspaces:
        return run
    wanted = [(w.shape, TO_TORCH[w.dtype]) for w in workspaces]

    def launch(*values: Any) -> None:
        device = values[-1].device
        run(*values, *[torch.empty(shape, dtype=d, device=device) for shape, d in wanted])

    return launch
