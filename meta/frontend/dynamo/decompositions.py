"""Which of PyTorch's operators AOTAutograd is to take apart: of the core ATen decompositions those
of operators that have no converter. What has one stays whole, and so does attention with a mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch
from torch._decomp import core_aten_decompositions

from meta.base.registry import Registry
from meta.frontend.aten import aten
from meta.frontend.aten.registry import name_of

NOT_DECOMPOSED = frozenset(["_scaled_dot_product_flash_attention_for_cpu"])
"""Overloads that stay whole in any case: taken apart, this one returns something else in the place
of its logsumexp, of which the gradient, which is not taken apart, makes wrong numbers.
"""


@cache
def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions by overload."""
    found: Mapping[Any, Callable[..., Any]] = dict(core_aten_decompositions())
    return {
        overload: function
        for overload, function in found.items()
        if isinstance(overload, torch._ops.OpOverload)
        and name_of(overload) not in NOT_DECOMPOSED
        and not is_converted(name_of(overload))
    }


def is_converted(name: str, registry: Registry[Any] = aten) -> bool:
    """Whether an overload has a converter, which is not a refusal."""
    converter = registry.get(name)
    return converter is not None and converter.function is not None
