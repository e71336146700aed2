"""CUDA source to machine code through NVRTC, in place of TVM's compile callback.

TVM's own callback needs the ``cuda-bindings`` package, parses the whole of libcu++ (over a second
for a trivial kernel), and compiles with fast math, which is not accurate enough for training.
This one calls the NVRTC library that torch brings along, with a prologue of a few lines (40 ms).
Where NVRTC or its headers are missing, it runs ``nvcc``.
"""

from __future__ import annotations

import ctypes
import glob
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
from functools import cache

import torch
import tvm_ffi
from tvm.target import Target

from meta.base.errors import DeviceError

PROLOGUE = """\
typedef signed char int8_t;
typedef unsigned char uint8_t;
typedef short int16_t;
typedef unsigned short uint16_t;
typedef int int32_t;
typedef unsigned int uint32_t;
typedef long int64_t;
typedef unsigned long uint64_t;
#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif
#ifndef NAN
#define NAN __int_as_float(0x7fffffff)
#endif
"""
"""What generated kernels need of the headers that TVM includes at the top."""

_HEAD = re.compile(r"\A\s*#ifdef __CUDACC_RTC__.*?\n#else.*?\n#endif\n", re.DOTALL)


def slim(source: str) -> str:
    """Replace the standard headers at the top of generated source, if it has that form."""
    body, found = _HEAD.subn("", source, count=1)
    if not found or "std::" in body:
        return source
    return PROLOGUE + body


def compile_source(source: str, arch: str) -> bytes:
    """Return the cubin of CUDA source for ``arch`` ("sm_90").

    Raises DeviceError where there is neither NVRTC (with headers) nor nvcc, and RuntimeError with
    the compiler's log for source that does not compile.
    """
    library, headers = _library(), _include_folders()
    if library is not None and (headers or "#include" not in slim(source)):
        return _nvrtc(library, slim(source), arch, headers)
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise DeviceError(
            "CUDA source cannot be compiled",
            expected="NVRTC with the CUDA headers (they come with torch), or nvcc",
            found=f"NVRTC {'present' if library else 'absent'}, headers {headers or 'absent'}",
            hint="pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl",
        )
    return _nvcc(compiler, source, arch)


def _nvrtc(library: ctypes.CDLL, source: str, arch: str, headers: tuple[str, ...]) -> bytes:
    program = ctypes.c_void_p()
    options = [f"--gpu-architecture={arch}", "-default-device", "-std=c++17"]
    options += [f"-I{folder}" for folder in headers]
    encoded = [option.encode() for option in options]
    _check(
        library,
        library.nvrtcCreateProgram(
            ctypes.byref(program), source.encode(), b"meta_kernels.cu", 0, None, None
        ),
    )
    try:
        array = (ctypes.c_char_p * len(encoded))(*encoded)
        if library.nvrtcCompileProgram(program, len(encoded), array) != 0:
            log = _fetch(library, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
            raise RuntimeError(f"NVRTC refused generated CUDA source:\n{log}\n{source}")
        return _fetch(library, program, "CUBIN")
    finally:
        library.nvrtcDestroyProgram(ctypes.byref(program))


def _fetch(library: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(library, getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size)))
    buffer = ctypes.create_string_buffer(size.value)
    _check(library, getattr(library, f"nvrtcGet{what}")(program, buffer))
    return buffer.raw


def _check(library: ctypes.CDLL, code: int) -> None:
    if code != 0:
        raise RuntimeError(f"NVRTC: {library.nvrtcGetErrorString(code).decode()}")


def _nvcc(compiler: str, source: str, arch: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        code, cubin = os.path.join(folder, "kernels.cu"), os.path.join(folder, "kernels.cubin")
        with open(code, "w", encoding="utf-8") as file:
            file.write(source)
        command = [compiler, "-cubin", f"-arch={arch}", "-O3", "-o", cubin, code]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"nvcc refused generated CUDA source:\n{done.stderr}\n{source}")
        with open(cubin, "rb") as file:
            return file.read()


@cache
def _library() -> ctypes.CDLL | None:
    """The NVRTC of torch's CUDA version, from torch's packages or the system."""
    if torch.version.cuda is None:
        return None
    name = f"libnvrtc.so.{torch.version.cuda.split('.')[0]}"
    for path in [*_in_packages(f"*/lib/{name}"), name]:
        try:
            library = ctypes.CDLL(path)
        except OSError:
            continue  # not there: the next place
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
        return library
    return None


@cache
def _include_folders() -> tuple[str, ...]:
    """Folders that together have the half precision headers and what they include."""
    roots = _in_packages("*/include")
    compiler = shutil.which("nvcc")
    if compiler is not None:
        roots.append(os.path.join(os.path.dirname(os.path.dirname(compiler)), "include"))
    roots.append("/usr/local/cuda/include")
    folders = [f for root in roots for f in (root, os.path.join(root, "cccl")) if os.path.isdir(f)]
    if any(os.path.isfile(os.path.join(folder, "cuda_fp16.h")) for folder in folders):
        return tuple(dict.fromkeys(folders))
    return ()


def _in_packages(pattern: str) -> list[str]:
    """Files of NVIDIA's pip packages, which share the namespace package ``nvidia``."""
    spec = importlib.util.find_spec("nvidia")
    places = spec.submodule_search_locations if spec is not None else None
    return sorted(
        path for place in places or () for path in glob.glob(os.path.join(place, pattern))
    )


def _arch() -> str:
    target = Target.current(allow_none=True)
    if target is not None and "arch" in target.attrs:
        return str(target.attrs["arch"])
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


@tvm_ffi.register_global_func("tvm_callback_cuda_compile", override=True)
def _callback(source: str) -> bytes:
    return compile_source(source, _arch())
