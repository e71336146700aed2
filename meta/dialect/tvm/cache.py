"""Kernels of TVM on disk: found by their content, loaded without TVM's Python package.

A compiled module is a library, and of each of its functions there is a record under the function's
key (its TIR, target, versions): the library's file, the symbol, the intermediate arrays that it
takes. Both are files of `meta.base.disk_cache`: complete, verified before they are loaded, as the
loader would crash on a truncated one, and never changed.

Nothing here fails a run: `status` says why nothing is kept, and what cannot be written, on a full
disk for one, stays in memory, with a warning.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import tvm_ffi
from tvm_ffi.libinfo import load_lib_ctypes

from meta.base import caches, config, disk_cache
from meta.base.bounded_cache import bounded_insert
from meta.base.caches import cache_folder
from meta.base.device import Device
from meta.dialect.core import Artifact, CompiledKernel
from meta.dialect.core.kernel_store import require_trusted
from meta.dialect.tvm import linker
from meta.dialect.tvm.launch import LaunchPlan, Workspace, total_bytes, with_workspaces
from meta.dialect.tvm.linker import adopt
from meta.runtime import gpu_properties

CACHE = "kernels"
LIBRARIES = 1024
"""Libraries that are remembered; those whose functions somebody holds stay loaded."""
_LIBRARY_NAME = re.compile(r"[0-9a-f]{64}\.so")


@dataclass(frozen=True, slots=True)
class Status:
    """Where the cache is, whether it is read and written, and what is in the way if not."""

    folder: Path
    readable: bool
    writable: bool
    reason: str


_lock = threading.RLock()
_libraries: dict[Path, Any] = {}
_trouble: dict[Path, str] = {}
"""Why writing to a folder failed; this process does not try it again."""


def status() -> Status:
    """Return the state of the cache, creating its folder if it can."""
    where = cache_folder(CACHE)
    if not config.get("META_CACHE"):
        return Status(where, False, False, "switched off by META_CACHE")
    unreadable, unwritable = caches.problems(where)
    if unreadable:
        return Status(where, False, False, unreadable)
    if not unwritable and linker.command() is None:
        unwritable = f"no linker was found ({', '.join(linker.NAMES)})"
    reason = unwritable or _trouble.get(where, "")
    return Status(where, True, not reason, reason)


def load(key: str) -> CompiledKernel | None:
    """Return the function of ``key``, or None if it is not in the cache in good order."""
    content = disk_cache.get(CACHE, key)
    if content is None:
        return None
    try:
        record = json.loads(content)
        library = record.pop("library")
        if not _LIBRARY_NAME.fullmatch(library):
            return None
        found = _kernel(Artifact(cache_folder(CACHE) / library, record))
    except (ValueError, TypeError, AttributeError, LookupError):  # of another version: built anew
        return None
    assert found.artifact is not None
    caches.touch(found.artifact.file)
    return found


def store(
    module: Any, keys: dict[str, str], workspaces: dict[str, tuple[Workspace, ...]]
) -> dict[str, CompiledKernel] | None:
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
        file = _write(state.folder, module)
        if file is not None and load_verified(file) is None:
            # It was there before, and another process that made room has taken it away.
            file = _write(state.folder, module)
    except (OSError, subprocess.SubprocessError) as error:
        _trouble[state.folder] = f"writing failed: {_cause(error)}"
        caches.warn_unwritable(_trouble[state.folder])
        return None
    if file is None or load_verified(file) is None:  # the folder may be gone by now
        return None
    found = {}
    for symbol, key in keys.items():
        record = {"symbol": symbol, "workspaces": [w.record() for w in workspaces[symbol]]}
        disk_cache.store(CACHE, key, json.dumps({**record, "library": file.name}).encode())
        found[symbol] = _kernel(Artifact(file, record))
    return found


def restore(artifact: Artifact) -> CompiledKernel:
    """Return the kernel of an artifact; ValueError for a record or a file not in good order."""
    record: dict[str, Any] = artifact.record
    if set(record) != {"symbol", "workspaces", "launch"} or not isinstance(record["launch"], dict):
        raise ValueError(f"{sorted(record)} are not the fields of a kernel's record")
    require_trusted(artifact.file)
    made = _kernel(artifact)
    return replace(made, run=LaunchPlan.read(record["launch"]).bind(made.run))


def _kernel(artifact: Artifact) -> CompiledKernel:
    """Return a function in a library; ValueError for a record or a file not in good order."""
    file, record = artifact.file, artifact.record
    module, symbol = load_verified(file), record.get("symbol")
    if module is None or not isinstance(symbol, str) or not module.implements_function(symbol):
        raise ValueError(f"{file} does not hold the kernel {symbol!r} in good order")
    workspaces = read_workspaces(record.get("workspaces"))
    return CompiledKernel(
        with_workspaces(module.get_function(symbol), workspaces), artifact, total_bytes(workspaces)
    )


def read_workspaces(records: Any) -> tuple[Workspace, ...]:
    """Return the workspaces of records out of a file; ValueError if one of them is none."""
    found = [Workspace.read(one) for one in records] if isinstance(records, list) else [None]
    workspaces = tuple(w for w in found if w is not None)
    if len(workspaces) != len(found):
        raise ValueError("a kernel's record is damaged")
    return workspaces


def environment(device: Device) -> str:
    """Return what decides whether compiled code runs: TVM's version, and the processor."""
    versions = ", ".join(map(_versioned, ("apache-tvm", "apache-tvm-ffi")))
    if device.kind == "cuda":
        return f"{versions}, {platform.machine()}, {gpu_properties.query(device.ordinal).arch}"
    wanted = config.get("META_CPU_TARGET")
    features = hashlib.sha256(_features().encode()).hexdigest()[:16]
    return f"{versions}, {platform.machine()}, features {features}, target {wanted!r}"


def _versioned(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


@lru_cache(maxsize=1)
def _features() -> str:
    """Return what the processor can do, as Linux lists it; elsewhere, its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return platform.processor()
    found = {line for line in lines if line.startswith(("model name", "flags", "Features"))}
    return "\n".join(sorted(found))


def _cause(error: OSError | subprocess.SubprocessError) -> str:
    """Return what an error of the file system or the linker says."""
    said = getattr(error, "stderr", None) or b""
    return " ".join([str(error), *said.decode(errors="replace").split()])


def load_verified(file: Path) -> Any | None:
    """Return a library, loaded; None if it is not in good order, or others may write to it."""
    with _lock:
        if file not in _libraries:
            if disk_cache.read(file) is None:
                return None
            try:
                return bounded_insert(_libraries, file, load_library(file), LIBRARIES)
            except (OSError, RuntimeError) as error:
                if not file.is_file():
                    return None
                # Such as where nothing may be run (noexec).
                _trouble[file.parent] = f"a library cannot be loaded: {error}"
                caches.warn_unwritable(_trouble[file.parent])
                return None
        return _libraries[file]


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


def _write(where: Path, module: Any) -> Path | None:
    """Link a module to a library and keep it; return its file, None if that cannot be written."""
    with tempfile.TemporaryDirectory(dir=where, prefix=caches.TEMPORARY_PREFIX) as workspace:
        linked = Path(workspace, "kernels.so")
        linker.link(linked, module)
        content = linked.read_bytes()
    key = hashlib.sha256(content).hexdigest()
    disk_cache.store(CACHE, key, content, ".so")
    return disk_cache.path_of(CACHE, key, ".so")
