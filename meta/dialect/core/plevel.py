"""Priority levels of dialect operators. Among those that accept a call, the largest level wins."""

from __future__ import annotations

from enum import IntEnum


class PLevel(IntEnum):
    """Named levels; a dialect operator may also take a number between two of them."""

    FUSED_ONLY = 0  # only as part of a fused pattern, never alone
    REFERENCE = 5  # right, and the last resort
    COMPILER = 10  # generated code
    LIBRARY = 15  # a vendor's or a well-kept library's kernel
    HANDWRITTEN = 20  # written for exactly this operator


FUSED_ONLY, REFERENCE, COMPILER, LIBRARY, HANDWRITTEN = PLevel
