"""The `tvm` dialect: every operator that computes, as a TE compute function that Apache TVM
compiles.

It is the default everywhere (COMPILER). Add a kernel in the operator's family file with `@compute`.
Nothing here imports TVM itself: the family files do, and they are loaded by the first dispatch.
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


def ahead(device: Device) -> None:
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
    restorer=f"{__name__}.artifact",
    ahead=ahead,
)
