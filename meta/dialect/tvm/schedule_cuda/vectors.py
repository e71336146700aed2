"""Loops over the lanes of vectors that CUDA has not: those of bool.

TVM stands for two to four truth values by a vector of 16-bit numbers. That is right in registers;
in memory, where each is a byte, it reads and writes beside the array, and the sides of a selection
by what was read are not of its type. More than four it does not translate at all.
"""

from __future__ import annotations

from typing import Any

import tvm
import tvm_ffi
from tvm import tirx

LANES = 4
"""The most truth values of a vector in registers."""
_TRUTHS = tirx.EQ, tirx.NE, tirx.LT, tirx.LE, tirx.GT, tirx.GE, tirx.And, tirx.Or, tirx.Not


def without_bool(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a scheduled function whose loops over such lanes are unrolled instead.

    The other arrays of such a loop are then accessed element by element, too.
    """

    def loop(found: tirx.For) -> tirx.For:
        if found.kind != tirx.ForKind.VECTORIZED or not _has_bool(found):
            return found
        unrolled = tirx.ForKind.UNROLLED
        return tirx.For(found.loop_var, found.min, found.extent, unrolled, found.body)

    return tvm_ffi.structural_map(function, (tirx.For, loop))


def _has_bool(loop: tirx.For) -> bool:
    """Whether a loop's lanes are truth values in memory, or too many for registers."""
    found: list[Any] = []

    def access(node: Any) -> None:
        buffer = node.buffer if isinstance(node, tirx.BufferStore) else node.source
        if str(buffer.dtype) == "bool":
            found.append(node)

    handlers = [(tirx.BufferStore, access), (tvm.ir.TensorLoad, access)]
    if int(loop.extent) > LANES:
        handlers += [(kind, found.append) for kind in _TRUTHS]
    tvm_ffi.structural_walk(loop.body, handlers)
    return bool(found)
