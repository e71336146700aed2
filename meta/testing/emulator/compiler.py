"""Compiles C++ that stands for device code, each text once: libraries are kept with the package's
other caches.

`runtime.cpp` runs the threads, `device.h` is CUDA's language; both are small files beside this one.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from unittest import SkipTest

from meta.base.caches import cache_folder
from meta.base.errors import MetaError
from meta.testing.emulator.launching import EmulationError

HERE = Path(__file__).parent
FLAGS = (
    *("-std=c++17", "-O1", "-w", "-fPIC", "-fno-strict-aliasing", "-fexcess-precision=16"),
    "-fno-gnu-unique",  # shared arrays of inline functions belong to each library
)
HEADERS = ("runtime.h", "device.h")


class NoCompiler(MetaError, SkipTest):
    """There is no C++ compiler; a test that needs it is skipped."""


@cache
def compiler() -> str:
    """Return the C++ compiler; raises NoCompiler where there is none."""
    found = shutil.which("g++")
    if found is None:
        raise NoCompiler("the emulator of CUDA needs g++", hint="install g++ 12 or later")
    return found


@cache
def _prepared() -> tuple[Path, ctypes.CDLL]:
    """Return a folder for this version of the headers, with the header compiled, and the runtime
    loaded.
    """
    content = b"".join((HERE / name).read_bytes() for name in (*HEADERS, "runtime.cpp"))
    version = hashlib.sha256(content + " ".join(FLAGS).encode()).hexdigest()[:16]
    folder = cache_folder("emulator") / version
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name in HEADERS:
        _write(folder / name, (HERE / name).read_bytes())
    _compile(folder / "device.h.gch", HERE / "device.h", "-x", "c++-header")
    made = _compile(folder / "runtime.so", HERE / "runtime.cpp", "-shared")
    return folder, ctypes.CDLL(str(made), mode=ctypes.RTLD_GLOBAL)


def runtime() -> ctypes.CDLL:
    """Return the library of `runtime.cpp`."""
    return _prepared()[1]


def library(source: str) -> ctypes.CDLL:
    """Return C++ that includes ``device.h``, compiled and loaded."""
    folder, _ = _prepared()
    file = folder / hashlib.sha256(source.encode()).hexdigest()[:32]
    text, made = file.with_suffix(".cpp"), file.with_suffix(".so")
    if not made.exists():
        _write(text, source.encode())
        # To look into C++'s own libraries takes the linker a quarter of the time; the runtime has
        # loaded them.
        _compile(made, text, "-shared", "-nostdlib", "-I", str(folder), libraries=["-lgcc"])
    return ctypes.CDLL(str(made))


def _compile(result: Path, source: Path, *options: str, libraries: Sequence[str] = ()) -> Path:
    """Compile a file; another process may do the same at the same time."""
    if not result.exists():
        with tempfile.TemporaryDirectory(dir=result.parent) as folder:
            made = Path(folder) / result.name
            _run([compiler(), *FLAGS, *options, "-o", str(made), str(source), *libraries])
            os.replace(made, result)
    return result


def _run(command: Sequence[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise EmulationError(f"{' '.join(command)}\n{done.stderr[:2000]}")


def _write(file: Path, content: bytes) -> None:
    if not file.exists():
        descriptor, name = tempfile.mkstemp(dir=file.parent)
        with os.fdopen(descriptor, "wb") as part:
            part.write(content)
        os.replace(name, file)
