"""What vendors' files import from FlagGems, by the names that it has there: each module of
``flag_gems`` and the modules here that have its names. The implementations are `meta`'s own.

A name that is in none of them is unavailable, and so is what is defined with it. Of
``flag_gems.ops`` there are the operators of ATen.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

_CHIP = ("machine",)
_UTILS = ("tuner", "pointwise", "shapes", "machine", "buffers", "codegen", "functions")
MODULES: Mapping[str, tuple[str, ...]] = {
    "backend_utils": (),
    "flag_gems": _CHIP,
    "flag_gems.config": _CHIP,
    "flag_gems.fused": (),
    "flag_gems.ops": (),
    "flag_gems.runtime": _CHIP,
    "flag_gems.runtime.backend": _CHIP,
    "flag_gems.runtime.backend.backend_utils": _CHIP,
    "flag_gems.runtime.commom_utils": ("codegen",),
    "flag_gems.runtime.common": ("codegen",),
    "flag_gems.runtime.error": _CHIP,
    "flag_gems.utils": _UTILS,
    "flag_gems.utils.code_cache": ("buffers",),
    "flag_gems.utils.code_utils": ("buffers",),
    "flag_gems.utils.codegen_config_utils": ("codegen",),
    "flag_gems.utils.device_info": _CHIP,
    "flag_gems.utils.libentry": ("tuner",),
    "flag_gems.utils.limits": ("functions",),
    "flag_gems.utils.pointwise_dynamic": ("pointwise", "codegen", "buffers"),
    "flag_gems.utils.random_utils": ("machine", "functions"),
    "flag_gems.utils.shape_utils": ("shapes",),
    "flag_gems.utils.tensor_wrapper": ("buffers",),
    "flag_gems.utils.triton_lang_extension": ("functions",),
    "flag_gems.utils.triton_lang_helper": _CHIP,
    "flag_gems.utils.triton_version_utils": _CHIP,
    "flag_gems.utils.type_utils": ("shapes",),
}
_OF_CHIP = {
    "_state": "state", "device": "device", "tl_extra_shim": "tl_extra_shim",
    "torch_device_fn": "torch_device_fn", "vendor_module": "vendor_module",
    "vendor_name": "vendor_name",
}  # fmt: skip
"""Names whose value is the folder's: the functions of `machine` that return it."""


def has_module(name: str) -> bool:
    """Whether there is a module of FlagGems' idiom of a name."""
    above, _, last = name.rpartition(".")
    return name in MODULES or (above in ("flag_gems.ops", "flag_gems.fused") and last != "*")


def attribute(module: str, name: str) -> Any:
    """Return what a module of FlagGems has by a name; AttributeError for what `meta` lacks."""
    if name in ("VendorInfoBase", "VendorDescriptor"):
        return import_module("meta.dialect.vendors.vendor").described
    if module.startswith("flag_gems.ops"):
        return _operator(module, name)
    if module == "flag_gems.runtime" and name in ("get_tuned_config", "get_heuristic_config"):
        return getattr(import_module("meta.dialect.vendors.reading"), name)
    chip = MODULES[module][:1] == _CHIP or module == "flag_gems.utils"
    if chip and name in _OF_CHIP:
        what = "device_name" if (module, name) == ("flag_gems", "device") else _OF_CHIP[name]
        return getattr(import_module(f"{__name__}.machine"), what)()
    for one in MODULES[module]:
        found = import_module(f"{__name__}.{one}")
        if name in found.__all__:
            return getattr(found, name)
    if module == "flag_gems":
        return _operator(module, name)
    raise AttributeError(f"meta does not have {name!r} of {module}")


def _operator(module: str, name: str) -> Callable[..., Any]:
    functions = import_module(f"{__name__}.functions")
    if name in functions.__all__ and name != module.rpartition(".")[2]:
        found: Callable[..., Any] | None = getattr(functions, name)
    else:
        found = import_module(f"{__name__}.operators").operator(name)
    if found is None:
        raise AttributeError(f"{name!r} of {module} is no operator of ATen")
    return found
