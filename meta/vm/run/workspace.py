"""Memory that programs have in turn, and that outlives their runs.

What a forward pass saves for its gradient lies in the arena of its program, which the program of
the gradient goes on with: where a saved tensor was read for the last time, there is room for others
(`plan_memory`). So the two have one `Workspace`, which is longer by a segment where the second one
needs more. Results that lie in it are given out where they are, as tensors with storages of their
own; while somebody has one, the programs may not run in this memory again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch._C import _from_dlpack, _to_dlpack

from meta.base.device import Device
from meta.base.dtype import FROM_TORCH, TO_TORCH
from meta.ir import TensorType, type_bytes
from meta.runtime.allocate import ALIGNMENT, aligned
from meta.runtime.out_of_memory import is_out_of_memory, out_of_memory

MEMORY_HINT = (
    "a smaller batch; compile(..., memory_budget=BYTES), which computes values anew instead of "
    "keeping them; fewer arrays and programs that are still referred to"
)

storage_uses = torch._C._storage_Use_Count
"""How many tensors have a storage, which is told by its address."""


class Workspace:
    """The memory of one program, or of several that run one after the other.

    Attributes
    ----------
    in_order: what the programs call before each run; None where runs are in order by themselves.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.in_order = StreamOrder(device) if device.kind == "cuda" else None
        # Where each segment begins, in the numbers of bytes that plans have.
        self._segments: list[tuple[int, torch.Tensor]] = []

    @property
    def size(self) -> int:
        """The bytes from its beginning to its end, in the numbers that plans have."""
        if not self._segments:
            return 0
        begin, memory = self._segments[-1]
        return begin + memory.numel()

    def reserve(self, size: int) -> None:
        """Have memory for so many bytes: what there is stays where it is, and goes on in another
        segment behind it. Raises OutOfMemory.
        """
        begin = aligned(self.size) + ALIGNMENT if self._segments else 0
        if size <= self.size:
            return
        try:
            memory = torch.empty(size - begin, dtype=torch.uint8, device=str(self.device))
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            what = "the intermediate results of the program"
            failure = out_of_memory(error, self.device, what, planned=size, hint=MEMORY_HINT)
        else:
            self._segments.append((begin, memory))
            return
        raise failure  # behind the block: what the first error holds is free by then

    def tensor(self, type_: TensorType, offset: int) -> torch.Tensor:
        """Return the tensor of a type at an offset."""
        return _typed(self._bytes(type_, offset), type_)

    def copy(self, tensor: torch.Tensor, offset: int) -> torch.Tensor:
        """Copy a compact tensor to an offset, and return it there."""
        type_ = TensorType(tuple(tensor.shape), FROM_TORCH[tensor.dtype])
        return self.tensor(type_, offset).copy_(tensor)

    def outside(self, type_: TensorType, offset: int) -> torch.Tensor:
        """Return the tensor of a type at an offset with a storage of its own, which keeps the
        memory and by whose uses is told whether somebody has it.
        """
        return _typed(_from_dlpack(_to_dlpack(self._bytes(type_, offset))), type_)

    def gaps(self) -> list[tuple[int, int]]:
        """Return the offsets between its segments, where nothing lies."""
        begins = [begin for begin, _ in self._segments[1:]]
        return [(begin - ALIGNMENT, begin) for begin in begins]

    def addresses(self) -> frozenset[int]:
        """Return the addresses of its segments."""
        return frozenset(memory.data_ptr() for _, memory in self._segments)

    def _bytes(self, type_: TensorType, offset: int) -> torch.Tensor:
        begin, memory = next(s for s in reversed(self._segments) if s[0] <= offset)
        return memory[offset - begin :][: type_bytes(type_)]


def _typed(memory: torch.Tensor, type_: TensorType) -> torch.Tensor:
    return memory.view(TO_TORCH[type_.dtype]).view(type_.static_shape)


class LentTensors:
    """Tensors in memory that is used again when nobody has them any more.

    Attributes
    ----------
    tensors: with a storage each. Others get tensors that share it.
    """

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self.tensors = tuple(tensors)
        self._memory = [t.untyped_storage()._cdata for t in self.tensors]
        self._own = list(map(storage_uses, self._memory))

    def is_out(self) -> bool:
        """Whether somebody has one."""
        return list(map(storage_uses, self._memory)) != self._own


_raw: Callable[[int], int] = getattr(torch._C, "_cuda_getCurrentRawStream", lambda ordinal: 0)
"""The handle of the current stream of a device: a tenth of the time that an object of it takes."""


class StreamOrder:
    """The order of a program's runs on a GPU, each of which has the memory that the one before it
    had: the stream of the last one. The program calls it before each run.

    Between the kernels of one stream the order is that of the calls. A call from another stream,
    such as a thread's own, waits there for the stream of the call before it, with all that was put
    on it until then: what was run there, and what reads a result that was lent.

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
