"""``libentry`` and ``libtuner``: how vendors' kernels are launched and tuned.

What was chosen is kept on disk (the cache "tuning"), so that another process measures nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from triton.runtime.autotuner import Autotuner, Config

from meta.base import disk_cache
from meta.dialect.vendors.jit import interprets
from meta.dialect.vendors.reading import reading

__all__ = ["LibTuner", "libentry", "libtuner"]
CACHE = "tuning"


def libentry(*_: Any, **__: Any) -> Callable[[Any], Any]:
    """Return a decorator that leaves a kernel as it is: Triton's own launcher runs it."""
    return lambda kernel: kernel


class LibTuner(Autotuner):  # type: ignore[misc]
    """Triton's tuner, whose choices are kept.

    One is kept under the source of the kernel, its configurations, the values of the key and the
    dtypes, the device, and the versions of Triton and torch.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{**options, "cache_results": False})
        self.cache_results = not interprets()

    def check_disk_cache(
        self, tuning_key: Any, configs: Sequence[Config], bench_fn: Callable[[], None]
    ) -> bool:
        """Choose the configuration that is kept for a key, else measure; return whether it was
        kept.
        """
        key = self._text(tuning_key, configs)
        content = disk_cache.get(CACHE, key)
        if content is not None:
            chosen = int(json.loads(content))
            self.cache[tuning_key] = configs[chosen]
            self.configs_timings = {configs[chosen]: [0.0]}
            return True
        bench_fn()
        disk_cache.store(CACHE, key, json.dumps(configs.index(self.cache[tuning_key])).encode())
        return False

    def _text(self, tuning_key: Any, configs: Sequence[Config]) -> str:
        function = self.fn
        while not hasattr(function, "cache_key"):
            function = function.fn
        own = reading()
        kind = "cpu" if own is None else own.vendor.device
        functions: Any = getattr(torch, kind, None)
        chip = ""
        if hasattr(functions, "get_device_name"):
            chip = functions.get_device_name()
        parts = (function.cache_key, tuning_key, kind, chip, triton.__version__, torch.__version__)
        return "\n".join(map(str, (*parts, *configs)))


def libtuner(
    configs: list[Any],
    key: list[str],
    prune_configs_by: dict[str, Any] | None = None,
    reset_to_zero: list[str] | None = None,
    restore_value: list[str] | None = None,
    pre_hook: Any = None,
    post_hook: Any = None,
    *,
    do_bench: Any = None,
    **_: Any,
) -> Callable[[Any], Any]:
    """Return ``triton.autotune(configs, key, ...)`` that keeps its choices.

    What FlagGems' tuner has besides is not used: each value of the key is tuned by itself
    (``strategy``), all configurations are measured (``policy``) by Triton's own benchmark.
    """

    def decorate(kernel: Any) -> Any:
        return LibTuner(
            kernel, kernel.arg_names, configs, key, reset_to_zero, restore_value,
            pre_hook=pre_hook, post_hook=post_hook, prune_configs_by=prune_configs_by,
            do_bench=do_bench,
        )  # fmt: skip

    return decorate
