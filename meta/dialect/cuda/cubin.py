"""Machine code of CUDA source, kept on disk by source, architecture and compiler."""

from __future__ import annotations

from functools import lru_cache

import torch

from meta.base import kept_file
from meta.dialect.cuda import driver
from meta.runtime import nvrtc

FOLDER = "cubin"


@lru_cache(maxsize=256)
def function(source: str, name: str, device: int) -> driver.Function:
    """Return the kernel ``name`` of CUDA source, loaded on a device."""
    major, minor = torch.cuda.get_device_capability(device)
    return driver.load(cubin(source, f"sm_{major}{minor}"), name, device)


def cubin(source: str, arch: str) -> bytes:
    """Return the machine code of source for an architecture, compiled now if it is not kept."""
    key = f"{nvrtc.compiler_version()}\n{arch}\n{source}"
    found = kept_file.find(FOLDER, key)
    if found is None:
        found = nvrtc.compile_source(source, arch)
        kept_file.keep(FOLDER, key, found)
    return found
