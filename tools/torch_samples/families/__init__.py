"""The adapters, by family: ``{entry: function of torch's arguments}`` in every file's `ADAPTERS`.

An entry is named as in the database, with its variant behind a bar: ``"div|floor_rounding"``. A
function receives what `torch` would, tensors as arrays of `meta`, and gives what `torch` would. It
is one operator of `meta` where there is one, else a few of them.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import Any

ADAPTERS: dict[str, Callable[..., Any]] = {}

for _module in pkgutil.iter_modules(__path__):
    _own = importlib.import_module(f"{__name__}.{_module.name}").ADAPTERS
    if _twice := ADAPTERS.keys() & _own.keys():
        raise ValueError(f"{_module.name} adapts once more: {', '.join(sorted(_twice))}")
    ADAPTERS |= _own
