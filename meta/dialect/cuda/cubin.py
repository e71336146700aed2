"""Machine code of CUDA source, kept on disk by source, architecture and compiler."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import torch

from meta.base import kept_file
from meta.base.threads import in_threads
from meta.dialect.core import Compiled, Deferred
from meta.dialect.cuda import driver
from meta.runtime import nvrtc

FOLDER = "cubin"
Sources = Callable[[], Iterable[str]]


def deferred(run: Callable[..., Any], sources: Sources, device: int) -> Deferred:
    """Return a kernel for an `OpEnv` whose source is compiled with that of others, on several
    threads, before it is launched.

    ``sources`` returns what launches of aligned tensors need; what another launch needs is
    compiled by that.
    """
    return Deferred((run, sources, device), _compile_ahead)


def _compile_ahead(kernels: Sequence[tuple[Callable[..., Any], Sources, int]]) -> list[Compiled]:
    wanted = {(text, _arch(device)): None for _, sources, device in kernels for text in sources()}
    in_threads([partial(cubin, *one) for one in wanted])
    return [Compiled(run) for run, _, _ in kernels]


@lru_cache(maxsize=256)
def function(source: str, name: str, device: int) -> driver.Function:
    """Return the kernel ``name`` of CUDA source, loaded on a device."""
    return driver.load(cubin(source, _arch(device)), name, device)


@lru_cache(maxsize=256)
def cubin(source: str, arch: str) -> bytes:
    """Return the machine code of source for an architecture, compiled now if it is not kept."""
    key = f"{nvrtc.compiler_version()}\n{arch}\n{source}"
    found = kept_file.find(FOLDER, key)
    if found is None:
        found = nvrtc.compile_source(source, arch)
        kept_file.keep(FOLDER, key, found)
    return found


def _arch(device: int) -> str:
    major, minor = torch.cuda.get_device_capability(device)
    return f"sm_{major}{minor}"
