"""CUDA source to machine code through NVRTC, in place of TVM's compile callback.

TVM's own callback needs the ``cuda-bindings`` package, parses the whole of libcu++ (over a second
for a trivial kernel), and compiles with fast math, which is not accurate enough for training.
This one calls the NVRTC library that torch brings along (`meta.runtime.nvrtc`), with a prologue of
a few lines (40 ms).
"""

from __future__ import annotations

import re

import torch
import tvm_ffi
from tvm.target import Target

from meta.dialect.tvm.cuda_source import with_functions
from meta.runtime import gpu_properties, nvrtc

TWO_BLOCKS = "__launch_bounds__(512)", "__launch_bounds__(512, 2)"
"""One block of so many threads does not hide its own waiting: two get 64 registers a thread."""

_HALVES = {"__float2half_rn(": "cuda_fp16.h", "__float2bfloat16_rn(": "cuda_bf16.h"}
"""What constants of half precision are made by. TVM includes the header only if it writes the type,
too: the argument of a cast does not need it."""

_HEAD = re.compile(r"\A\s*#ifdef __CUDACC_RTC__.*?\n#else.*?\n#endif\n", re.DOTALL)


def _slim(source: str) -> str:
    """Replace the standard headers at the top of generated source, if it has that form."""
    body, found = _HEAD.subn("", source, count=1)
    if not found or "std::" in body:
        return source
    return nvrtc.PROLOGUE + body


def complete(source: str) -> str:
    """Put what generated source uses, and does not have, before it."""
    source = with_functions(_slim(source).replace(*TWO_BLOCKS))
    missing = [
        header
        for name, header in _HALVES.items()
        if name in source and f"#include <{header}>" not in source
    ]
    return "".join(f"#include <{header}>\n" for header in missing) + source


def compile_for_tvm(source: str, arch: str) -> bytes:
    """Return the cubin of source that TVM generated; see `nvrtc.compile_source`."""
    return nvrtc.compile_source(complete(source), arch)


def _arch() -> str:
    target = Target.current(allow_none=True)
    if target is not None and "arch" in target.attrs:
        return str(target.attrs["arch"])
    return gpu_properties.query(torch.cuda.current_device()).arch


def _callback(source: str) -> bytes:
    return compile_for_tvm(source, _arch())


tvm_ffi.register_global_func("tvm_callback_cuda_compile", _callback, override=True)
