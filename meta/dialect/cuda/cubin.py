"""Machine code of CUDA source, kept on disk by source, architecture and compiler.

What a program's launches need is compiled on threads from when a kernel is chosen on, while passes
run: NVRTC leaves the interpreter to others.
"""

from __future__ import annotations

import contextvars
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from functools import cache, lru_cache
from typing import Any

from meta.base import kept_file
from meta.base.threads import compile_threads
from meta.dialect.core import Compiled, Deferred, may_begin
from meta.dialect.cuda import driver
from meta.runtime import chip, nvrtc

FOLDER = "cubin"
LIMIT = 256
"""How many sources' machine code is kept in memory."""
Sources = Callable[[], Iterable[str]]
_lock = threading.Lock()
_cubins: OrderedDict[tuple[str, str], Future[bytes]] = OrderedDict()
if hasattr(os, "register_at_fork"):  # a child has none of the threads
    os.register_at_fork(after_in_child=_cubins.clear)


def deferred(run: Callable[..., Any], sources: Sources, device: int) -> Deferred:
    """Return a kernel for an `OpEnv` whose sources are compiled, on threads of their own, before it
    is launched.

    ``sources`` returns what launches of aligned tensors need; what another launch needs is
    compiled by that.
    """
    if may_begin():
        _begin((text, chip.of(device).arch) for text in sources())
    return Deferred((run, sources, device), _compile_ahead)


def _compile_ahead(kernels: Sequence[tuple[Callable[..., Any], Sources, int]]) -> list[Compiled]:
    wanted = {
        (text, chip.of(device).arch): None for _, sources, device in kernels for text in sources()
    }
    if compile_threads() > 1:
        _begin(wanted)
    for one in wanted:
        cubin(*one)
    return [Compiled(run) for run, _, _ in kernels]


@lru_cache(maxsize=256)
def function(source: str, name: str, device: int, shared: int = 0) -> driver.Function:
    """Return the kernel ``name`` of CUDA source, loaded on a device, with so many bytes of shared
    memory besides those that the source declares.
    """
    return driver.load(cubin(source, chip.of(device).arch), name, device, shared)


def cubin(source: str, arch: str) -> bytes:
    """Return the machine code of source for an architecture, compiled now if it is not kept.

    Raises what `nvrtc.compile_source` raises.
    """
    found, is_new = _wanted(source, arch)
    if is_new:
        _make(found, source, arch)
    if found.exception() is not None:
        with _lock:  # for whoever comes after what is wrong was put right
            if _cubins.get((source, arch)) is found:
                del _cubins[source, arch]
    return found.result()


def _begin(wanted: Iterable[tuple[str, str]]) -> None:
    """Let threads make the machine code of sources that nobody has made."""
    for source, arch in wanted:
        found, is_new = _wanted(source, arch)
        if is_new:
            context = contextvars.copy_context()  # the caller's knobs
            threading.Thread(target=context.run, args=(_in_turn, found, source, arch)).start()


def _wanted(source: str, arch: str) -> tuple[Future[bytes], bool]:
    """Return what the machine code will be, and whether the caller is to make it."""
    with _lock:
        found = _cubins.get((source, arch))
        is_new = found is None
        if found is None:
            found = _cubins[source, arch] = Future()
        _cubins.move_to_end((source, arch))
        if len(_cubins) > LIMIT:
            _cubins.popitem(last=False)
    return found, is_new


def _in_turn(made: Future[bytes], source: str, arch: str) -> None:
    with _turns(compile_threads()):
        _make(made, source, arch)


@cache
def _turns(threads: int) -> threading.BoundedSemaphore:
    """Return what lets so many threads at a time through."""
    return threading.BoundedSemaphore(threads)


def _make(made: Future[bytes], source: str, arch: str) -> None:
    try:
        made.set_result(machine_code(source, arch))
    except BaseException as error:  # an interrupt, too: others wait for the result
        made.set_exception(error)


def machine_code(source: str, arch: str) -> bytes:
    """Return machine code from disk, or compile it; `cubin` has it in memory, too."""
    key = f"{nvrtc.compiler_version()}\n{arch}\n{source}"
    found = kept_file.find(FOLDER, key)
    if found is None:
        found = nvrtc.compile_source(source, arch)
        kept_file.keep(FOLDER, key, found)
    return found
