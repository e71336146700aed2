"""The vendor's chip, its device in torch and its library of functions, for the folder that is read
or runs.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
from contextlib import nullcontext
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from meta.base.errors import DeviceError
from meta.dialect.vendors.jit import interprets
from meta.dialect.vendors.reading import reader

__all__ = [
    "HAS_TLE", "HAS_TLE_DEVICE_MESH", "_triton_version_at_least", "backend_not_support",
    "get_device_capability", "get_device_properties", "get_expand_config", "get_l2_cache_size",
    "get_sm_count", "has_triton_tle", "philox_backend_seed_offset", "use_c_extension",
]  # fmt: skip
use_c_extension = False


def torch_device_fn() -> Any:
    """Return the functions of torch for the vendor's device; of the CPU, what does nothing."""
    name = reader("the device is").vendor.device
    if name != "cpu":
        return getattr(torch, name)

    def guard(_: Any = None) -> Any:
        return nullcontext()

    return SimpleNamespace(
        device=guard, _DeviceGuard=guard, current_device=lambda: 0, synchronize=lambda: None,
        is_available=lambda: True, default_generators=[torch.default_generator],
        get_device_capability=lambda _=None: (0, 0),
        get_device_properties=lambda _=None: SimpleNamespace(
            name="cpu", multi_processor_count=os.cpu_count() or 1, L2_cache_size=1 << 20,
        ),
    )  # fmt: skip


def device() -> SimpleNamespace:
    """Return what a file asks of the vendor's device."""
    vendor = reader("the device is").vendor
    dtypes = vendor.dtypes

    def has(dtype: str) -> bool:
        return dtypes is None or dtype in dtypes

    return SimpleNamespace(
        name=vendor.device,
        vendor_name=vendor.name,
        vendor=vendor.name,
        dispatch_key=vendor.dispatch_key,
        support_fp64=has("float64"),
        support_bf16=has("bfloat16"),
        support_int64=has("int64"),
    )


def vendor_name() -> str:
    """Return the vendor's name."""
    return reader("the vendor is").vendor.name


def device_name() -> str:
    """Return what torch calls the vendor's device."""
    return reader("the device is").vendor.device


def vendor_module() -> ModuleType:
    """Return the package of the folder."""
    return reader("the package of the vendor is").package


def state() -> SimpleNamespace:
    """Return what ``runtime.backend._state`` is asked for."""
    return SimpleNamespace(vendor_module=vendor_module())


def tl_extra_shim() -> ModuleType:
    """Return the mathematical functions of the vendor's device library; where its Triton is not
    here, and where kernels are interpreted, those of the same name that Triton has for any device.
    """
    name = f"triton.language.extra.{reader('the device library is').vendor.triton_extra}"
    own = not interprets() and importlib.util.find_spec(name) is not None
    library = importlib.import_module(f"{name if own else 'triton.language.extra'}.libdevice")
    shim = ModuleType("tl_extra_shim")

    def get(function: str) -> Any:
        plain = function if hasattr(library, function) else function.removeprefix("fast_")
        return getattr(library, plain)

    vars(shim)["__getattr__"] = get
    return shim


def _has(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


HAS_TLE = _has("triton.experimental.tle")
HAS_TLE_DEVICE_MESH = False


def has_triton_tle(*version: int) -> bool:
    """Whether Triton has the extension TLE, and at least a version."""
    return HAS_TLE and _triton_version_at_least(*version)


def _triton_version_at_least(*version: int) -> bool:
    import triton

    return tuple(map(int, triton.__version__.split("+")[0].split(".")[:3])) >= version


def get_device_properties(index: int | None = None) -> Any:
    """Return what torch says of the vendor's device."""
    functions = torch_device_fn()
    return functions.get_device_properties(functions.current_device() if index is None else index)


def get_device_capability() -> tuple[int, int]:
    """Return major and minor version of the vendor's device."""
    found: tuple[int, int] = torch_device_fn().get_device_capability()
    return found


def get_sm_count() -> int:
    """Return the processors of the vendor's device."""
    return int(get_device_properties().multi_processor_count)


def get_l2_cache_size() -> int:
    """Return the bytes of the second cache of the vendor's device."""
    return int(get_device_properties().L2_cache_size)


def get_expand_config(op_name: str | None = None, file_path: str | None = None) -> Any:
    """Return what a YAML file states of an operator, or all that it states."""
    from meta.dialect.vendors.tune_configs import yaml_module

    with open(str(file_path), encoding="utf-8") as file:
        found = yaml_module().safe_load(file) or {}
    return found if op_name is None else found.get(op_name)


def backend_not_support(name: str, choices: Any) -> None:
    """Raise DeviceError for a device that a file does not know."""
    raise DeviceError(f"the vendor's file does not know the device {name!r}", expected=choices)


def philox_backend_seed_offset(increment: int, generator: Any = None) -> tuple[int, int]:
    """Return a seed and an offset of Philox, of which so many numbers are then used up.

    The generator of the CPU is no Philox: of it a new seed is drawn, and the offset is 0.
    """
    if generator is None:
        functions = torch_device_fn()
        generator = functions.default_generators[functions.current_device()]
    if generator.device.type == "cpu":
        return int(torch.randint(2**31, (), generator=generator)), 0
    state = generator.get_state()
    words = state.view(torch.int64)
    seed, offset = int(words[-2]), int(words[-1])
    words[-1] += -(-increment // 4) * 4
    generator.set_state(state)
    return seed, offset
