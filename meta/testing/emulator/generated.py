"""Kernels that TVM generates for CUDA, run on the CPU.

A function is scheduled, lowered and translated to CUDA source as for a GPU. Its host code runs as
it is, checks of arguments included, but for tensors that lie in the CPU's memory; what it launches
is `source.generated` of the CUDA source.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Mapping
from typing import Any

import torch
import tvm
import tvm_ffi
from tvm import tirx
from tvm.target import Target

from meta.dialect.core import CompiledKernel
from meta.dialect.tvm import cuda_source, launch, schedule_cuda
from meta.dialect.tvm.lower import NO_ALIAS, SCHEDULED
from meta.dialect.tvm.target import cuda
from meta.testing.emulator import compiler, source
from meta.testing.emulator.launching import EmulationError, Memory

TARGET = cuda()
_AXES = [f"{kind}.{axis}" for kind in ("blockIdx", "threadIdx") for axis in "xyz"]
_DEVICE_TYPE = 10  # the field of a DLTensor, as TVM's `tvm_struct_get` numbers them
_NUMBERS = {
    "double": ctypes.c_double,
    "float": ctypes.c_float,
    "int": ctypes.c_int32,
    "int64_t": ctypes.c_int64,
}
_CUDA = 2  # kDLCUDA
_memory: list[Memory] = []  # of the functions that run


def build(functions: Mapping[str, tirx.PrimFunc], target: Target) -> dict[str, CompiledKernel]:
    """Stands for `meta.dialect.tvm.build.build`."""
    return {
        name: CompiledKernel(emulated(function, target), None, 0)
        for name, function in functions.items()
    }


def emulated(function: tirx.PrimFunc, target: Target = TARGET) -> Any:
    """Return a function of CPU tensors and numbers that runs the CUDA kernels of a PrimFunc."""
    made = function
    if not (function.attrs and SCHEDULED in function.attrs):
        made = schedule_cuda.schedule(function, target)
    made, needs = cuda_source.as_parameters(cuda_source.exact(made))
    symbol = f"emulated_{tvm_ffi.structural_hash(made) % 2**64:x}"
    host, device = _split(made.with_attr("global_symbol", symbol), symbol, target)
    for text, kernels in device:
        _register(text, kernels)
    run = host[symbol]
    fresh = _written(function) if function.attrs and NO_ALIAS in function.attrs else ()

    def call(*values: Any) -> None:
        for i in fresh:
            _spoil(values[i])
        for value in values[len(function.params) :]:
            _spoil(value)
        tensors = [value for value in values if isinstance(value, torch.Tensor)]
        _memory.append(Memory(compiler.runtime(), tensors))
        try:
            run(*values)
        finally:
            _memory.pop()

    return launch.with_workspaces(call, needs)


def sources(function: tirx.PrimFunc, target: Target = TARGET) -> str:
    """Return the CUDA source of a PrimFunc."""
    made = schedule_cuda.schedule(function, target)
    made, _ = cuda_source.as_parameters(cuda_source.exact(made))
    _, device = _split(made.with_attr("global_symbol", "kernel"), "kernel", target)
    return "".join(text for text, _ in device)


def _split(function: tirx.PrimFunc, symbol: str, target: Target) -> tuple[Any, list[Any]]:
    """Return the host's module, and each device source with the launch parameters of its
    kernels.
    """
    building = sys.modules["tvm.tirx.build"]  # the package's attribute of that name is a function
    pipeline, finish_host, finish_device = tirx.get_default_tir_pipeline(target)
    with target:
        module = tirx.transform.BindTarget(target)(tvm.IRModule({symbol: function}))
        host, devices = building.split_host_device_mods(pipeline(module))
        host = finish_host()(host)
        device = []
        for kind, one in devices.items():
            lowered = finish_device()(one)
            text = building.codegen_build(lowered, kind).inspect_source()
            parameters = {
                str(f.attrs["global_symbol"]): [
                    str(p) for p in f.attrs["tirx.kernel_launch_params"]
                ]
                for f in lowered.functions.values()
            }
            device.append((text, parameters))
    host = tvm.IRModule({name: _for_cpu(f) for name, f in host.functions.items()}, attrs=host.attrs)
    return building.codegen_build(host, target.host), device


def _for_cpu(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Let host code take the CPU's tensors for CUDA's."""

    def call(node: tvm.ir.Call) -> Any:
        if node.op.name == "tirx.tvm_struct_get" and node.args[2].value == _DEVICE_TYPE:
            return tirx.const(_CUDA, "int32")
        if (
            node.op.name == "tirx.tvm_call_packed_lowered"
            and node.args[0].value == "__tvm_set_device"
        ):
            return tirx.const(0, "int32")
        return node

    return tvm_ffi.structural_map(function, (tvm.ir.Call, call))


def _written(function: tirx.PrimFunc) -> list[int]:
    """Return the positions of the parameters that a function writes."""
    written: set[Any] = set()
    tvm_ffi.structural_walk(
        function.body, (tirx.BufferStore, lambda store: written.add(store.buffer))
    )
    return [i for i, parameter in enumerate(function.params) if parameter in written]


def _spoil(tensor: torch.Tensor) -> None:
    """Fill a tensor with what shows if it is taken for a result: NaN, or -1."""
    tensor.view(-1).view(torch.uint8).fill_(255)


def _number(kind: str, value: Any) -> Any:
    return _NUMBERS[kind](value)


def _register(text: str, parameters: dict[str, list[str]]) -> None:
    """Let host code find the kernels of a source: functions that are no module's are global."""
    code, kernels = source.generated(text)
    library = compiler.library(code)
    for kernel in kernels:
        run, fibers = library[f"run_{kernel.name}"], "_sync" in text or "__syncthreads" in text

        def launch(
            *values: Any, kernel: source.Kernel = kernel, run: Any = run, fibers: bool = fibers
        ) -> None:
            count = len(kernel.parameters)
            extents = dict.fromkeys(_AXES, 1)
            extents.update(zip(parameters[kernel.name], values[count:], strict=True))
            grid, block = ([extents[a] for a in part] for part in (_AXES[:3], _AXES[3:]))
            if kernel.threads is not None and block[0] * block[1] * block[2] > kernel.threads:
                raise EmulationError(f"{kernel.name} is launched with more threads than it says")
            memory = _memory[-1]
            given = [
                memory.pointer(v.value) if kind.endswith("*") else _number(kind, v)
                for (_, kind), v in zip(kernel.parameters, values[:count], strict=True)
            ]
            places = [ctypes.cast(ctypes.pointer(g), ctypes.c_void_p) for g in given]
            memory.launch(run, grid, block, (ctypes.c_void_p * count)(*places), fibers)

        tvm_ffi.register_global_func(kernel.name, launch, override=True)
