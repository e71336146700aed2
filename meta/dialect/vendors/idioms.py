"""What files in FlagGems' layout import, while they are read: `spoken`.

Such a file says ``from backend_utils import VendorInfoBase`` and ``from flag_gems import runtime``.
The modules that it means are there while the folder of a vendor is imported, and are gone
afterwards. They hold what the layout needs and no more: another import is an error of the file. A
`flag_gems` that is installed is left alone.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from types import ModuleType, SimpleNamespace
from typing import Any, Protocol

import torch

from meta.base.errors import UnknownName
from meta.base.registry import nearest
from meta.dialect.vendors.jit import interprets
from meta.dialect.vendors.vendor import Vendor, described


class Launches(Protocol):
    """The configurations and heuristics of the folder that is being read."""

    vendor: Vendor

    def configs(self, name: str) -> tuple[Mapping[str, Any], ...] | None:
        """Return the configurations of a name, None if there are none."""

    def heuristics(self, name: str) -> Mapping[str, Callable[..., Any]] | None:
        """Return the heuristics of a name, None if there are none."""

    def names(self) -> list[str]:
        """Return the names of which there are any."""


_reading: ContextVar[Launches | None] = ContextVar("meta_reading_vendor", default=None)
_lock = threading.RLock()


@contextmanager
def spoken(launches: Launches | None = None) -> Iterator[None]:
    """Let the modules of FlagGems' idiom be importable in a ``with`` block. ``launches``: what
    `get_tuned_config` and `get_heuristic_config` are asked for.
    """
    with _lock:  # sys.modules is everybody's
        ours = _modules()
        before = {name: sys.modules.get(name) for name in ours}
        sys.modules.update(ours)
        token = _reading.set(launches)
        try:
            yield
        finally:
            _reading.reset(token)
            for name, module in before.items():
                if module is not None:
                    sys.modules[name] = module
                elif sys.modules.get(name) is ours[name]:
                    del sys.modules[name]


def reading() -> Launches | None:
    """Return the folder that is being read here, None if none is."""
    return _reading.get()


def get_tuned_config(name: str) -> list[Any]:
    """Return the configurations of a name as `triton.Config`, for ``triton.autotune``: those of
    the architecture, else of the vendor, whose folder is being read.

    Where kernels are interpreted, nothing is timed, and there is the first one only. Raises
    UnknownName for a name that the folder does not have, and outside of a vendor's folder.
    """
    import triton

    found = _own(name, "configurations", "tune_configs.yaml", lambda own: own.configs(name))
    chosen = found[:1] if interprets() else found
    return [triton.Config(**config) for config in chosen]


def get_heuristic_config(name: str) -> Mapping[str, Callable[..., Any]]:
    """Return the heuristics of a name, for ``triton.heuristics``; otherwise as
    `get_tuned_config`.
    """
    file = "heuristics_config_utils.py"
    found: Mapping[str, Callable[..., Any]] = _own(
        name, "heuristics", file, lambda own: own.heuristics(name)
    )
    return found


def _own(name: str, what: str, file: str, get: Callable[[Launches], Any]) -> Any:
    own = reading()
    if own is None:
        raise UnknownName(
            f"the {what} of {name!r} are asked for outside of the folder of a vendor",
            hint="ask in a file of ops/, when it is imported",
        )
    found = get(own)
    if found is None:
        raise UnknownName(
            f"the vendor {own.vendor.name!r} has no {what} of {name!r}",
            expected=f"an entry in its {file}; nothing is taken from other vendors",
            hint=nearest(name, own.names()),
        )
    return found


def _modules() -> dict[str, ModuleType]:
    """Return the modules of the idiom, by name."""
    describing = {"VendorInfoBase": described, "VendorDescriptor": described}
    found = {"backend_utils": _module("backend_utils", describing)}
    if _has_flag_gems():
        return found
    runtime = {
        "get_tuned_config": get_tuned_config,
        "get_heuristic_config": get_heuristic_config,
    }
    lazy = {"torch_device_fn": _device_functions, "device": _device}
    tuners = {"libentry": libentry, "libtuner": libtuner}
    languages = {
        "triton_lang_extension": lambda: importlib.import_module("triton.language"),
        "tl_extra_shim": _extra,
    }
    found |= {
        "flag_gems": _module("flag_gems", {}),
        "flag_gems.runtime": _module("flag_gems.runtime", runtime, lazy),
        "flag_gems.runtime.backend": _module("flag_gems.runtime.backend", {}),
        "flag_gems.runtime.backend.backend_utils": found["backend_utils"],
        "flag_gems.utils": _module("flag_gems.utils", tuners, languages),
        "flag_gems.utils.libentry": _module("flag_gems.utils.libentry", tuners),
    }
    for name, module in found.items():
        above, _, last = name.rpartition(".")
        if above and last != "libentry":
            setattr(found[above], last, module)
    return found


def _has_flag_gems() -> bool:
    if "flag_gems" in sys.modules:
        return True
    return importlib.util.find_spec("flag_gems") is not None


def _module(
    name: str, attributes: Mapping[str, Any], lazy: Mapping[str, Callable[[], Any]] = {}
) -> ModuleType:
    """Return a module of attributes, of which some are made when they are asked for."""
    made = ModuleType(name)
    made.__path__ = []

    def get(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if attribute not in lazy:
            raise ImportError(
                f"{name} has no {attribute!r} here: meta stands in for FlagGems while the folder "
                f"of a vendor is read, with {sorted({*attributes, *lazy})}"
            )
        return lazy[attribute]()

    vars(made).update(attributes, __getattr__=get)
    return made


def libentry(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """Return a decorator that leaves a kernel as it is: Triton's own launcher runs it."""
    return lambda kernel: kernel


def libtuner(
    configs: list[Any], key: list[str], *, strategy: Any = None, **options: Any
) -> Callable[[Any], Any]:
    """Return ``triton.autotune(configs, key, ...)``. ``strategy``, by which FlagGems rounds keys,
    is not used: each value of the key is tuned by itself.
    """
    import triton

    found: Callable[[Any], Any] = triton.autotune(configs, key, **options)
    return found


def _device_functions() -> Any:
    """Return the functions of torch for the vendor's device; of the CPU, what does nothing."""
    own = reading()
    name = "cpu" if own is None else own.vendor.device
    if name != "cpu":
        return getattr(torch, name)

    def guard(_: Any = None) -> Any:
        return nullcontext()

    return SimpleNamespace(
        device=guard, _DeviceGuard=guard, current_device=lambda: 0, synchronize=lambda: None
    )


def _device() -> SimpleNamespace:
    own = reading()
    assert own is not None
    vendor, dtypes = own.vendor, own.vendor.dtypes

    def has(dtype: str) -> bool:
        return dtypes is None or dtype in dtypes

    return SimpleNamespace(
        name=vendor.device,
        vendor_name=vendor.name,
        dispatch_key=vendor.dispatch_key,
        support_fp64=has("float64"),
        support_bf16=has("bfloat16"),
        support_int64=has("int64"),
    )


def _extra() -> Any:
    """Return the mathematical functions of the vendor's device library."""
    own = reading()
    name = f"triton.language.extra.{'' if own is None else own.vendor.triton_extra}"
    if own is not None and not interprets() and importlib.util.find_spec(name) is not None:
        return importlib.import_module(f"{name}.libdevice")
    return importlib.import_module("triton.language.math")
