"""How operands of elementwise operators are drawn."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def away_from_zero(x: Tensor) -> Tensor:
    """Where one may divide by x."""
    return x.abs() > 0.06


def other_operand(
    d: Any, kind: str, exact: bool, domain: Callable[[Tensor, Tensor], Tensor] | None
) -> tuple[Any, Any]:
    """Return two operands of one dtype, of which one may be a number."""
    x = d.pick(*([lambda v: v.exact] if exact else []), dtype=kind)
    value = d.value(x)
    for _ in range(4):
        y = d.partner(value)
        number = isinstance(y, int | float)
        if exact and not number and not d.value(y).exact:
            continue
        pair = (x, y) if not (number and d.chance(0.3)) and d.chance(0.8) else (y, x)
        if domain is None or _inside(d, pair, value, domain):
            return pair
    raise d.missing


def _inside(d: Any, pair: Any, like: Any, domain: Any) -> bool:
    tensors = [
        torch.tensor(p, dtype=like.tensor.dtype)
        if isinstance(p, int | float)
        else d.value(p).tensor
        for p in pair
    ]
    return bool(domain(*tensors).all())
