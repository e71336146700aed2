"""Machine code of CUDA source, kept on disk by source, architecture and compiler.

What a program's launches need is compiled on threads from when a kernel is chosen on, while passes
run: NVRTC leaves the interpreter to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from meta.base import disk_cache
from meta.base.single_flight import SingleFlightCache
from meta.base.threads import compile_threads
from meta.dialect.core import Artifact, Compiled, Deferred, may_begin
from meta.dialect.cuda import driver
from meta.runtime import gpu_properties, nvrtc

FOLDER = "cubin"
LIMIT = 256
"""How many sources' machine code is kept in memory."""
Sources = Callable[[], Iterable[str]]
Kept = Callable[[], Artifact | None]


def deferred(
    run: Callable[..., Any], sources: Sources, device: int, artifact: Kept = lambda: None
) -> Deferred:
    """Return a kernel for an `OpEnv` whose sources are compiled, on threads of their own, before it
    is launched.

    ``sources`` returns what launches of aligned tensors need; what another launch needs is
    compiled by that. ``artifact`` returns where the compiled kernel is kept.
    """
    if may_begin():
        cubins.begin((text, gpu_properties.query(device).arch) for text in sources())
    return Deferred((run, sources, device, artifact), _compile_ahead, _text)


def _text(kernel: tuple[Callable[..., Any], Sources, int, Kept]) -> dict[str, str]:
    """Return the CUDA source of a kernel's launches."""
    _, sources, *_ = kernel
    texts = list(dict.fromkeys(sources()))
    if len(texts) == 1:
        return {".cu": texts[0]}
    return {f".{i}.cu": text for i, text in enumerate(texts)}


def _compile_ahead(
    kernels: Sequence[tuple[Callable[..., Any], Sources, int, Kept]],
) -> list[Compiled]:
    wanted = {
        (text, gpu_properties.query(device).arch): None
        for _, sources, device, _ in kernels
        for text in sources()
    }
    if compile_threads() > 1:
        cubins.begin(wanted)
    for one in wanted:
        cubin(*one)
    return [Compiled(run, artifact()) for run, _, _, artifact in kernels]


@lru_cache(maxsize=256)
def function(source: str, name: str, device: int, shared: int = 0) -> driver.Function:
    """Return the kernel ``name`` of CUDA source, loaded on a device, with so many bytes of shared
    memory besides those that the source declares.
    """
    return driver.load(cubin(source, gpu_properties.query(device).arch), name, device, shared)


def cubin(source: str, arch: str) -> bytes:
    """Return the machine code of source for an architecture, compiled now if it is not kept.

    Raises what `nvrtc.compile_source` raises.
    """
    return cubins((source, arch))


def machine_code(source: str, arch: str) -> bytes:
    """Return machine code from disk, or compile it; `cubin` has it in memory, too."""
    key = _key(source, arch)
    found = disk_cache.get(FOLDER, key)
    if found is None:
        found = nvrtc.compile_source(source, arch)
        disk_cache.put(FOLDER, key, found)
    return found


cubins: SingleFlightCache[tuple[str, str], bytes] = SingleFlightCache(
    lambda one: machine_code(*one), LIMIT
)


def file_of(source: str, arch: str) -> Path | None:
    """Return the file of machine code, as `disk_cache` writes it; None if it is not kept."""
    return disk_cache.path_of(FOLDER, _key(source, arch))


def _key(source: str, arch: str) -> str:
    return f"{nvrtc.compiler_version()}\n{arch}\n{source}"
