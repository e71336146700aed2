"""CUDA source to machine code: by the NVRTC library that torch brings along, or else ``nvcc``."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch

from meta.base.errors import DeviceError
from meta.runtime.nvidia_packages import in_packages, load

# CUDA source in files beside the Python modules that launch it.
#
# A kernel is a ``.cu`` file, and what several kernels share a ``.cuh`` file that they include. What
# varies from call to call are macros, which are defined before the file. NVRTC is given one text,
# of which kept machine code is a function, so included files are put in the place of their
# directives.


_INCLUDE = re.compile(r'#include "([\w.]+)"\n')
_ONCE = "#pragma once\n"


def with_macros(file: Path, macros: Mapping[str, object]) -> str:
    """Return the text of a file of CUDA source with these macros defined before it."""
    return "".join(f"#define {name} {value}\n" for name, value in macros.items()) + with_includes(
        file
    )


@cache
def with_includes(file: Path) -> str:
    """Return the text of a file and of the files beside it that it includes, each once."""
    return _resolve_includes(file, set())


def _resolve_includes(file: Path, seen: set[str]) -> str:
    if file.name in seen:
        return ""
    seen.add(file.name)
    content = file.read_text("utf-8").replace(_ONCE, "")
    return _INCLUDE.sub(lambda match: _resolve_includes(file.with_name(match[1]), seen), content)


# Compilation.


PROLOGUE = with_includes(Path(__file__).with_name("prologue.cuh"))
"""What stands for the standard headers in source that is compiled without them."""


def compile_source(source: str, arch: str) -> bytes:
    """Return the cubin of CUDA source for ``arch`` ("sm_90").

    Source without ``#include`` needs no headers. Raises DeviceError where there is neither NVRTC
    (with the headers that are needed) nor nvcc, and RuntimeError with the compiler's log for source
    that does not compile.
    """
    library, headers = nvrtc_library(), include_folders()
    if library is not None and (headers or "#include" not in source):
        return _nvrtc(library, source, arch, headers)
    compiler = shutil.which("nvcc")
    if compiler is None:
        raise DeviceError(
            "CUDA source cannot be compiled",
            expected="NVRTC with the CUDA headers (they come with torch), or nvcc",
            found=f"NVRTC {'present' if library else 'absent'}, headers {headers or 'absent'}",
            hint="pip install nvidia-cuda-nvrtc nvidia-cuda-runtime nvidia-cuda-cccl",
        )
    return run_nvcc(compiler, source, arch)


def refusal() -> str | None:
    """Return why source without ``#include`` cannot be compiled, or None."""
    if nvrtc_library() is None and shutil.which("nvcc") is None:
        return "neither NVRTC nor nvcc is installed"
    return None


def compiler_version() -> tuple[int, int]:
    """Return the version of the compiler that `compile_source` uses; (0, 0) for nvcc's."""
    library = nvrtc_library()
    if library is None:
        return 0, 0
    major, minor = ctypes.c_int(), ctypes.c_int()
    _check(library, library.nvrtcVersion(ctypes.byref(major), ctypes.byref(minor)))
    return major.value, minor.value


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


DEFAULT_DEVICE = "#define inline __device__ inline\n"
"""Stands for NVRTC's -default-device, which nvcc lacks, in source without headers, whose functions
are inline."""


def run_nvcc(compiler: str, source: str, arch: str) -> bytes:
    """Return the cubin of source; RuntimeError with the log if it does not compile."""
    if "#include" not in source:
        source = DEFAULT_DEVICE + source
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
def nvrtc_library() -> ctypes.CDLL | None:
    """The NVRTC of torch's CUDA version, from torch's packages or the system."""
    if torch.version.cuda is None:
        return None
    library = load(f"libnvrtc.so.{torch.version.cuda.split('.')[0]}")
    if library is not None:
        library.nvrtcGetErrorString.restype = ctypes.c_char_p
    return library


@cache
def include_folders() -> tuple[str, ...]:
    """Folders that together have the half precision headers and what they include."""
    roots = in_packages("*/include")
    compiler = shutil.which("nvcc")
    if compiler is not None:
        roots.append(os.path.join(os.path.dirname(os.path.dirname(compiler)), "include"))
    roots.append("/usr/local/cuda/include")
    folders = [f for root in roots for f in (root, os.path.join(root, "cccl")) if os.path.isdir(f)]
    if any(os.path.isfile(os.path.join(folder, "cuda_fp16.h")) for folder in folders):
        return tuple(dict.fromkeys(folders))
    return ()
