"""Machine code of kernels: compiled once, kept on disk, loaded without the DSL.

The DSL's compiler writes an object file whose function takes tensors by TVM's calling convention
(package apache-tvm-ffi, which knows torch's tensors and its current stream). It is linked to a
library, which needs `RUNTIME`, a library of the DSL's package.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib
import os
import platform
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import torch
import tvm_ffi

from meta.base.device import Device
from meta.dialect.core import Artifact, CompiledKernel, KernelStore, read_artifact
from meta.dialect.cutlass import INSTALL, VERSIONS
from meta.dialect.cutlass.kernel import Kernel
from meta.dialect.cutlass.launch import Plan, launcher
from meta.dialect.tvm import linker
from meta.runtime import gpu_properties

RUNTIME = "libcute_dsl_runtime.so"
_compiling = threading.Lock()
_PACKAGES = (*VERSIONS, "apache-tvm-ffi")


def environment(device: Device) -> str:
    """Return what decides whether kept kernels run: the runtime's versions and the architecture."""
    packages = ", ".join(map(_versioned, _PACKAGES))
    return f"{packages}, {platform.machine()}, {gpu_properties.target_of(device).arch}"


def _versioned(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:
        return f"no {package}"


def compile_all(wanted: Sequence[tuple[Kernel, Plan]]) -> list[CompiledKernel]:
    """Return kernels with their launches, compiled now unless they are kept."""
    return [
        CompiledKernel(launcher(function(kernel), plan), _artifact(kernel, plan))
        for kernel, plan in wanted
    ]


def _artifact(kernel: Kernel, plan: Plan) -> Artifact | None:
    """Return where a kernel is kept; None if nothing is."""
    file = libraries.file(kernel)
    record = {"symbol": symbol(kernel), "plan": plan.record()}
    return None if file is None else Artifact(file, record)


def restore(artifact: Artifact) -> CompiledKernel:
    """Return the kernel of an artifact; ValueError for a record or a file not in good order."""
    content, name = read_artifact(artifact, "symbol", "plan"), artifact.record["symbol"]
    if not isinstance(name, str):
        raise ValueError(f"{name!r} is no symbol of a kernel")
    return CompiledKernel(
        launcher(loaded(content, name), Plan.read(artifact.record["plan"])), artifact
    )


@lru_cache(maxsize=256)
def function(kernel: Kernel) -> Callable[..., None]:
    """Return the function of a kernel, loaded."""
    return loaded(libraries(kernel), symbol(kernel))


def key(kernel: Kernel) -> str:
    """Return what decides a kernel's machine code: itself, what it is made with, and how."""
    packages = ", ".join(map(_versioned, _PACKAGES))
    return f"{packages}, {platform.machine()}\n{_sources()}\n{kernel.key}"


@cache
def _sources() -> str:
    """Return a hash of the epilogues and of how they are compiled."""
    found = hashlib.sha256()
    for file in sorted((Path(__file__).parent / "source").glob("*.py")):
        found.update(file.read_bytes())
    return found.hexdigest()


def symbol(kernel: Kernel) -> str:
    """Return the name of a kernel's function in its library."""
    return f"kernel_{hashlib.sha256(kernel.key.encode()).hexdigest()[:16]}"


def compiled(kernel: Kernel) -> bytes:
    """Compile a kernel and return its library; one at a time, as the DSL wants it."""
    with _compiling:
        return _compiled(kernel)


def _compiled(kernel: Kernel) -> bytes:
    command = linker.command()
    if command is None:
        raise OSError("no linker was found, by which kernels become libraries: ld, lld or gcc")
    with tempfile.TemporaryDirectory() as folder:
        written, linked = Path(folder, "kernel.o"), Path(folder, "kernel.so")
        with warnings.catch_warnings():  # quack's, of names that it imports from the DSL
            warnings.simplefilter("ignore", DeprecationWarning)
            source = importlib.import_module("meta.dialect.cutlass.source.compile")
            source.write_object(kernel, written, symbol(kernel))
        subprocess.run(
            [*command, "-o", os.fspath(linked), os.fspath(written)], check=True, capture_output=True
        )
        return linked.read_bytes()


libraries: KernelStore[Kernel, bytes] = KernelStore(
    "cutlass", lambda kernel: compiled(kernel), key, limit=64
)
"""Libraries of kernels."""


def loaded(content: bytes, name: str) -> Callable[..., None]:
    """Return a function of a library, whose code is loaded."""
    _runtime()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, f"{hashlib.sha256(content).hexdigest()}.so")
        file.write_bytes(content)
        module = tvm_ffi.load_module(os.fspath(file))
    if not module.implements_function(name):
        raise ValueError(f"the library of a kernel has no function {name!r}")
    found: Callable[..., None] = module.get_function(name)
    return found


@cache
def _runtime() -> None:
    """Load the DSL's runtime library, which kernels need, without the DSL's Python package."""
    spec = find_spec("nvidia_cutlass_dsl")
    folders = [Path(p) for p in (spec and spec.submodule_search_locations) or ()]
    files = sorted(file for folder in folders for file in folder.glob(f"cu*/lib/{RUNTIME}"))
    if not files:
        raise OSError(f"{RUNTIME} is not there, which kernels of CUTLASS need: {INSTALL}")
    ours = f"cu{(torch.version.cuda or '').split('.')[0]}"
    chosen = [file for file in files if file.parents[1].name == ours] or files
    ctypes.CDLL(os.fspath(chosen[0]), mode=ctypes.RTLD_GLOBAL)
