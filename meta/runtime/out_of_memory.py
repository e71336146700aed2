"""Out of memory as an `OutOfMemory`: what was asked for, what is free, and what to try.

torch reports it in one way on CUDA and in another on the CPU; `is_out_of_memory` knows both. Raise
what `out_of_memory` returns outside of the ``except`` block: the frames of the first error hold the
tensors of the computation that failed.
"""

from __future__ import annotations

import re
import traceback
from pathlib import Path

import torch

from meta.base.device import Device
from meta.base.dtype import prepare_cast
from meta.base.errors import OutOfMemory

_ALLOCATION_MESSAGES = (
    *("DefaultCPUAllocator", "Storage size calculation overflowed"),
    # The driver's own allocations, for a graph or a module, and those of libraries.
    *("CUDA error: out of memory", "CUDA_ERROR_OUT_OF_MEMORY"),
    *("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
)
CHECKED_SIZE = 1 << 32
"""Bytes below which nobody looks how much memory there is."""
_REQUESTED_SIZE = re.compile(r"[Tt]ried to allocate ([\d.]+) (bytes|[KMG]iB)")
_UNITS = {"bytes": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory could not be allocated."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(
        text in str(error) for text in _ALLOCATION_MESSAGES
    )


def out_of_memory(
    error: BaseException,
    device: Device,
    what: str,
    *,
    op: str | None = None,
    planned: int | None = None,
    hint: str,
) -> OutOfMemory:
    """Return the error to raise in the place of one that `is_out_of_memory`.

    what: for what there is no memory. planned: the bytes that it takes; None: as the error says.
    The frames of ``error`` are cleared, so that what they hold is free.
    """
    asked = _REQUESTED_SIZE.search(str(error))
    if planned is None and asked is not None:
        planned = int(float(asked[1]) * _UNITS[asked[2]])
    if error.__traceback__ is not None:
        traceback.clear_frames(error.__traceback__)
    message = f"there is not enough memory on {device} for {what}"
    return OutOfMemory(message, op=op, planned=planned, free=free_bytes(device), hint=hint)


def copy_to_device(
    tensor: torch.Tensor, device: Device | None, dtype: torch.dtype | None = None
) -> torch.Tensor:
    """Return a copy on a device and in a dtype (None: where it is, as it is); OutOfMemory if there
    is no room for it.
    """
    where = Device(tensor.device) if device is None else device
    dtype = tensor.dtype if dtype is None else dtype
    try:
        return prepare_cast(tensor, dtype).to(device=str(where), dtype=dtype, copy=True)
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        planned = tensor.numel() * dtype.itemsize
        hint = "fewer or smaller arrays; half precision; delete what nobody needs"
        failure = out_of_memory(error, where, "an array", planned=planned, hint=hint)
    raise failure


def require_room(size: int, device: Device, op: str) -> None:
    """Raise OutOfMemory for results that a device cannot hold were it empty: before a kernel is
    compiled for them.
    """
    if size < CHECKED_SIZE:
        return
    if device.kind == "cuda":
        most: int | None = int(torch.cuda.mem_get_info(device.ordinal)[1])
    else:
        most = _from_meminfo("MemTotal", "SwapTotal")  # the CPU swaps
    if most is not None and size > most:
        raise OutOfMemory(
            f"the result is larger than the memory of {device}",
            op=op,
            planned=size,
            free=free_bytes(device),
            hint="smaller arrays, or parts of them one after the other",
        )


def free_bytes(device: Device) -> int | None:
    """Return the bytes that can still be allocated on a device, None if nobody says.

    On CUDA that is what the driver has left, within the share of this process if that is limited
    (``torch.cuda.set_per_process_memory_fraction``), and what torch's allocator holds, does not
    use, and would give to an array of the current stream. It may lie in pieces.
    """
    if device.kind == "cuda":
        free, total = torch.cuda.mem_get_info(device.ordinal)
        reserved = torch.cuda.memory_reserved(device.ordinal)
        share = int(total * torch.cuda.get_per_process_memory_fraction(device.ordinal))
        return max(0, min(free, share - reserved)) + _cached_bytes(device.ordinal)
    return _from_meminfo("MemAvailable")


def _from_meminfo(*names: str) -> int | None:
    """Return the sum of what Linux says of its memory under these names; None elsewhere."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = {line.split(":")[0]: line.split() for line in lines}
    if not all(name in found for name in names):
        return None
    return sum(int(found[name][1]) << 10 for name in names)


def _cached_bytes(ordinal: int) -> int:
    """Return the bytes that torch's allocator holds for new arrays of the current stream.

    What it holds for CUDA graphs is for these alone. A segment that another stream has begun to use
    is that stream's; one that nobody uses goes back to the driver before memory is said to be out.
    """
    if torch.cuda.get_allocator_backend() != "native":  # it does not say where things are
        return torch.cuda.memory_reserved(ordinal) - torch.cuda.memory_allocated(ordinal)
    stream = torch._C._cuda_getCurrentRawStream(ordinal)
    return sum(
        segment["total_size"] - segment["active_size"]
        for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        if segment["device"] == ordinal and segment["segment_pool_id"] == (0, 0)
        if segment["stream"] == stream or segment["active_size"] == 0
    )
