"""Fresh compact tensors, of the type and on the device of an array key; where a tensor lies."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial

import torch
from torch._C._dynamo import guards

from meta.base.call_context import context
from meta.base.device import CPU
from meta.base.dtype import TO_TORCH
from meta.runtime.array_key import ArrayKey

ALIGNMENT = 64
"""Bytes that the offset of a buffer in an arena is a multiple of."""


def aligned(size: int) -> int:
    """Round a size up to the alignment."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def allocator(key: ArrayKey) -> Callable[[], torch.Tensor]:
    """Return a function that allocates an uninitialised compact tensor."""
    place = key.shape, compact_strides(key.shape)
    dtype = TO_TORCH[key.dtype]
    # What inductor's code allocates with, past torch's dispatcher: 0.9 us where empty_strided takes
    # 1.8. On CUDA it takes the current device, so there must be no other.
    if key.device == CPU:
        return partial(guards._empty_strided_cpu, *place, dtype)  # type: ignore[attr-defined]
    if torch.cuda.device_count() == 1:
        return partial(guards._empty_strided_cuda, *place, dtype)  # type: ignore[attr-defined]
    return partial(torch.empty_strided, *place, dtype=dtype, device=torch.device(key.device))


def compact_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a compact tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= max(extent, 1)
    return tuple(reversed(strides))


def storage_address(tensor: torch.Tensor) -> int:
    """Return the address of the memory that a tensor is in; -1 for one without elements."""
    return tensor.untyped_storage().data_ptr() or -1


def is_only_read(tensor: torch.Tensor) -> bool:
    """Whether a CUDA graph is being recorded whose kernels do not write a tensor's memory; False
    also where that is not known.

    What was written there before is complete when the graph begins, so that a kernel may read it
    before it waits for those in front of it (programmatic dependent launch).
    """
    memory = context.get().only_read
    return bool(memory) and storage_address(tensor) in memory


# The C library's heap: what ATen's CPU kernels allocate their results and workspaces from.


_LARGEST = 32 << 20
_HEADER = 8192  # the block itself, with all that is added to it, has to stay below the limit


@cache
def retain_freed_memory() -> None:
    """Let the heap keep memory that is freed between two calls of a program.

    glibc takes large blocks from the system and gives them back when they are freed, and so the end
    of the heap: every step of a training program then pays for fresh pages, an eighth of the time
    of ResNet-18's. Both limits follow the largest block that was ever freed, up to 32 MiB
    (mallopt(3), M_MMAP_THRESHOLD): one such block, never written to and so never in memory, raises
    them. Other C libraries do not mind.
    """
    torch.empty(_LARGEST - _HEADER, dtype=torch.uint8)


def address_span(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Return the addresses of a tensor's first byte and behind its last; None without elements."""
    if not tensor.numel():
        return None
    start = tensor.data_ptr()
    if tensor.is_contiguous():
        return start, start + tensor.nbytes
    strides = zip(tensor.shape, tensor.stride(), strict=True)
    last = sum((extent - 1) * stride for extent, stride in strides)
    return start, start + (last + 1) * tensor.itemsize
