"""Names and strings of Relay text: which stand as they are, and how the others are quoted.

TVM's printer writes most names as they are, whatever is in them, and its parser then fails on
them. The reader takes those. A name that cannot be told from what follows it is written in quotes
behind its sign, ``%"my input"``, ``@"f(x)"``, ``$"let"`` (a name without a sign); TVM never writes
that, `print_text` of `tools/relay_text` does.
"""

from __future__ import annotations

import re

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
