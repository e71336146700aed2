"""Converters of operators that only say something about their argument: the identity."""

from __future__ import annotations

from typing import Any

from meta.frontend.relay.registry import relay


@relay(
    "annotation.bitpack_end",
    "annotation.bitpack_start",
    "annotation.cast_hint",
    "annotation.checkpoint",
    "annotation.stop_fusion",
    "annotation.with_funcid",
    "copy",
)
def identity(data: Any) -> Any:
    """Marks for passes of TVM."""
    return data


@relay("annotation.compiler_begin", "annotation.compiler_end", ignore=("compiler",))
def compiler_region(data: Any) -> Any:
    """Marks what TVM would hand to another compiler; here the program stays one."""
    return data


@relay("debug", ignore=("debug_func",))
def debug(data: Any) -> Any:
    """The function that TVM would call is of the process that wrote the file."""
    return data


@relay(
    "on_device",
    ignore=("constrain_body", "constrain_result", "virtual_device", "device_type", "is_fixed"),
)
def on_device(data: Any) -> Any:
    """Where a program runs is decided where it is run, not in its file."""
    return data


@relay(
    "device_copy",
    ignore=("dst_virtual_device", "src_virtual_device", "src_dev_type", "dst_dev_type"),
)
def device_copy(data: Any) -> Any:
    """As `on_device`: the whole program runs on one device."""
    return data
