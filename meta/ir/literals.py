"""Plain Python arguments as text, exactly: ``1`` is not ``1.0`` is not ``True``; nan, inf and -0.0.

Add a literal kind here (its text and its test) and in `parser.py` (its reading).
"""

from __future__ import annotations

import re
from typing import Any

MAX_NESTING = 64
"""How deep blocks, tuples and types may nest: every recursive walk stays within Python's stack."""

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", '"': '\\"'}
_UNESCAPES = {escape[1]: char for char, escape in _ESCAPES.items()}
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-f]{1,6})\}|(.?))", re.DOTALL)


def is_identifier(name: str) -> bool:
    """Tell whether a name can stand in the text as it is."""
    return _IDENTIFIER.fullmatch(name) is not None


def quote(string: str) -> str:
    """Return a string in double quotes, on one line, with everything unprintable escaped."""
    if string.isprintable() and '"' not in string and "\\" not in string:
        return f'"{string}"'
    return '"' + "".join(map(_escape, string)) + '"'


def _escape(char: str) -> str:
    if char in _ESCAPES:
        return _ESCAPES[char]
    return char if char.isprintable() else f"\\u{{{ord(char):x}}}"


def unquote(text: str) -> str:
    """Return the string that `quote` wrote; ValueError for an unknown escape."""
    inner = text[1:-1]
    return _ESCAPE.sub(_unescape, inner) if "\\" in inner else inner


def _unescape(match: re.Match[str]) -> str:
    if match[1] is not None:
        return chr(int(match[1], 16))
    if match[2] not in _UNESCAPES:
        raise ValueError(f"unknown escape {match[0]!r}")
    return _UNESCAPES[match[2]]


def is_literal(value: object, depth: int = 0) -> bool:
    """Tell whether a value is None, bool, int, float, str or a tuple of these."""
    if isinstance(value, tuple):
        return depth < MAX_NESTING and all(is_literal(v, depth + 1) for v in value)
    return value is None or isinstance(value, (bool, int, float, str))


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
    if isinstance(value, tuple) and is_literal(value):
        inner = ", ".join(map(literal_text, value))
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    return f"<{value!r}>"
