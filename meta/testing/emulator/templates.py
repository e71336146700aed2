"""Kernels of the `template` dialect, run on the CPU, on tensors of the CPU.

In a block of `emulated` the dialect serves the CPU: dispatch, compiled programs and measuring ask
it as they do on a GPU.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any
from unittest import mock

import torch

from meta.dialect.core.preference import forget
from meta.dialect.cuda import cubin
from meta.dialect.template import launcher, template
from meta.dialect.template.device_code import Kernel, blanked, kernels_of
from meta.dialect.template.host_values import plain
from meta.runtime import cuda_driver, gpu_properties, nvrtc
from meta.testing.emulator import compiler, source
from meta.testing.emulator.driver import emulated_driver, loaded
from meta.testing.emulator.launching import Memory

_DEFINITION = re.compile(
    r'extern "C" __global__\s+void\s+(?:__launch_bounds__\s*\([^)]*\)\s*)?(\w+)\s*\('
)
_CAST = re.compile(r"\((?:const )?(\w+) ?\*\)|reinterpret_cast<(?:const )?(\w+) ?\*>")
_DYNAMIC = re.compile(r"extern __shared__ (\w+) (\w+)\[\];")
_SHARED = re.compile(r"__shared__ (\w+) (\w+)\[([^\]]+)\];")
_AMD = "#define __hip_bfloat16 nv_bfloat16\n#define __hip_bfloat162 nv_bfloat162\n"
_NUMBERS = {"bool", "float", "double"} | {
    f"{kind}{bits}_t" for kind in ("int", "uint") for bits in (8, 16, 32, 64)
}
_memory: list[Memory] = []  # of the kernels that run


def as_cpp(text: str, shared: int) -> tuple[str, dict[str, Kernel]]:
    """Return device code as C++ for `device.h`, and its kernels."""
    code = re.sub(r"(?m)^#include.*$", "", blanked(text.removeprefix(nvrtc.PROLOGUE)))
    kernels = kernels_of(code)
    for match in reversed(list(_DEFINITION.finditer(code))):
        end = code.index(")", match.end())
        given = ", ".join(f"{_checked(t)} {n}" for t, n in kernels[match[1]].parameters)
        code = f"{code[: match.start()]}static void {match[1]}({given}{code[end:]}"
    code = _DYNAMIC.sub(rf"static \1 \2[{shared} / sizeof(\1) + 1];", code)
    code = _SHARED.sub(r"SHARED(\1, \2, \3);", code)
    code = _CAST.sub(lambda m: f"(Pointer<{m[1]}>)" if m[1] else f"Pointer<{m[2]}>", code)
    entries = []
    for kernel in kernels.values():
        taken = [f"*({_checked(t)}*)a[{i}]" for i, (t, _) in enumerate(kernel.parameters)]
        entries.append(source.ENTRY.format(name=kernel.name, arguments=", ".join(taken)))
    return source.INCLUDE + _AMD + code + "".join(entries), kernels


def _checked(type_: str) -> str:
    found = plain(type_)
    return f"Pointer<{found[:-1]}>" if found.endswith("*") else found


class Function:
    """The handle of a kernel for `emulated_driver`."""

    def __init__(self, text: str, name: str, shared: int) -> None:
        compiler.runtime()
        code, kernels = as_cpp(text, shared)
        self._kernel, self._run = kernels[name], compiler.library(code)[f"run_{name}"]
        self._fibers = "_sync" in text or "__syncthreads" in text

    def __call__(self, grid: Sequence[int], block: Sequence[int], addresses: Any) -> None:
        """Run all threads; pointers are checked."""
        memory, places, held = _memory[-1], [], []
        for i, (type_, _) in enumerate(self._kernel.parameters):
            if plain(type_) in _NUMBERS:
                places.append(addresses[i])
                continue
            held.append(memory.pointer(ctypes.c_uint64.from_address(addresses[i]).value))
            places.append(ctypes.addressof(held[-1]))
        memory.launch(
            self._run, grid, block, (ctypes.c_void_p * len(places))(*places), self._fibers
        )


function_of = lru_cache(None)(Function)
_launch = launcher.Runner.__call__


def _with_memory(runner: launcher.Runner, *values: Any) -> None:
    """Launch kernels that may access the tensors of the call, and nothing else."""
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    for place in runner.source.written:
        if runner.source.values[place][0].startswith("out"):
            _fill_with_ones(values[place])  # shows what is not written
    _memory.append(Memory(compiler.runtime(), tensors))
    try:
        _launch(runner, *values)
    finally:
        _memory.pop()


def _fill_with_ones(x: torch.Tensor) -> None:
    bits = torch.full((x.numel() * x.element_size(),), 255, dtype=torch.uint8)
    x.copy_(bits.view(x.dtype).view(x.shape))


@contextmanager
def emulated() -> Iterator[None]:
    """Let the dialect serve the CPU. What stands for machine code is the text, which is kept as
    that is.
    """
    compiler.compiler()
    devices, unavailable = template.devices, template.unavailable
    template.devices, template.unavailable = ("cuda", "cpu"), None
    _forget()
    with (
        mock.patch.object(nvrtc, "compile_source", lambda text, arch: text.encode()),
        mock.patch.object(nvrtc, "compiler_version", lambda: (0, -1)),
        mock.patch.object(gpu_properties, "query", lambda device: gpu_properties.DEFAULT),
        mock.patch.object(cuda_driver, "load", loaded_code),
        emulated_driver((-1,)),
        mock.patch.object(launcher.Runner, "__call__", _with_memory),
    ):
        try:
            yield
        finally:
            template.devices, template.unavailable = devices, unavailable
            _forget()


def loaded_code(code: bytes, name: str, device: int, shared: int) -> cuda_driver.Function:
    return replace(loaded(function_of(code.decode(), name, shared), shared), device=device)


def _forget() -> None:
    forget()
    cubin.cubins.forget()
    cubin.function.cache_clear()


def pytest_configure(config: Any) -> None:
    """As a plugin (``pytest -p meta.testing.emulator.templates``): without a GPU the dialect serves
    the CPU.
    """
    if not torch.cuda.is_available():
        block = emulated()
        block.__enter__()
        config.add_cleanup(lambda: block.__exit__(None, None, None))
