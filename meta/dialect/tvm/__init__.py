"""The `tvm` dialect: every operator that computes, as a TE compute function that Apache TVM
compiles.

It is the default of compiled programs (COMPILER); eager calls go to dialects that need no compiling
first. Add a kernel in the operator's family file with `@compute`.
Nothing here imports TVM itself: the family files do, and they are loaded when the first program
is compiled, or `tvm` is preferred.

Operators whose result's shape depends on data (`argwhere`, `nonzero`, `unique`, `dynamic_reshape`
and others) run on `torch`; on CUDA, updates of lists of tensors run on `cuda`.

From a call to a kernel: `lower.py` makes a PrimFunc of the TE expression, `schedule_cpu.py` or
`schedule_cuda/` schedules it, and `build.py` compiles the kernels of a program in batches, one
module each, on several threads (META_COMPILE_THREADS; TVM's C++ code and NVRTC release the
interpreter lock). A kernel stays `Deferred` until it is needed, so a call that becomes part of a
fused kernel is never compiled by itself. `cache.py` keeps kernels on disk.

Numerics:

- Arithmetic is in the dtypes of the program, and each operation is rounded, with two exceptions.
  Within a kernel, LLVM and CUDA's compiler contract a product and a sum to one fused multiply-add,
  which rounds once; a fused program may differ in the last bit from the same program run operator
  by operator. On the CPU, META_CPU_TARGET with the feature ``-fma`` prevents that. On CUDA, kernels
  that write half precision and no wider floats use cheaper functions
  (`half_math.cuh`).
- bfloat16 on the CPU is computed in float32 and rounded at each cast (`bfloat16.py`).
- TVM's simplifier assumes real numbers and unbounded integers; `floats.py` and `integers.py` keep
  array values from it.
- TVM would round float64 constants in CUDA source; they are written by their bits
  (`cuda_source.py`).

Launching: a kernel takes torch tensors directly. On the CPU its parallel loops run on OpenMP's
threads, as ATen's do (`linker.py`). On CUDA it runs on torch's current stream, NVRTC compiles it
(`nvrtc.py`), and intermediate arrays between the kernels of one function are allocated from torch
(`workspace.py`). Kernels are compiled for aligned arguments; a call with others is repeated with
aligned copies (`realigned.py`).
"""

import ctypes
import importlib
import sys
from importlib.util import find_spec

from meta.base.device import Device
from meta.dialect.core import COMPILER, Dialect


def probe() -> str | None:
    """Return why TVM cannot be used, or None."""
    return None if find_spec("tvm") is not None else "the package apache-tvm is not installed"


def warmup(device: Device) -> None:
    """Let TVM read the symbols of all libraries of the process.

    It does so for the backtrace of its first error, and has some while it is imported, which it
    handles itself. It takes a second or two with torch's libraries.
    """
    if "tvm" in sys.modules:
        return
    trace = importlib.import_module("tvm_ffi").LIB.TVMFFIBacktrace
    trace.argtypes = [ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_int]
    trace.restype = ctypes.c_void_p
    trace(None, 0, None, 0)


tvm = Dialect(
    "tvm",
    devices=("cpu", "cuda"),
    plevel=COMPILER,
    probe=probe,
    package=__name__,
    restorer=f"{__name__}.cache",
    linkable=f"{__name__}.objects",
    warmup=warmup,
    compiles=True,
)
