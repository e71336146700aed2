"""Generated CPU kernels run on the threads that ATen runs on: those of OpenMP.

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
import os
import sys
from _ctypes import dlclose
from functools import cache
from typing import Any

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
