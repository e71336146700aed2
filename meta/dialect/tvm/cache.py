"""The kernel cache on disk: compiled functions of earlier runs, found by their content.

Under the folder there is one small file per function, ``keys/ab/abcd....json``, named after the
hash of the function's key (its TIR, target, versions). It holds the key itself, which is compared
in full, lists the workspaces that the function takes, and names a library and a symbol.
Libraries, ``libraries/<sha256>.so``, are named after their content, which is verified before the
first load: the loader would crash on a truncated one.
Several processes may share the folder: files appear under their final name complete, and are
never changed.

Nothing here fails a run: a damaged or foreign file is as good as none, `status` says why there is
no cache, and what cannot be written, on a full disk for one, stays in memory, with a warning.

Loading a library runs its code. One is loaded only out of a folder that belongs to this user and
that others cannot write to.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import tvm_ffi
from tvm_ffi.libinfo import load_lib_ctypes

from meta.base import caches, config
from meta.base.bounded_cache import bounded_insert
from meta.base.caches import cache_folder, distrust, open_private
from meta.dialect.tvm.object_code import in_memory, object_files, object_of, path_of
from meta.dialect.tvm.openmp import LAUNCHER, adopt
from meta.dialect.tvm.workspace import Workspace

MAX_ENTRY_BYTES = 16 << 20
"""Larger key files are not ours."""

LIBRARIES = 1024
"""Libraries that are remembered; those whose functions somebody holds stay loaded."""
_LIBRARY_NAME = re.compile(r"[0-9a-f]{64}\.so")
_SYMBOL_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,255}")
_COMPILERS = ("g++", "gcc", "clang++", "clang", "c++", "cc")
_LINKERS = ("ld.lld", "ld")


@dataclass(frozen=True, slots=True)
class Status:
    """Where the cache is, whether it is read and written, and what is in the way if not."""

    folder: Path
    readable: bool
    writable: bool
    reason: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A function in a library on disk; ``module`` is that library, loaded."""

    file: Path
    module: Any
    symbol: str
    workspaces: tuple[Workspace, ...]


_lock = threading.RLock()
_libraries: dict[Path, Any] = {}
_trouble: dict[Path, str] = {}
"""Why writing to a folder failed; this process does not try it again."""


def folder() -> Path:
    """Return the folder of the cache; it need not exist."""
    return cache_folder("kernels")


def status() -> Status:
    """Return the state of the cache, creating its folder if it can."""
    where = folder()
    if not config.get("META_CACHE"):
        return Status(where, False, False, "switched off by META_CACHE")
    problem = open_private(where)
    if problem:
        return Status(where, False, False, problem)
    if not os.access(where, os.W_OK):
        return Status(where, True, False, "the folder is read-only")
    if linker() is None:
        wanted = ", ".join((*_LINKERS, *_COMPILERS))
        return Status(where, True, False, f"no linker was found ({wanted})")
    trouble = _trouble.get(where, "")
    return Status(where, True, not trouble, trouble)


def digest(key: str) -> str:
    """Return the hash under which a key is filed."""
    return hashlib.sha256(key.encode()).hexdigest()


def load(key: str) -> Stored | None:
    """Return the function of ``key``, or None if it is not in the cache in good order."""
    where = folder()
    if not config.get("META_CACHE") or open_private(where):
        return None
    path = _entry_path(where, digest(key))
    entry = _read_entry(path)
    if entry is None or entry["key"] != key:
        return None
    file = where / "libraries" / entry["library"]
    module = load_verified(file)
    if module is None or not module.implements_function(entry["symbol"]):
        return None
    workspaces = read_workspaces(entry["workspaces"])
    if workspaces is None:
        return None
    for used in (path, file):
        caches.touch(used)
    return Stored(file, module, entry["symbol"], workspaces)


def read_workspaces(records: Any) -> tuple[Workspace, ...] | None:
    """Return the workspaces of records out of a file, None if one of them is none."""
    if not isinstance(records, list):
        return None
    found = [Workspace.read(record) for record in records]
    workspaces = tuple(w for w in found if w is not None)
    return workspaces if len(workspaces) == len(found) else None


def store(
    module: Any, keys: dict[str, str], workspaces: dict[str, tuple[Workspace, ...]]
) -> dict[str, Stored] | None:
    """Write a compiled module and return its functions as loaded back, or None if that cannot be
    done.

    The functions' keys and workspaces are given by symbol. Machine code is generated when a module
    is written or when it is first run, so running the written one does it once.
    """
    state = status()
    if not state.writable:
        if config.get("META_CACHE"):
            caches.warn_unwritable(state.reason)
        return None
    try:
        library = _write(state.folder, module, keys, workspaces)
        size = library.stat().st_size + sum(map(len, keys.values()))
    except (OSError, subprocess.SubprocessError) as error:
        _trouble[state.folder] = f"writing failed: {_cause(error)}"
        caches.warn_unwritable(_trouble[state.folder])
        return None
    loaded = load_verified(library)
    if loaded is None:  # the folder may be gone by now
        return None
    caches.count_written(size)
    return {symbol: Stored(library, loaded, symbol, workspaces[symbol]) for symbol in keys}


def _cause(error: OSError | subprocess.SubprocessError) -> str:
    """Return what an error of the file system or the linker says."""
    said = getattr(error, "stderr", None) or b""
    return " ".join([str(error), *said.decode(errors="replace").split()])


def _entry_path(where: Path, name: str) -> Path:
    return where / "keys" / name[:2] / f"{name}.json"


def _read_entry(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > MAX_ENTRY_BYTES:
            return None
        entry = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):  # absent, unreadable or garbage: rebuilt
        return None
    fits = (
        isinstance(entry, dict)
        and all(isinstance(entry.get(name), str) for name in ("key", "library", "symbol"))
        and _LIBRARY_NAME.fullmatch(entry["library"])
        and _SYMBOL_NAME.fullmatch(entry["symbol"])
    )
    return entry if fits else None


def load_verified(path: Path) -> Any | None:
    """Return a library that is named after its content, loaded; None if it is not in good order.

    It must not be writable by others: `distrust`.
    """
    if not _LIBRARY_NAME.fullmatch(path.name):
        return None
    with _lock:
        if path not in _libraries:
            try:
                with path.open("rb") as file:
                    if distrust(os.fstat(file.fileno())):
                        return None
                    content = file.read()
            except OSError:
                return None
            if hashlib.sha256(content).hexdigest() != path.stem:
                return None
            try:
                return bounded_insert(_libraries, path, load_library(path), LIBRARIES)
            except (OSError, RuntimeError) as error:  # gone, or where nothing may be run (noexec)
                _trouble[path.parents[1]] = f"a library cannot be loaded: {error}"
                caches.warn_unwritable(_trouble[path.parents[1]])
                return None
        return _libraries[path]


def load_library(path: str | os.PathLike[str]) -> Any:
    """Return the module in a shared library of compiled kernels. Loading it runs its code."""
    _runtime()
    module = tvm_ffi.load_module(os.fspath(path))
    adopt(path)
    return module


@lru_cache(maxsize=1)
def _runtime() -> None:
    """Load TVM's C++ runtime, which kernels need, without TVM's Python package: importing that
    brings the compiler and takes over a second. TVM's own import does the same, whichever is first.
    """
    if sys.modules.get("tvm") is not None:
        return
    spec = find_spec("tvm")  # says where the libraries of a source build are
    folders = [Path(p) / "lib" for p in (spec and spec.submodule_search_locations) or ()]
    load_lib_ctypes("apache-tvm", "tvm_runtime", "RTLD_GLOBAL", extra_lib_paths=folders)
    if torch.cuda.is_available():
        load_lib_ctypes("apache-tvm", "tvm_runtime_cuda", "RTLD_GLOBAL", extra_lib_paths=folders)


def _write(
    where: Path, module: Any, keys: dict[str, str], workspaces: dict[str, tuple[Workspace, ...]]
) -> Path:
    libraries = where / "libraries"
    libraries.mkdir(mode=0o700, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=where, prefix=caches.TEMPORARY_PREFIX) as workspace:
        linked = os.path.join(workspace, "kernels.so")
        _link(linked, module)
        os.chmod(linked, 0o600)
        with open(linked, "rb") as file:
            path = libraries / f"{hashlib.sha256(file.read()).hexdigest()}.so"
        os.replace(linked, path)
    for symbol, key in keys.items():
        entry = {
            "symbol": symbol,
            "library": path.name,
            "workspaces": [workspace.record() for workspace in workspaces[symbol]],
            "key": key,
        }
        at = _entry_path(where, digest(key))
        at.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        caches.write_atomically(at, json.dumps(entry).encode())
    return path


@lru_cache(maxsize=1)
def linker() -> tuple[str, ...] | None:
    """The command that links a shared library.

    The linker itself will do, and is faster: objects are complete, and what they need of the C
    library is in the process already.
    """
    for name in (*_LINKERS, *_COMPILERS):
        found = shutil.which(name)
        if found:
            return (found, "-shared") if name in _LINKERS else (found, "-shared", "-nostdlib")
    return None


def _link(output: str, module: Any) -> None:
    command = linker()
    assert command is not None
    with object_files(module) as objects, in_memory(object_of(LAUNCHER)) as launcher:
        files = [*objects, launcher]
        subprocess.run(
            [*command, "-o", output, *map(path_of, files)],
            check=True,
            capture_output=True,
            pass_fds=files,
        )
