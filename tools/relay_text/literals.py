"""Names, strings and numbers of Relay text: the shortest form that `parse_text` reads back."""

from __future__ import annotations

import re

import torch

from meta.base.dtype import FROM_TORCH, TO_TORCH, is_float
from meta.frontend.relay.text.lexer import DTYPE, ESCAPES, KEYWORDS, MALFORMED, NAME

_BARE_LOCAL = re.compile(r"[A-Za-z_](?:\w|[/-](?![/*])|\.|:(?=[0-9]))*", re.ASCII)
_BARE_GLOBAL = re.compile(r"[A-Za-z_](?:\w|[/-](?![/*])|[.:])*", re.ASCII)
_BARE_NAME = re.compile(NAME, re.ASCII)
_BARE_KEY = re.compile(r"[A-Za-z_][\w.:/@#$-]*", re.ASCII)
_SPECIAL_FLOAT = re.compile(r"(?:inf|nan)f(?:16|32|64)?")
_SUFFIX = {
    "int16": "i16",
    "int32": "",
    "int64": "i64",
    "float16": "f16",
    "float32": "f",
    "float64": "f64",
}


def quote(string: str) -> str:
    """Return a string in double quotes, with everything unprintable escaped."""
    return '"' + "".join(c if _is_plain(c) else _escape(c) for c in string) + '"'


def _is_plain(char: str) -> bool:
    return char.isprintable() and char not in '"\\'


def _escape(char: str) -> str:
    if char in ESCAPES:
        return ESCAPES[char]
    return f"\\x{ord(char):02X}" if char < "\x80" else f"\\u{{{ord(char):x}}}"


def local_name(name: str) -> str:
    """Return a variable's name with its sign."""
    bare = _BARE_LOCAL.fullmatch(name) and not name.endswith((MALFORMED, "/"))
    return f"%{name}" if bare else f"%{quote(name)}"


def global_name(name: str) -> str:
    """Return the name of a function of the module with its sign."""
    return f"@{name}" if _BARE_GLOBAL.fullmatch(name) else f"@{quote(name)}"


def bare_name(name: str) -> str:
    """Return a name without a sign: of an operator, a constructor, a type or an attribute."""
    plain = _BARE_NAME.fullmatch(name) and name not in KEYWORDS and not DTYPE.fullmatch(name)
    return name if plain and not _SPECIAL_FLOAT.fullmatch(name) else f"${quote(name)}"


def attribute_name(name: str) -> str:
    """Return the name of an attribute, in which more may stand than in other names."""
    plain = _BARE_KEY.fullmatch(name) and not _SPECIAL_FLOAT.match(name)
    return name if plain else f"${quote(name)}"


def literal_of(tensor: torch.Tensor) -> str | None:
    """Return the literal of a scalar tensor, None if its dtype has none."""
    dtype = FROM_TORCH.get(tensor.dtype)
    if tensor.ndim or (dtype not in _SUFFIX and dtype != "bool"):
        return None
    value = tensor.item()
    if dtype == "bool":
        return str(value)
    suffix = _SUFFIX[dtype]
    return f"{_shortest(value, dtype)}{suffix}" if is_float(dtype) else f"{value}{suffix}"


def float_literal(value: float) -> str:
    """Return a float attribute: double precision, though the suffix is that of float32."""
    return f"{_shortest(value, 'float64')}f"


def _shortest(value: float, dtype: str) -> str:
    """Return the fewest digits that give the value when they are rounded to the dtype."""
    if value != value:
        return "nan"
    text = repr(value)
    if dtype != "float64" and abs(value) != float("inf"):
        candidates = (f"{value:.{digits}g}" for digits in range(1, 10))
        exact = TO_TORCH[dtype]
        text = next(
            (c for c in candidates if torch.tensor(float(c), dtype=exact).item() == value), text
        )
    return text.removesuffix(".0")
