"""Names, strings and numbers of Relay text.

TVM's printer writes most names as they are, whatever is in them, and its parser then fails on them.
The reader takes those. A name that cannot be told from what follows it is written in quotes behind
its sign, ``%"my input"``, ``@"f(x)"``, ``$"let"`` (a name without a sign); TVM never writes that,
`print_text` of `tools/relay_text` does.

A number has a value and perhaps a dtype: ``1.5f`` float32, ``7i64`` int64, ``7`` and ``1.5`` none,
which then is int32 (int64 where it does not fit) and float32.
"""

from __future__ import annotations

import re

import torch

from meta.base.dtype import TO_TORCH, is_float, limits

KEYWORDS = frozenset({"def", "extern", "fn", "free_var", "let", "meta", "mut", "type"})
KEYWORDS |= {"if", "else", "match", "ref", "ref_read", "ref_write"}
KEYWORDS |= {"Tensor", "True", "False", "None", "nullptr", "_"}
STRING = r'"[^"\\]*(?:\\.[^"\\]*)*"'
_WORD = r"[^\W\d]\w*(?:/(?![/*])\w*)*"
NAME = rf"{_WORD}(?:\.{_WORD})*"
MALFORMED = "-malformed-ir"
"""What TVM's printer appends to a variable that is bound for the second time."""

DTYPE = re.compile(
    r"(?:u?int|b?float)[0-9]*(?:x[0-9]+)?|(?:bool|handle)(?:x[0-9]+)?|e[0-9]m[0-9]_float8|"
    r"float8_e[0-9]m[0-9]\w*|void"
)
"""Names that are a scalar tensor where a type stands."""

SHORT_DTYPES = {
    "int": "int32",
    "uint": "uint32",
    "float": "float32",
    "bfloat": "bfloat16",
    "uint1": "bool",
    "custom": "custom",
}
"""Other names of dtypes; "custom" has a name and a width behind it."""

ESCAPES = {"\n": "\\n", "\t": "\\t", "\r": "\\r", "\\": "\\\\", '"': '\\"'}
_UNESCAPES = {escape[1]: char for char, escape in ESCAPES.items()}
_ESCAPE = re.compile(r"((?:\\x[0-9A-Fa-f]{2}|\\[0-7]{3})+)|\\u\{([0-9a-f]{1,6})\}|\\(.)", re.DOTALL)
_BYTE = re.compile(r"\\x(..)|\\([0-7]{3})")


def unquote(text: str) -> str:
    """Return the string that TVM's printer or `print_text` wrote.

    A backslash before any other character stands for itself, as TVM before 0.7 escapes nothing.
    """
    inner = text[1:-1]
    return _ESCAPE.sub(_unescape, inner) if "\\" in inner else inner


def _unescape(match: re.Match[str]) -> str:
    if match[1] is not None:  # the bytes of UTF-8, one by one
        data = bytes(int(h, 16) if h else int(o, 8) & 255 for h, o in _BYTE.findall(match[1]))
        return data.decode("utf-8", errors="replace")
    if match[2] is not None:
        code = int(match[2], 16)
        return chr(code) if code < 0x110000 else match[0]
    return _UNESCAPES.get(match[3], match[0])


_LITERAL = re.compile(
    r"(-*)(?:(inf|nan)f([0-9]*)"
    r"|([0-9]+)(?:i([0-9]*))?"
    r"|([0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?)(f?)([0-9]*))"
)
_INT = {"": None, "16": "int16", "32": "int32", "64": "int64"}
_FLOAT = {"": "float32", "16": "float16", "32": "float32", "64": "float64"}
# What rounds to the largest number of float32 is written for it: its digits are a little above it.
_LARGEST = {
    "float16": float(limits("float16").max),
    "bfloat16": float(limits("bfloat16").max),
    "float32": 2.0**128 * (1 - 2.0**-25) * (1 - 2.0**-53),
    "float64": float(limits("float64").max),
}
MAX_DIGITS = 400
"""Digits that a number may have; int() of many takes time that grows with their square."""


def parse_number(text: str) -> tuple[int | float, str | None]:
    """Return a literal's value and dtype, None if it says none.

    Raises ValueError with what was expected.
    """
    match = _LITERAL.fullmatch(text)
    if match is None or len(text) > MAX_DIGITS:
        raise ValueError(f"a number of at most {MAX_DIGITS} characters, such as 1.5f, 3 or 7i64")
    minus, special, special_width, digits, int_width, real, f, real_width = match.groups()
    sign = -1 if len(minus) % 2 else 1
    if digits is not None:
        dtype = _width(int_width or "", _INT)
        value = sign * int(digits)
        if dtype is not None and not limits(dtype).min <= value <= limits(dtype).max:
            raise ValueError(f"an integer that fits {dtype}")
        if not -(2**63) <= value < 2**64:
            raise ValueError("an integer of at most 64 bits")
        return value, dtype
    dtype = _width(special_width if special else real_width, _FLOAT) if special or f else None
    number = sign * float(special or real)
    if real is not None and abs(number) == float("inf"):
        raise ValueError("a number that fits float64")
    return number, dtype


def _width(width: str, dtypes: dict[str, str | None] | dict[str, str]) -> str | None:
    if width not in dtypes:
        raise ValueError("a width of 16, 32 or 64 bits")
    return dtypes[width]


def scalar(value: int | float | bool, dtype: str) -> torch.Tensor:
    """Return the scalar tensor; ValueError if the value does not fit the dtype."""
    if dtype == "bool":
        return torch.tensor(bool(value))
    if is_float(dtype):
        if _LARGEST[dtype] < abs(value) < float("inf"):
            raise ValueError(f"a number that fits {dtype}")
        return torch.tensor(float(value), dtype=TO_TORCH[dtype])
    bounds = limits(dtype)
    if value != value or value != int(value) or not bounds.min <= value <= bounds.max:
        raise ValueError(f"a number that fits {dtype}")
    return torch.tensor(int(value), dtype=TO_TORCH[dtype])
