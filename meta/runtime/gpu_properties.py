"""What schedules and launches need to know of an NVIDIA GPU: one record, asked of the device.

A program may also be compiled where there is no GPU, for inspection and in tests. It is then
compiled for `DEFAULT`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from meta.base.device import Device

THREADS_PER_BLOCK = 1024
"""The most threads of a thread block: the same on every device since compute capability 2.0."""
SHARED_MEMORY = 48 << 10
"""Bytes of shared memory that a thread block may use without opting in to more, likewise."""


@dataclass(frozen=True, slots=True)
class GPUProperties:
    """A GPU.

    Attributes
    ----------
    name: as its driver names it. capability: the compute capability, (9, 0). processors: how many
    streaming multiprocessors it has. l2_cache: the size of the L2 cache in bytes.
    """

    name: str
    capability: tuple[int, int]
    processors: int
    l2_cache: int

    @property
    def arch(self) -> str:
        """The architecture as compilers name it: "sm_90"."""
        major, minor = self.capability
        return f"sm_{major}{minor}"


DEFAULT = GPUProperties("NVIDIA H200", (9, 0), processors=132, l2_cache=50 << 20)
"""What is compiled for where no device is present: the chip that the schedules were measured on."""


@cache
def query(ordinal: int) -> GPUProperties:
    """Return the record of the CUDA device ``ordinal``. RuntimeError if it is not present."""
    found = torch.cuda.get_device_properties(ordinal)
    capability = found.major, found.minor
    return GPUProperties(found.name, capability, found.multi_processor_count, found.L2_cache_size)


def target_of(device: Device) -> GPUProperties:
    """Return the record of a device, or `DEFAULT` where it is no CUDA device or not present."""
    present = device.kind == "cuda" and device.ordinal < torch.cuda.device_count()
    return query(device.ordinal) if present else DEFAULT


def begins_early(device: Device) -> bool:
    """Whether a kernel may begin on a device before those before it end, for which it waits itself
    (programmatic dependent launch).
    """
    return device.kind == "cuda" and target_of(device).capability >= (9, 0)
