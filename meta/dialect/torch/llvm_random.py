"""Random numbers on the CPU: loops over blocks of Philox in LLVM's language, `LANES` at a time.

A kernel fills an array with the elements that follow the block ``first``; it is called without
TVM, whose compiler makes machine code of the text once, for all dtypes and shapes. That is kept on
disk and loaded without TVM's Python package, which takes a second to import. A large array is
filled on as many threads as ATen has; they end with the call, so that no thread waits in a loop for
the next draw.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import os
import platform
import struct
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from meta.base.errors import MetaWarning
from meta.dialect.core import KernelStore
from meta.dialect.torch.llvm_vectors import LANES, Text, Vector, VectorReals
from meta.runtime import variates
from meta.runtime.philox import Words, multiple, philox4x32, round_keys

GRAIN = 2**20
"""Elements for which a thread is worth starting: that takes a tenth of the time of filling them."""
_PARAMETERS = 3
_SIZE = 8 * (1 + _PARAMETERS)
BYTES = {"i8": 1, "i64": 8, "float": 4, "double": 8}


class _Keyed(Words):
    """Words of which the keys of all rounds are at hand, by what is added to the first."""

    def __init__(self, keys: dict[tuple[str, int], Vector]) -> None:
        self.keys = keys

    def sum(self, word: Vector, number: int) -> Vector:
        """Return the key of a round."""
        return self.keys[word.name, number]


class _Kernel:
    """A kernel under construction: its text, the four words of its blocks, and parameters."""

    def __init__(self) -> None:
        self.text = Text()
        block = self._splat("i64", "%block")
        steps = f"<{', '.join(f'i64 {i}' for i in range(LANES))}>"
        block = self.text.value("i64", f"add {block.type} {block.name}, {steps}")
        numbers = round_keys((0, 0))
        names = [self._splat("i64", f"%key{i}") for i in range(len(numbers))]
        keys = {(names[i % 2].name, n): names[i] for i, n in enumerate(numbers)}
        zero = block & 0
        counter = (*Words().split(block), zero, zero)
        self.words = philox4x32(counter, (names[0], names[1]), lambda *w: w, _Keyed(keys))

    def _splat(self, kind: str, scalar: str) -> Vector:
        empty = f"<{LANES} x {kind}> poison"
        alone = self.text.value(kind, f"insertelement {empty}, {kind} {scalar}, i64 0")
        spread = f"{empty}, <{LANES} x i32> zeroinitializer"
        return self.text.value(kind, f"shufflevector {alone.type} {alone.name}, {spread}")

    def parameter(self, number: int, kind: str) -> Vector:
        """Return a parameter of the kernel: an integer, or a real number in double precision."""
        if kind != "float":
            return self._splat(kind, f"%{kind}{number}")
        return self._splat("double", f"%double{number}").cast("fptrunc", "float")

    def function(self, name: str, results: Sequence[Vector]) -> str:
        """Return the function that stores these elements of each block, in this order."""
        while len(results) > 1:  # the first half of the elements with the second, by turns
            half = len(results) // 2
            pairs = zip(results[:half], results[half:], strict=True)
            results = [a.interleaved(b) for a, b in pairs]
        (found,) = results
        loads = [
            f"  %at_{n} = getelementptr i8, ptr %values, i64 {at}\n"
            f"  %{n} = load {kind}, ptr %at_{n}, align 1"
            for n, kind, at in [
                *((f"half{i}", "i32", 4 * i) for i in range(2)),
                *((f"{kind}{i}", kind, 8 * (1 + i))
                  for i in range(_PARAMETERS) for kind in ("i64", "double")),
            ]
        ]  # fmt: skip
        for i, number in enumerate(round_keys((0, 0))):
            loads.append(f"  %word{i} = add i32 %half{i % 2}, {number}")
            loads.append(f"  %key{i} = zext i32 %word{i} to i64")
        return _FUNCTION.format(
            name=name, loads="\n".join(loads), body="\n".join(self.text.lines), type=found.type,
            found=found.name, kind=found.kind, count=found.lanes, lanes=LANES,
            bytes=BYTES[found.kind],
        )  # fmt: skip


_FUNCTION = """
define void @{name}(ptr %out, i64 %first, i64 %count, ptr %values) {{
entry:
  %rest = alloca {type}, align 64
{loads}
  br label %loop
loop:
  %at = phi i64 [0, %entry], [%next, %whole]
  %block = phi i64 [%first, %entry], [%next_block, %whole]
  %left = sub i64 %count, %at
  %is_over = icmp sle i64 %left, 0
  br i1 %is_over, label %done, label %draw
draw:
  %next = add i64 %at, {count}
  %next_block = add i64 %block, {lanes}
{body}
  %to = getelementptr {kind}, ptr %out, i64 %at
  %fits = icmp sge i64 %left, {count}
  br i1 %fits, label %whole, label %part
whole:
  store {type} {found}, ptr %to, align {bytes}
  br label %loop
part:
  store {type} {found}, ptr %rest, align 64
  %bytes = mul i64 %left, {bytes}
  call void @llvm.memcpy.p0.p0.i64(ptr %to, ptr %rest, i64 %bytes, i1 false)
  br label %done
done:
  ret void
}}
"""


def _uniform(kernel: _Kernel, kind: str) -> list[Vector]:
    """Parameters: the length of the interval, its first number, and the one behind it."""
    length, low, high = (kernel.parameter(i, kind) for i in range(3))
    drawn = [u * length + low for u in variates.uniform(kernel.words, VectorReals(kind))]
    return [y.at_least(high).select(low, y) for y in drawn]


def _normal(kernel: _Kernel, kind: str) -> list[Vector]:
    """Parameters: the standard deviation, and the mean."""
    std, mean = (kernel.parameter(i, kind) for i in range(2))
    return [z * std + mean for z in variates.normal(kernel.words, VectorReals(kind))]


def _integers(kernel: _Kernel, count: int) -> list[Vector]:
    """Parameters: the first integer, and how many there are, in words, of which ``count`` are not
    0.
    """
    first, *words = (kernel.parameter(i, "i64") for i in range(count + 1))
    return [multiple(kernel.words, *words) + first]


def _mask(kernel: _Kernel, kind: str) -> list[Vector]:
    """Parameter: the least word that is kept."""
    least = kernel.parameter(0, "i64")
    return [word.at_least(least).cast("zext", kind) for word in kernel.words]


KERNELS: dict[str, tuple[Callable[[_Kernel, Any], list[Vector]], Any, torch.dtype]] = {
    "uniform_float32": (_uniform, "float", torch.float32),
    "uniform_float64": (_uniform, "double", torch.float64),
    "normal_float32": (_normal, "float", torch.float32),
    "normal_float64": (_normal, "double", torch.float64),
    "integers_below_2_32": (_integers, 1, torch.int64),
    "integers": (_integers, 2, torch.int64),
    "mask": (_mask, "i8", torch.bool),
}
"""What writes each kernel, a parameter of that, and the dtype of the array that it fills."""


def module_text(target: str) -> str:
    """Return the module of all kernels for a target of TVM's."""
    functions, declarations = [], {"declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)"}
    for name, (body, of, _) in KERNELS.items():
        kernel = _Kernel()
        functions.append(kernel.function(name, body(kernel, of)))
        declarations |= kernel.text.declarations
    flags = '!llvm.module.flags = !{!0}\n!0 = !{i32 4, !"tvm_target", !"%s"}\n'
    quoted = target.replace('"', r"\22")
    return "\n".join([*functions, *sorted(declarations), flags % quoted])


INSTRUCTIONS = {
    "AVX2": ("avx2", "fma"),
    "AVX512": ("avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl"),
}
"""What ATen has asked the processor for, by what it says that it uses."""


def _target() -> str:
    """Return the target of TVM's for the instructions that ATen uses here.

    Not the processor's name: under a hypervisor that promises too much, and what TVM reads of its
    features needs TVM's Python package.
    """
    found = INSTRUCTIONS.get(torch.backends.cpu.get_cpu_capability(), ())
    x86 = {"mcpu": "x86-64", "mattr": [f"+{name}" for name in found]}
    return json.dumps({"kind": "llvm", **(x86 if found else {"mcpu": "generic"})})


def _compile(target: str) -> bytes:
    """Return the library of the kernels."""
    if _linker().command() is None:
        raise OSError(f"there is no linker ({', '.join(_linker().NAMES)})")
    # The libraries of TVM by themselves load in a tenth of the time, and end a process that imports
    # TVM later, after scipy.
    importlib.import_module("tvm")
    ffi, linker = importlib.import_module("tvm_ffi"), _linker()
    triple = ffi.get_global_func("target.llvm_get_system_triple")()
    code = linker.object_of(module_text(json.dumps({**json.loads(target), "mtriple": triple})))
    with linker.in_memory(code) as object_file, tempfile.TemporaryDirectory() as folder:
        linked = Path(folder, "random.so")
        subprocess.run(
            [*linker.command(), "-o", os.fspath(linked), linker.path_of(object_file)],
            check=True,
            capture_output=True,
            pass_fds=(object_file,),
        )
        return linked.read_bytes()


def _linker() -> Any:
    """Return the module that links, which needs TVM's packages."""
    return importlib.import_module("meta.dialect.tvm.linker")


def _key(target: str) -> str:
    return f"{version('apache-tvm')}, {platform.machine()}\n{module_text(target)}"


libraries: KernelStore[str, bytes] = KernelStore("kernels", _compile, _key)
"""Libraries of the kernels, by target."""
Run = Callable[[int, int, int, bytes], None]


@cache
def kernels() -> dict[str, Run]:
    """Return the kernels by name, compiled now if they never were: functions of an address, the
    first block, how many elements, and a struct of the key and parameters. None where they cannot
    be compiled, with a MetaWarning unless TVM is not there.
    """
    if sys.platform != "linux" or find_spec("tvm") is None:
        return {}
    try:
        return _loaded()
    except (OSError, subprocess.SubprocessError, RuntimeError) as error:
        warnings.warn(
            f"random numbers are drawn by ATen, which takes longer: {error}",
            MetaWarning,
            stacklevel=2,
        )
        return {}


def _loaded() -> dict[str, Run]:
    """Return the functions of the library, which is loaded from memory: what was read is run."""
    file = os.memfd_create("meta-random")
    try:
        path = f"/proc/self/fd/{file}"
        Path(path).write_bytes(libraries(_target()))
        library = ctypes.CDLL(path)
    finally:
        os.close(file)
    found: dict[str, Run] = {}
    for name in KERNELS:
        function = getattr(library, name)
        function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_char_p)
        function.restype = None
        found[name] = function
    return found


def fill(
    name: str, out: torch.Tensor, key: int, each: int, parameters: Sequence[float], begin: int = 0
) -> None:
    """Fill a compact tensor on the CPU.

    name: of the kernel. each: the elements of a block. parameters: integers or real numbers, as the
    kernel has them. begin: the number of the first block.
    """
    kinds = "".join(["d" if isinstance(p, float) else "q" for p in parameters])
    values = struct.pack(f"<q{kinds}", key, *parameters).ljust(_SIZE, b"\0")
    run, at, size, count = kernels()[name], out.data_ptr(), out.itemsize, out.numel()
    shares = min(torch.get_num_threads(), count // GRAIN)
    if shares < 2:
        run(at, begin, count, values)
        return
    blocks = -(-count // (each * shares))

    def share(number: int) -> None:
        first = number * blocks * each
        part = min(count - first, blocks * each)
        run(at + first * size, begin + number * blocks, part, values)

    with ThreadPoolExecutor(shares, thread_name_prefix="meta-random") as pool:
        list(pool.map(share, range(shares)))
