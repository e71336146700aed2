"""Bounds of results, checked once for all operators, before a dialect or an allocator sees them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from meta.base.bounds import MAX_AXES, MAX_BYTES, MAX_RESULTS
from meta.base.dtype import bits
from meta.ir.types import TensorType


def excess(types: Sequence[Any]) -> tuple[str, str, str] | None:
    """Return what is wrong with results of these types, what would be right, and what was found;
    None if an array can be of each.

    The strides of an empty array are those of one with extents of 1 instead of 0.
    """
    if len(types) > MAX_RESULTS:
        return "there are too many results", f"at most {MAX_RESULTS}", str(len(types))
    for type_ in types:
        if not isinstance(type_, TensorType):
            continue
        if len(type_.shape) > MAX_AXES:
            return "a result has too many axes", f"at most {MAX_AXES}", str(len(type_.shape))
        size = bits(type_.dtype) // 8
        for extent in type_.shape:
            if isinstance(extent, int):
                if extent < 0:
                    return "a result has a negative extent", "extents of 0 or more", str(type_)
                size *= extent or 1
        if size > MAX_BYTES:
            return "a result is larger than an array can be", "less than 2**63 bytes", str(type_)
    return None
