"""Which TVM target the kernels of a device are compiled for.

To support another kind of device, add a branch to `for_device`.
"""

from __future__ import annotations

from functools import cache

import tvm
from tvm.target import Target
from tvm.target.codegen import llvm_get_cpu_features, llvm_get_system_cpu, llvm_get_system_triple

from meta.base import config
from meta.base.device import Device, require
from meta.base.errors import ArgumentError
from meta.runtime import gpu_properties
from meta.runtime.gpu_properties import GPUProperties


def for_device(device: Device) -> Target:
    """Return the target of kernels that run on ``device``, its host target included.

    The CPU's is this machine's processor, or what ``META_CPU_TARGET`` says: a target kind
    ("llvm"), a tag, or a JSON object such as ``{"kind": "llvm", "mcpu": "x86-64-v3"}``.
    Raises DeviceError for a device that is absent and ArgumentError for a text that is no target.
    """
    if device.kind == "cpu":
        return _cpu(config.get("META_CPU_TARGET"))
    return _cuda_device(require(device), config.get("META_CPU_TARGET"))


def cuda(gpu: GPUProperties = gpu_properties.DEFAULT, host: str = "") -> Target:
    """Return the target of an NVIDIA GPU, present or not."""
    fields: dict[str, str | int] = {
        "kind": "cuda",
        "arch": gpu.arch,
        "max_threads_per_block": gpu_properties.THREADS_PER_BLOCK,
        "max_num_threads": gpu_properties.THREADS_PER_BLOCK,
        "max_shared_memory_per_block": gpu_properties.SHARED_MEMORY,
        "thread_warp_size": 32,
        "l2_cache_size_bytes": gpu.l2_cache,
        "model": str(gpu.processors),  # TVM has no field for this, and it is part of a kernel's key
    }
    return Target(fields, host=_cpu(host))


def processors() -> int:
    """Return how many multiprocessors the GPU of the current target has.

    The target is that of the innermost ``with target``; where there is none, the default chip's.
    """
    target = Target.current(allow_none=True)
    stated = None if target is None else target.attrs.get("model")
    return int(stated) if stated and str(stated).isdigit() else gpu_properties.DEFAULT.processors


@cache
def _cuda_device(device: Device, host: str) -> Target:
    return cuda(gpu_properties.query(device.ordinal), host)


@cache
def _cpu(text: str) -> Target:
    if not text:
        return _host()
    try:
        target = Target(text)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ArgumentError(
            "META_CPU_TARGET is not a TVM target",
            expected='a kind, a tag or a JSON object, for example "llvm"',
            found=f"{text!r}: {str(error).splitlines()[-1]}",
        ) from error
    if target.kind.name != "llvm":
        raise ArgumentError("META_CPU_TARGET is not a CPU target", expected="llvm", found=text)
    return target


def _host() -> Target:
    """This machine's processor, restricted to the features that it really has.

    LLVM names the processor by its model number. Under a hypervisor that masks features the name
    promises too much, and the kernel dies of an illegal instruction; so what the name implies and
    the machine lacks is switched off. Features beyond the name (AVX512-FP16, AMX) stay off: no
    kernel needs them, and half precision is then computed in float32, as torch does.
    """
    fields = {"kind": "llvm", "mtriple": llvm_get_system_triple(), "mcpu": llvm_get_system_cpu()}
    features = tvm.get_global_func("tvm.codegen.llvm.GetHostCPUFeatures", allow_missing=True)
    present = dict(features()) if features is not None else {}
    if present:  # empty where LLVM cannot ask the processor; the name is then all there is
        implied = llvm_get_cpu_features(Target(fields))
        missing = sorted(str(name) for name in implied if name in present and not present[name])
        if present.get("avx512f"):
            missing.append("prefer-256-bit")  # measured: 512-bit tanh and sigmoid are 1.3x faster
        if missing:
            fields["mattr"] = [f"-{name}" for name in missing]
    return Target(fields)
