"""Which of PyTorch's operators AOTAutograd is to take apart: of the core ATen decompositions those
of operators that have no converter. What has one stays whole, and so does attention with a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch._C import DispatchKey
from torch._decomp import core_aten_decompositions

from meta.frontend.aten import aten
from meta.frontend.aten.registry import name_of


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by overload."""
    table: dict[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    return {
        overload: function
        for overload, function in table.items()
        if isinstance(overload, torch._ops.OpOverload) and not _stays(name_of(overload))
    }


def _stays(name: str) -> bool:
    """Whether an overload stays whole: it has a converter, which is not a refusal."""
    converter = aten.get(name)
    return converter is not None and converter.function is not None


MARGIN_LOSS = torch.ops.aten.multilabel_margin_loss_forward.default
"""What PyTorch takes apart whatever it is told, and computes another loss by: what pads the labels
counts as class 0 (in 2.13).
"""


@contextmanager
def without_decomposing() -> Iterator[None]:
    """Trace the operator whose decomposition is wrong as a whole."""
    kernel = MARGIN_LOSS.py_kernels.pop(DispatchKey.Autograd, None)
    MARGIN_LOSS._dispatch_cache.clear()
    try:
        yield
    finally:
        if kernel is not None:
            MARGIN_LOSS.py_kernels[DispatchKey.Autograd] = kernel
        MARGIN_LOSS._dispatch_cache.clear()
