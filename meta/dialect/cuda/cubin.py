"""Machine code of CUDA source, kept on disk by source, architecture and compiler, and launches of
its kernels.

What a program's launches need is compiled on threads from when a kernel is chosen on, while passes
run: NVRTC leaves the interpreter to others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from meta.dialect.core import Artifact, CompiledKernel, Deferred, KernelStore, Launch, OpEnv
from meta.runtime import cuda_driver, gpu_properties, nvrtc

Sources = Callable[[], Iterable[str]]
Located = Callable[[], Artifact | None]


def _key(of: tuple[str, str]) -> str:
    source, arch = of
    return f"{nvrtc.compiler_version()}\n{arch}\n{source}"


cubins: KernelStore[tuple[str, str], bytes] = KernelStore(
    "cubin", lambda of: nvrtc.compile_source(*of), _key
)
"""Machine code by source and architecture; raises what `nvrtc.compile_source` raises."""


def compiled(source: str, device: int) -> tuple[str, str]:
    """Return what `cubins` has for a device: the source, and its architecture."""
    return source, gpu_properties.query(device).arch


def env(run: Callable[..., Any], sources: Sources, device: int, workspace: int = 0) -> OpEnv:
    """Return a kernel that fills its results by launches of these sources; see `deferred`."""
    return OpEnv(deferred(run, sources, device), allocates=False, workspace=workspace)


def deferred(
    run: Callable[..., Any], sources: Sources, device: int, artifact: Located = lambda: None
) -> Deferred:
    """Return a kernel for an `OpEnv` whose sources are compiled, on threads of their own, before it
    is launched.

    ``sources`` returns what launches of aligned tensors need; what another launch needs is
    compiled by that. ``artifact`` returns where the compiled kernel is kept.
    """
    return Deferred((run, sources, device, artifact), _compile_all, _texts, _begin)


def _begin(kernel: tuple[Any, Sources, int, Located]) -> None:
    _, sources, device, _ = kernel
    cubins.begin(compiled(text, device) for text in sources())


def _texts(kernel: tuple[Any, Sources, int, Located]) -> Mapping[str, str]:
    """Return the CUDA source of a kernel's launches."""
    _, sources, *_ = kernel
    texts = list(dict.fromkeys(sources()))
    if len(texts) == 1:
        return {".cu": texts[0]}
    return {f".{i}.cu": text for i, text in enumerate(texts)}


def _compile_all(kernels: Sequence[tuple[Any, Sources, int, Located]]) -> list[CompiledKernel]:
    wanted = dict.fromkeys(
        compiled(text, device) for _, sources, device, _ in kernels for text in sources()
    )
    cubins.all_of(wanted)
    return [CompiledKernel(run, artifact()) for run, _, _, artifact in kernels]


@lru_cache(maxsize=256)
def function(source: str, name: str, device: int, shared: int = 0) -> cuda_driver.Function:
    """Return the kernel ``name`` of CUDA source, loaded on a device, with so many bytes of shared
    memory besides those that the source declares.
    """
    return cuda_driver.load(cubins(compiled(source, device)), name, device, shared)


def launch(
    source: str,
    name: str,
    device: int,
    grid: tuple[int, int],
    threads: int,
    size: int,
    shared: int = 0,
    early: bool = False,
) -> Launch:
    """Return the launch of a kernel whose parameter is a struct of ``size`` bytes, compiled now if
    nobody has; see `function`, and `Launch` for ``early``.
    """
    found = function(source, name, device, shared)
    return Launch.of_struct(found, size, grid, threads, early)
