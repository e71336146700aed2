"""Kernels that fill a tensor of any shape with random numbers, without a dispatch for each shape:
what an eager draw and an initializer ask, since every dialect has the same numbers.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import cache, partial
from typing import Any, cast

import torch
from torch.autograd.graph import increment_version

from meta.base.device import Device
from meta.base.errors import ArgumentError
from meta.dialect.core.catalog import DIALECTS
from meta.runtime.inplace_writes import writable_buffer
from meta.runtime.ndarray import ndarray
from meta.runtime.random import default


def fill(random: Any, array: ndarray, *numbers: float) -> bool:
    """Fill an array with the numbers of ``random_normal`` or ``random_uniform``, in place; return
    whether it is compact and has a kernel. No other thread works for it, as for a copy.
    """
    device, dtype = array.device, array.dtype
    kernel = kernel_of(random, device.kind, dtype) if array.key.compact else None
    if kernel is None:
        return False
    refuse_capture(device)
    memory = writable_buffer(array, "fill()", "initialize outside")
    kernel(default.key(), *numbers, out=memory)
    increment_version(memory)  # whoever prepared its values sees that they are others
    return True


@cache
def kernel_of(random: Any, kind: str, dtype: str) -> Callable[..., None] | None:
    """Return what fills a tensor with the numbers of an operator on a kind of device, given a key
    and the operator's numbers; None for what dispatch decides. Modules are imported here.
    """
    if kind == "cpu" and dtype in FILLED:
        module = importlib.import_module("meta.dialect.torch.random")
        return cast("Callable[..., None]", getattr(module, random.name))
    if kind == "cuda" and dtype in FILLED and DIALECTS["cuda"].unavailable is None:
        module = importlib.import_module("meta.dialect.cuda.random")
        return partial(module.fill, random)
    return None


FILLED = {"float16", "bfloat16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8"}


def refuse_capture(device: Device) -> None:
    """Raise ArgumentError while somebody records a CUDA graph: each replay had the same numbers."""
    if device.kind == "cuda" and torch.cuda.is_current_stream_capturing():
        raise ArgumentError(
            "random numbers are drawn while a CUDA graph is recorded: each replay would have the "
            "same",
            found=f"a draw on {device}",
            hint="draw outside of the graph; programs of meta.vm.compile draw anew in each run",
        )
