"""TVM's C++ runtime: what a compiled kernel needs to run, without TVM's Python package.

Importing the package brings the compiler and takes over a second; a program that finds its kernels
in the cache, or in the folder that it was saved to, does without.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import tvm_ffi
from tvm_ffi.libinfo import load_lib_ctypes

from meta.dialect.tvm.openmp import adopt

_RUNTIME, _CUDA_RUNTIME = "tvm_runtime", "tvm_runtime_cuda"


def load_library(path: str | os.PathLike[str]) -> Any:
    """Return the module in a shared library of compiled kernels. Loading it runs its code."""
    _runtime()
    module = tvm_ffi.load_module(os.fspath(path))
    adopt(path)
    return module


@cache
def _runtime() -> None:
    """Load the runtime libraries; TVM's own import does the same, whichever comes first."""
    if sys.modules.get("tvm") is not None:
        return
    spec = find_spec("tvm")  # says where the libraries of a source build are
    folders = [Path(p) / "lib" for p in (spec and spec.submodule_search_locations) or ()]
    load_lib_ctypes("apache-tvm", _RUNTIME, "RTLD_GLOBAL", extra_lib_paths=folders)
    if torch.cuda.is_available():
        load_lib_ctypes("apache-tvm", _CUDA_RUNTIME, "RTLD_GLOBAL", extra_lib_paths=folders)
