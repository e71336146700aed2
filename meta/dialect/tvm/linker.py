"""Compiled modules as shared libraries: their object files are in memory, LLVM writes to no disk.

What LLVM cannot write, on a full disk for one, ends the process ("LLVM ERROR: IO failure"). Here it
writes to files that are in memory alone; the linker, which is a process of its own, reads these and
may fail as it likes.
"""

from __future__ import annotations

import errno
import os
import resource
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import tvm_ffi

from meta.dialect.tvm.openmp import LAUNCHER

LARGEST = 256 << 20
"""Bytes that an object file may have: no file's size is limited to less while one is written."""


_COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
_LINKERS = ("ld.lld", "ld")
NAMES = (*_LINKERS, *_COMPILERS)


@cache
def command() -> tuple[str, ...] | None:
    """The command that links a shared library, None where there is none.

    The linker itself will do, and is faster: objects are complete, and what they need of the C
    library is in the process already.
    """
    for name in (*_LINKERS, *_COMPILERS):
        found = shutil.which(name)
        if found:
            return (found, "-shared") if name in _LINKERS else (found, "-shared", "-nostdlib")
    return None


def link(output: Path, module: Any) -> None:
    """Link a compiled module, with those that it imports, to a shared library."""
    linker = command()
    assert linker is not None
    with object_files(module) as objects, in_memory(object_of(LAUNCHER)) as launcher:
        files = [*objects, launcher]
        subprocess.run(
            [*linker, "-o", os.fspath(output), *map(path_of, files)],
            check=True,
            capture_output=True,
            pass_fds=files,
        )


@contextmanager
def object_files(module: Any) -> Iterator[list[int]]:
    """Yield descriptors of the object files of a module, with those that it imports; they are gone
    after the block.

    Raises OSError where there are no files in memory.
    """
    files: list[int] = []
    try:
        for piece in _pieces(module):
            files.append(_empty())
            piece.write_to_file(path_of(files[-1]), "o")
        yield files
    finally:
        for file in files:
            os.close(file)


def path_of(file: int) -> str:
    """Return under which path this process, and one that inherits it, opens a descriptor."""
    return f"/proc/self/fd/{file}"


@contextmanager
def in_memory(content: bytes) -> Iterator[int]:
    """Yield the descriptor of a file in memory with this content, which is gone after the block."""
    file = _empty()
    try:
        with open(path_of(file), "wb") as writer:
            writer.write(content)
        yield file
    finally:
        os.close(file)


@cache
def object_of(text: str) -> bytes:
    """Return the object file of a module in LLVM's language."""
    read = tvm_ffi.get_global_func("ffi.Module.load_from_file.ll")
    with in_memory(text.encode()) as source:
        module = read(path_of(source), "ll")
    with object_files(module) as (file,):
        return Path(path_of(file)).read_bytes()


def _pieces(module: Any) -> Sequence[Any]:
    """Return the modules of which each is an object file: what `export_library` of TVM collects."""
    if not hasattr(module, "_collect_dso_modules"):
        return [module]
    found = list(module._collect_dso_modules())
    if module.imports:
        (host,) = [one for one in found if one.kind == "llvm"]
        pack = tvm_ffi.get_global_func("runtime.ModulePackImportsToLLVM")
        found.append(pack(module, False, host.get_function("_get_target_string")(), ""))
    return found


def _empty() -> int:
    """Return a new file in memory, which LLVM can write: it does not ask whether it could."""
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    if most != resource.RLIM_INFINITY and most < LARGEST:
        raise OSError(errno.EFBIG, "files are limited to less than kernels may take (ulimit -f)")
    if not os.access("/proc/self/fd", os.X_OK):
        raise OSError(errno.ENOENT, "/proc is not there")
    return os.memfd_create("meta-kernels")
