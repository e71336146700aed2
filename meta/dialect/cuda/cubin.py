"""Machine code of CUDA source, kept on disk between processes.

A file is named after the hash of source, architecture and compiler, and begins with the hash of
what follows it. One that is damaged, or that others could have written, is as good as none.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from functools import lru_cache
from pathlib import Path

import torch

from meta.base.cache_folder import cache_folder, distrust, open_private
from meta.dialect.cuda import driver
from meta.runtime import nvrtc

FOLDER = "cubin"
_HASH = hashlib.sha256().digest_size


@lru_cache(maxsize=256)
def function(source: str, name: str, device: int) -> driver.Function:
    """Return the kernel ``name`` of CUDA source, loaded on a device."""
    major, minor = torch.cuda.get_device_capability(device)
    return driver.load(cubin(source, f"sm_{major}{minor}"), name, device)


def cubin(source: str, arch: str) -> bytes:
    """Return the machine code of source for an architecture, compiled now if it is not kept."""
    key = f"{nvrtc.compiler_version()}\n{arch}\n{source}"
    folder = cache_folder(FOLDER)
    usable = not open_private(folder)
    file = folder / f"{hashlib.sha256(key.encode()).hexdigest()}.cubin"
    found = _read(file) if usable else None
    if found is None:
        found = nvrtc.compile_source(source, arch)
        if usable:
            _write(file, found)
    return found


def _read(file: Path) -> bytes | None:
    try:
        if distrust(file.stat()):
            return None
        content = file.read_bytes()
    except OSError:
        return None  # it is not there
    digest, code = content[:_HASH], content[_HASH:]
    return code if hashlib.sha256(code).digest() == digest else None


def _write(file: Path, code: bytes) -> None:
    """Write a file under its name when it is complete; a full or read-only disk keeps none."""
    try:
        descriptor, name = tempfile.mkstemp(dir=file.parent)
    except OSError:
        return
    try:
        with os.fdopen(descriptor, "wb") as part:
            part.write(hashlib.sha256(code).digest() + code)
        os.replace(name, file)
    except OSError:
        Path(name).unlink(missing_ok=True)
