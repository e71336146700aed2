"""Plain arguments as text, exactly: ``1`` is not ``1.0`` is not ``True``; nan, inf and -0.0.

A symbolic dimension stands where an int may: ``shape=(dim 2*n, 64)``.
Add a literal kind here (its text and its test) and in `parser.py` (its reading).
"""

from __future__ import annotations

from typing import Any

from meta.ir.dims import SymbolicDim
from meta.ir.names import quote

MAX_NESTING = 64
"""How deep blocks, tuples and types may nest: every recursive walk stays within Python's stack."""


def is_literal(value: object, depth: int = 0) -> bool:
    """Tell whether a value is None, bool, int, float, str, a dimension or a tuple of these."""
    if isinstance(value, tuple):
        return depth < MAX_NESTING and all(is_literal(v, depth + 1) for v in value)
    return value is None or isinstance(value, (bool, int, float, str, SymbolicDim))


def literal_text(value: Any) -> str:
    """Return the text of a literal. Two literals have one text exactly if they are the same.

    A subclass (a `Device`, a NumPy float64, an enumeration) counts as its plain Python value.
    Whatever is no literal is shown in angle brackets, which do not parse.
    """
    if value is None or isinstance(value, bool):
        return str(value)
    if isinstance(value, int):
        return int.__repr__(value)
    if isinstance(value, float):
        return float.__repr__(value)
    if isinstance(value, str):
        return quote(str.__str__(value))
    if isinstance(value, SymbolicDim):
        return f"dim {value}"
    if isinstance(value, tuple) and is_literal(value):
        inner = ", ".join(map(literal_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return f"<{value!r}>"
