"""What kernels with `tensor_core.cuh`, or instructions like its, need of dtypes and devices."""

from __future__ import annotations

from meta.base.device import Device
from meta.dialect.core import decline_if
from meta.runtime import gpu_properties

HALF = {"float16": '"f16"', "bfloat16": '"bf16"'}
"""How instructions name the dtypes."""


def require_tensor_cores(device: Device) -> None:
    """Decline a device whose tensor cores do not multiply halves and TensorFloat-32."""
    old = gpu_properties.target_of(device).capability < (8, 0)
    decline_if(old, "made for tensor cores of compute capability 8.0 or later")
