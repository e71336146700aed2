"""Compiled modules as shared libraries: their object files are in memory, LLVM writes to no disk.

What LLVM cannot write, on a full disk for one, ends the process ("LLVM ERROR: IO failure"). Here it
writes to files that are in memory alone; the linker, which is a process of its own, reads these and
may fail as it likes.

Generated CPU kernels run on the threads that ATen runs on: those of OpenMP.

TVM has a thread pool of its own. Threads of a pool look for more work in a loop before they sleep,
so that in a program of kernels of both, each pool keeps the cores from the other: on two cores a
parallel kernel after a matrix product took up to a hundred times its own time. With one pool the
threads are awake already, and ``torch.set_num_threads`` holds for all kernels.

A compiled library calls what its variable ``__TVMBackendParallelLaunch`` points to. `LAUNCHER`,
which is linked to every library, has the signature wanted there and runs the work by
``GOMP_parallel``, the entry point of GNU's OpenMP library, which LLVM's has too; `adopt` puts both
into the variables of a library that was loaded. Outside of Linux, and in a module that was never
written to disk, kernels keep TVM's pool.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import shutil
import subprocess
import sys
from _ctypes import dlclose
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import tvm_ffi

LAUNCHER = """
@meta_omp_parallel = global ptr null
@meta_omp_thread = global ptr null
@meta_omp_threads = global ptr null

define internal void @meta_run_share(ptr %work) {
  %thread_of = load ptr, ptr @meta_omp_thread
  %threads_of = load ptr, ptr @meta_omp_threads
  %thread = call i32 %thread_of()
  %threads = call i32 %threads_of()
  %group = alloca {ptr, i32}
  store ptr null, ptr %group
  %count = getelementptr {ptr, i32}, ptr %group, i32 0, i32 1
  store i32 %threads, ptr %count
  %body = load ptr, ptr %work
  %second = getelementptr [2 x ptr], ptr %work, i32 0, i32 1
  %data = load ptr, ptr %second
  %status = call i32 %body(i32 %thread, ptr %group, ptr %data)
  ret void
}

define i32 @meta_launch_parallel(ptr %body, ptr %data, i32 %tasks) {
  %work = alloca [2 x ptr]
  store ptr %body, ptr %work
  %second = getelementptr [2 x ptr], ptr %work, i32 0, i32 1
  store ptr %data, ptr %second
  %parallel = load ptr, ptr @meta_omp_parallel
  call void %parallel(ptr @meta_run_share, ptr %work, i32 0, i32 0)
  ret i32 0
}

!llvm.module.flags = !{!0}
!0 = !{i32 4, !"tvm_target", !"llvm"}
"""
"""LLVM IR of TVM's ``int launch(int (*body)(int task, group*, void*), void* data, int tasks)``; a
``group`` is ``struct {void* sync; int32_t tasks;}`` (TVM's c_backend_api.h). The number of tasks is
that of OpenMP's threads: kernels ask for as many as there are. A kernel's body has no failure to
report: what may fail is checked before."""

MATCH = """
define i32 @meta_match(ptr %args, ptr %facts, i32 %count) nounwind {
entry:
  br label %argument
argument:
  %i = phi i32 [0, %entry], [%next_i, %checked]
  %fact = phi ptr [%facts, %entry], [%next_fact, %checked]
  %is_over = icmp eq i32 %i, %count
  br i1 %is_over, label %right, label %look
look:
  %next_i = add i32 %i, 1
  %position = call i64 @meta_number(ptr %fact)
  %expected_kind_at = getelementptr i64, ptr %fact, i64 2
  %expected_kind = call i64 @meta_number(ptr %expected_kind_at)
  %rank = and i64 %expected_kind, 4294967295
  %first = getelementptr i64, ptr %fact, i64 4
  %next_fact = getelementptr [2 x i64], ptr %first, i64 %rank
  %index_at = getelementptr [2 x i64], ptr %args, i64 %position
  %index = load i32, ptr %index_at
  %address_at = getelementptr i64, ptr %index_at, i64 1
  %address = load ptr, ptr %address_at
  %inside = getelementptr i64, ptr %address, i64 3
  %is_object = icmp eq i32 %index, 70
  %tensor = select i1 %is_object, ptr %inside, ptr %address
  %data = load ptr, ptr %tensor
  %device_at = getelementptr i64, ptr %tensor, i64 1
  %device = load i32, ptr %device_at
  %kind_at = getelementptr i64, ptr %tensor, i64 2
  %kind = load i64, ptr %kind_at
  %shape_at = getelementptr i64, ptr %tensor, i64 3
  %shape = load ptr, ptr %shape_at
  %strides_at = getelementptr i64, ptr %tensor, i64 4
  %strides_or_null = load ptr, ptr %strides_at
  %offset_at = getelementptr i64, ptr %tensor, i64 5
  %offset = load i64, ptr %offset_at
  %kind_fits = icmp eq i64 %kind, %expected_kind
  %on_cpu = icmp eq i32 %device, 1
  %no_offset = icmp eq i64 %offset, 0
  %kind_and_device = and i1 %kind_fits, %on_cpu
  %record_fits = and i1 %kind_and_device, %no_offset
  br i1 %record_fits, label %extents, label %wrong
extents:
  %without = icmp eq ptr %strides_or_null, null
  %strides = select i1 %without, ptr %shape, ptr %strides_or_null
  br label %dimension
dimension:
  %d = phi i64 [%rank, %extents], [%k, %step]
  %size = phi i64 [1, %extents], [%next_size, %step]
  %compact = phi i1 [true, %extents], [%next_compact, %step]
  %is_last = icmp eq i64 %d, 0
  br i1 %is_last, label %memory, label %step
step:
  %k = sub i64 %d, 1
  %extent_at = getelementptr i64, ptr %shape, i64 %k
  %extent = load i64, ptr %extent_at
  %stride_at = getelementptr i64, ptr %strides, i64 %k
  %stride = load i64, ptr %stride_at
  %expected_at = getelementptr [2 x i64], ptr %first, i64 %k
  %expected = call i64 @meta_number(ptr %expected_at)
  %is_same = icmp eq i64 %extent, %expected
  %has_name = icmp slt i64 %expected, 0
  %extent_fits = or i1 %is_same, %has_name
  %is_next = icmp eq i64 %stride, %size
  %is_one = icmp eq i64 %extent, 1
  %next_or_one = or i1 %is_next, %is_one
  %stride_fits = or i1 %next_or_one, %without
  %next_compact = and i1 %compact, %stride_fits
  %next_size = mul i64 %size, %extent
  br i1 %extent_fits, label %dimension, label %wrong
memory:
  %is_empty = icmp eq i64 %size, 0
  %is_there = icmp ne ptr %data, null
  %is_readable = and i1 %is_there, %compact
  %fits = or i1 %is_readable, %is_empty
  br i1 %fits, label %checked, label %wrong
checked:
  br label %argument
right:
  ret i32 1
wrong:
  ret i32 0
}

define internal i64 @meta_number(ptr %at) alwaysinline nounwind {
  %low = load i64, ptr %at, align 1
  %behind = getelementptr i64, ptr %at, i64 1
  %bits = load i64, ptr %behind, align 1
  %high = shl i64 %bits, 7
  %number = or i64 %low, %high
  ret i64 %number
}
"""
"""LLVM IR of the function that says whether tensors among arguments fit a table of so many. An
argument takes 16 bytes (TVM's ``TVMFFIAny``); the record of a tensor is DLPack's ``DLTensor``:
data, device, rank and dtype, shape, strides, offset, and in an object of TVM's it follows 24 bytes.
Strides along one element, and those of tensors without elements, are any."""

_VARIABLES = {
    "meta_omp_parallel": "GOMP_parallel",
    "meta_omp_thread": "omp_get_thread_num",
    "meta_omp_threads": "omp_get_num_threads",
}


def adopt(library: str | os.PathLike[str]) -> None:
    """Let the kernels of a library, which is loaded already, run on OpenMP's threads."""
    functions = _functions()
    if functions is None:
        return
    loaded = ctypes.CDLL(os.fspath(library))
    try:
        launch = _address(loaded.meta_launch_parallel)
        where = ctypes.c_void_p.in_dll(loaded, "__TVMBackendParallelLaunch")
    except (AttributeError, ValueError):
        return  # no launcher was linked to it, or it has no loop to run in parallel
    for variable, address in functions.items():
        ctypes.c_void_p.in_dll(loaded, variable).value = address
    where.value = launch
    dlclose(loaded._handle)  # who loaded it first keeps it, as long as its functions are there


@cache
def _functions() -> dict[str, int] | None:
    """Return the addresses for a library's variables: of the OpenMP that torch has loaded."""
    if sys.platform != "linux":
        return None
    process = ctypes.CDLL(None)
    try:
        return {v: _address(getattr(process, name)) for v, name in _VARIABLES.items()}
    except AttributeError:
        return None


def _address(function: Any) -> int:
    address = ctypes.cast(function, ctypes.c_void_p).value
    assert address is not None
    return address


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
    with object_files(module) as objects, in_memory(object_of(LAUNCHER + MATCH)) as launcher:
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
    if not hasattr(type(module), "_collect_dso_modules"):
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
