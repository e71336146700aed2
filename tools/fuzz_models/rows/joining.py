"""Operators of lists of tensors."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from tools.fuzz_models.rows.row import Call, Row, add


def _parts(d: Any, axis_free: bool) -> tuple[tuple[Any, ...], int]:
    x = d.pick(lambda v: v.ndim >= 1 and v.size <= d.style.size // 2, dtype="any")
    value = d.value(x)
    axis = d.int(-value.ndim, value.ndim - 1)
    at = axis % value.ndim

    def fits(v: Any) -> bool:
        rest = [
            (a, b) for i, (a, b) in enumerate(zip(v.shape, value.shape, strict=False)) if i != at
        ]
        return v.ndim == value.ndim and (
            all(a == b for a, b in rest) if axis_free else v.shape == value.shape
        )

    parts = [x]
    for _ in range(d.int(0 if d.chance(0.1) else 1, 3)):
        parts.append(d.pick(fits, dtype=value.dtype))
    d.random.shuffle(parts)
    return tuple(parts), axis


add(
    Row(
        "concat", lambda d: (_parts(d, True), {}), lambda x, axis: torch.cat(x, axis),
        "same", "none", smooth=True, weight=2,
    )
)  # fmt: skip
add(
    Row(
        "stack", lambda d: (_parts(d, False), {}), lambda x, axis: torch.stack(x, axis),
        "same", "none", smooth=True,
    )
)  # fmt: skip


def _split(d: Any) -> Call:
    x = d.pick(lambda v: v.ndim >= 1, dtype="any")
    value = d.value(x)
    axis = d.int(-value.ndim, value.ndim - 1)
    extent = value.shape[axis]
    if d.chance(0.5) and extent:
        return (x, d.choice([k for k in (1, 2, 3, 4, 5) if extent % k == 0]), axis), {}
    return (x, tuple(sorted(d.int(0, extent) for _ in range(d.int(1, 2)))), axis), {}


def split(x: Tensor, where: Any, axis: int) -> list[Tensor]:
    """Return the parts."""
    extent = x.shape[axis]
    if isinstance(where, int):
        where = tuple(extent // where * i for i in range(1, where))
    bounds = (0, *where, extent)
    return [x.narrow(axis, a, b - a) for a, b in pairwise(bounds)]


def _split_dtypes(operands: Any, args: Any, kwargs: Any) -> list[str]:
    count = args[1] if isinstance(args[1], int) else len(args[1]) + 1
    return [operands[0]] * count


add(Row("split", _split, split, _split_dtypes, "none", smooth=True, weight=1.5))
