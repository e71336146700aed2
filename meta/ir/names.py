"""Names and strings in program text; unique, legal names for variables, whose own are hints."""

from __future__ import annotations

import re
from collections.abc import Iterable

_ILLEGAL = re.compile(r"[^A-Za-z0-9_]")
_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", '"': '\\"'}
_UNESCAPES = {escape[1]: char for char, escape in _ESCAPES.items()}
_ESCAPE = re.compile(r"\\(?:u\{([0-9a-f]{1,6})\}|(.?))", re.DOTALL)


def is_identifier(name: str) -> bool:
    """Tell whether a name can stand in the text as it is."""
    return _IDENTIFIER.fullmatch(name) is not None


def name_text(name: str) -> str:
    """Return the text of the name of a data type, a constructor or an attribute."""
    return name if is_identifier(name) else quote(name)


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


class Names:
    """Hands out names that differ from each other.

    A hint is kept where it is free; else a number is appended. An empty or numeric hint means
    "unnamed" and gives the next number, so names that were read from a text come out again.
    """

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._used = set(taken)
        self._next: dict[str, int] = {}

    def unique(self, hint: str) -> str:
        """Return a new name of letters, digits and underscores, close to ``hint``."""
        base = _ILLEGAL.sub("_", hint)
        if not base or base.isdigit():
            number = self._next[""] = self._next.get("", -1) + 1
            return str(number)
        name = base
        while name in self._used:
            number = self._next[base] = self._next.get(base, 0) + 1
            name = f"{base}_{number}"
        self._used.add(name)
        return name
