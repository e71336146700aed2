"""`Launch`: a kernel with its grid, thread blocks, shared memory and parameters, ready to launch.

What a launch passes to the driver is prepared once: the grid, the addresses of the parameters, and
the values that do not change. A launch writes the others in one go. Several threads may launch the
same kernel, so that each launch takes a set of memory of its own for as long as it lasts.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from meta.runtime import cuda_driver as driver

_CLUSTER_DIMENSION, _CLUSTER_POLICY, _SPREAD = 4, 5, 1
"""CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION and ..._SCHEDULING_POLICY_PREFERENCE, and a value."""
_PROGRAMMATIC = 6
"""CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION."""
MOST_BLOCKS = (2**31 - 1, 65535, 65535)
"""Of a grid, along each axis."""


class _Attribute(ctypes.Structure):
    """CUlaunchAttribute; the value is a union of 64 bytes."""

    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16))


class _Config(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


class _Memory:
    """What one launch at a time passes to the driver."""

    __slots__ = ("addresses", "attributes", "buffer", "config", "config_at", "launch")

    def __init__(self, launch: Launch) -> None:
        self.buffer = ctypes.create_string_buffer(launch.content, len(launch.content))
        begin = ctypes.addressof(self.buffer)
        places = [begin + offset for offset in launch.offsets]
        self.addresses = (ctypes.c_void_p * max(1, len(places)))(*places)
        used = [_Attribute(_PROGRAMMATIC, 0, (1,))] if launch.early else []
        if launch.cluster > 1:
            used.append(_Attribute(_CLUSTER_DIMENSION, 0, (launch.cluster, 1, 1)))
            used.append(_Attribute(_CLUSTER_POLICY, 0, (_SPREAD,)))
        self.attributes = (_Attribute * max(1, len(used)))(*used)
        self.config = _Config(
            launch.grid, launch.block, launch.function.shared, None,
            self.attributes, len(used),
        )  # fmt: skip
        self.config_at = ctypes.byref(self.config)
        self.launch = driver.library().cuLaunchKernelEx


_OF_TENSORS = """
def run({values}, *more):
    {read}
    if {moved}:
        return general({values}, *more)
    if get_device() != device:
        with on_device(device):
            return run({values}, *more)
    try:
        memory = pop()
    except IndexError:
        memory = made()
    pack(memory.buffer, 0, {addresses})
    memory.config.stream = get_stream(device)
    code = call(memory.config_at, handle, memory.addresses, None)
    push(memory)
    if code:
        check(code, "cuLaunchKernelEx")
"""
"""`Launch.of_tensors` as one function: each call of another one takes longer than what is
to be done here, and a launch takes the driver 2 to 5 microseconds.
"""


class Launch:
    """A kernel, its grid and its parameters.

    Parameters
    ----------
    formats: of each parameter, in order, how `struct` writes it. values: those that are known, by
    place; the others are given at each launch, in order. grid, block: blocks and threads of three
    axes. cluster: how many blocks form a cluster along the first axis; the grid counts clusters
    there. early: the kernel may begin while the ones before it still run, for it waits for them
    itself before it reads or writes what they may (``griddepcontrol.wait``, CUDA's programmatic
    dependent launch).
    """

    def __init__(
        self,
        function: driver.Function,
        formats: Sequence[str],
        values: dict[int, Any],
        grid: Sequence[int],
        block: Sequence[int],
        cluster: int = 1,
        early: bool = False,
    ) -> None:
        self.function, self.block, self.cluster = function, tuple(block), cluster
        self.early = early
        self.grid = (grid[0] * cluster, grid[1], grid[2])
        given = [i for i in range(len(formats)) if i not in values]
        known = [i for i in range(len(formats)) if i in values]
        # Each at a multiple of its size, those that change first: `pack` then writes one piece.
        self.offsets = [0] * len(formats)
        end = 0
        text = "<"
        for i in (*given, *known):
            size = struct.calcsize(formats[i])
            pad = -end % size
            self.offsets[i] = end + pad
            end += pad + size
            if i not in values:
                text += "x" * pad + formats[i]
        self.pack = struct.Struct(text)
        content = bytearray(end + 8)
        for i in known:
            struct.pack_into(f"<{formats[i]}", content, self.offsets[i], values[i])
        self.content = bytes(content)
        self.free: list[_Memory] = []
        self.device = function.device

    @classmethod
    def of_struct(
        cls,
        function: driver.Function,
        size: int,
        grid: tuple[int, int],
        threads: int,
        early: bool = False,
    ) -> Launch:
        """Return a launch of a kernel whose only parameter is a struct of so many bytes, which is
        given at each launch, by thread blocks along two axes.
        """
        return cls(function, [f"{size}s"], {}, (*grid, 1), (threads, 1, 1), early=early)

    def __call__(self, *values: Any) -> None:
        """Launch it on torch's current stream of the device, with the values that were not known.

        The driver copies the parameters, so that a CUDA graph keeps those of this call.
        """
        if torch._C._cuda_getDevice() == self.device:
            code = self._launched(values)
        else:
            with torch.cuda.device(self.device):
                code = self._launched(values)
        if code:
            driver.check(code, "cuLaunchKernelEx")

    def _launched(self, values: tuple[Any, ...]) -> int:
        free = self.free
        try:
            memory = free.pop()
        except IndexError:
            memory = _Memory(self)
        self.pack.pack_into(memory.buffer, 0, *values)
        memory.config.stream = torch._C._cuda_getCurrentRawStream(self.device)
        code = memory.launch(memory.config_at, self.function.handle, memory.addresses, None)
        free.append(memory)
        return int(code)

    def of_tensors(
        self,
        places: Sequence[int],
        general: Callable[..., None],
        alignment: int,
        compact: Sequence[int],
    ) -> Callable[..., None]:
        """Return a launch that is given the addresses of the tensors at ``places`` among its
        values; ``general`` takes its values where one of these addresses is not a multiple of
        ``alignment``, a power of two, or a tensor at ``compact`` is not compact.
        """
        values = [f"v{i}" for i in range(max(places) + 1)]
        addresses = {place: f"a{place}" for place in places}
        moved = f"({' | '.join(addresses.values())}) & {alignment - 1}"
        text = _OF_TENSORS.format(
            values=", ".join(values),
            read="; ".join(f"{a} = v{place}.data_ptr()" for place, a in addresses.items()),
            moved=" or ".join([moved, *(f"not v{i}.is_contiguous()" for i in compact)]),
            addresses=", ".join(addresses[place] for place in places),
        )
        names: dict[str, Any] = {
            "general": general, "device": self.device, "on_device": torch.cuda.device,
            "get_device": torch._C._cuda_getDevice, "made": lambda: _Memory(self),
            "get_stream": torch._C._cuda_getCurrentRawStream, "check": driver.check,
            "pop": self.free.pop, "push": self.free.append, "pack": self.pack.pack_into,
            "call": driver.library().cuLaunchKernelEx, "handle": self.function.handle,
        }  # fmt: skip
        exec(compile(text, __file__, "exec"), names)
        run: Callable[..., None] = names["run"]
        return run
