"""Kernels on the CPU as object files, which a library without Python is linked of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import tirx
from tvm.target.codegen import llvm_get_cpu_features

from meta.base.device import Device
from meta.dialect.core import OpEnv
from meta.dialect.core.openv import ObjectCode
from meta.dialect.tvm.build import object_files
from meta.dialect.tvm.launch import LaunchPlan
from meta.dialect.tvm.linker import MATCH, object_of
from meta.dialect.tvm.target import for_device


def refusal(kernel: OpEnv) -> str | None:
    """Return why a kernel cannot be called from C, or None."""
    launch: LaunchPlan = kernel.source[2]
    if launch.key_after is not None:
        return "it draws random numbers"
    return None if launch.lists is None else "it takes lists of tensors"


def object_code(kernels: Sequence[OpEnv], device: Device) -> ObjectCode:
    """Return the code of kernels that `refusal` lets through, compiled now for the processor of a
    device, or what META_CPU_TARGET says.
    """
    target = for_device(device)
    functions: dict[Any, str] = {}
    for kernel in kernels:
        functions.setdefault(kernel.source[0], f"kernel{len(functions)}")
    named: dict[str, tirx.PrimFunc] = {name: function for function, name in functions.items()}
    files = object_files(named, target) if named else []
    return ObjectCode(
        (*files, object_of(MATCH)),
        tuple(f"__tvm_ffi_{functions[kernel.source[0]]}" for kernel in kernels),
        tuple(kernel.source[2].repeated for kernel in kernels),
        tuple(map(str, llvm_get_cpu_features(target))),
    )
