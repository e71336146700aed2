"""Cuts Relay text into tokens, one at a time, and says where in the text an error is; and reads
names, strings and numbers.

Tokens are made on demand, since how far a name reaches depends on what is declared
(``%conv1.weight`` is a variable or a projection that fails): `Lexer.cut` gives back what a token
has too much. A kind of token is a row of `TOKEN`; what the tokens mean is in the other files.

TVM's printer writes most names as they are, whatever is in them, and its parser then fails on them.
The reader takes those. A name that cannot be told from what follows it is written in quotes behind
its sign, ``%"my input"``, ``@"f(x)"``, ``$"let"`` (a name without a sign); TVM never writes that,
`print_text` of `tools/relay_text` does.

A number has a value and perhaps a dtype: ``1.5f`` float32, ``7i64`` int64, ``7`` and ``1.5`` none,
which then is int32 (int64 where it does not fit) and float32.
"""

from __future__ import annotations

import difflib
import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, ClassVar, NoReturn

import torch

from meta.base.dtype import TO_TORCH, is_float, limits
from meta.frontend.relay import ast
from meta.frontend.relay.errors import RelayError
from meta.ir.lexer import TokenReader, excerpt

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
    """Return a literal's value and dtype, if it says one; ValueError with what was expected."""
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


# What may be a variable's name where TVM's printer wrote it, and more; colons are sorted out later.
_RUN = r'[^\s,;()\[\]{}="%@/]*(?:/(?!\*)[^\s,;()\[\]{}="%@/]*)*'
TOKEN = re.compile(
    rf"""[ \t\r\n\f\v]*(?:
      (?P<graph>%[0-9]+)
    | (?P<name>(?!(?:inf|nan)f(?:16|32|64)?(?![\w.]))(?:match\?|{NAME}|\$(?:{STRING})))
    | (?P<comment>/[*/])
    | (?P<number>(?:-{{1,16}}(?=[0-9in]))?(?:
          [0-9]+(?:\.[0-9]*)?(?:[eE][+-]?[0-9]+)?(?:[fi][0-9]*)?
        | (?:inf|nan)f(?:16|32|64)?(?![\w.])))
    | (?P<mark>[](){{}}[,:+*?]|;;?|=[=>]?|->?|[<>!]=?|/)
    | (?P<local>%(?:{STRING}|{_RUN}))
    | (?P<global>@(?:{STRING}|{_RUN}))
    | (?P<projection>\.[ \t]*[0-9]+)
    | (?P<string>{STRING})
    | (?P<directive>\#\[)
    | (?P<end>\Z)
    | (?P<bad>.)
    )""",
    re.VERBOSE | re.DOTALL,
)
_COMMENT_EDGE = re.compile(r"/\*|\*/")
_LONGEST, _COMPARED = 100, 1000
"""The longest name of which others are looked for, and how many it is compared with."""


def skip_comment(text: str, at: int) -> int | None:
    """Return where the comment that begins at an offset ends, None if it does not."""
    if text[at + 1] == "/":
        line = text.find("\n", at)
        return line if line >= 0 else len(text)
    depth = 0
    for edge in _COMMENT_EDGE.finditer(text, at):
        depth += 1 if edge[0] == "/*" else -1
        if depth == 0:
            return edge.end()
    return None


class Lexer(TokenReader):
    """The current token of a text.

    Attributes
    ----------
    kind: a group of `TOKEN`; of marks, their text. text: the token. start, end: offsets.
    type_comment: T if a comment ``/* ty=T */`` is between this token and the one before.
    """

    names: ClassVar = {
        "local": "a variable",
        "global": "a global name",
        "name": "a name",
        "number": "a number",
        "string": "a string",
        "end": "the end of the text",
    }

    def __init__(self, source: str, file: str) -> None:
        self.source, self.file = source, file
        self._match = TOKEN.match
        self._lines: list[int] | None = None
        self.kind = self.text = ""
        self.start = self.end = 0
        self.type_comment: str | None = None
        self.trailing_comma = False
        self.advance()

    def advance(self) -> str:
        """Step over the current token and return its text."""
        before = self.text
        self.type_comment = None
        while True:
            found = self._match(self.source, self.end)
            assert found is not None, "the last alternative of TOKEN takes any character"
            kind = found.lastgroup
            assert kind is not None, "every alternative of TOKEN is a group"
            self.text = text = found[kind]
            self.end = end = found.end()
            self.start = end - len(text)
            if kind != "comment":
                break
            self._comment()
        self.kind = text if kind == "mark" else kind
        if kind == "bad" and text == '"':
            self.fail("a string that ends", "an open string")
        if kind == "bad":
            self.fail("Relay text", repr(text))
        return before

    def _comment(self) -> None:
        end = skip_comment(self.source, self.start)
        if end is None:
            self.fail("'*/'", "a comment without end")
        self.end = end
        if self.type_comment is None and self.source.startswith("/*", self.start):
            comment = self.source[self.start + 2 : end - 2].strip()
            if comment.startswith("ty="):
                self.type_comment = comment[3:].partition(" span=")[0]

    def cut(self, length: int) -> None:
        """Shorten the current token to its first ``length`` characters."""
        self.text = self.text[:length]
        self.end = self.start + length

    def items(self, close: str) -> Iterator[None]:
        """Yield before each item of a list up to a closing mark; note a trailing comma."""
        comma = False
        while self.kind != close:
            yield
            comma = self.accept(",")
            if not comma:
                break
        self.trailing_comma = comma
        self.expect(close, f"',' or {close!r}")

    def follows(self, pattern: re.Pattern[str]) -> bool:
        """Tell whether what follows the current token matches."""
        return pattern.match(self.source, self.end) is not None

    def _starts(self) -> list[int]:
        if self._lines is None:
            self._lines = [0, *(m.end() for m in re.finditer("\n", self.source))]
        return self._lines

    def place(self, at: int) -> ast.Location:
        """Return line and column of an offset."""
        starts = self._starts()
        line = bisect_right(starts, at)
        return ast.Location(self.file, line, at - starts[line - 1] + 1)

    def fail(
        self, expected: object, found: str = "", *, hint: str | None = None, at: int | None = None
    ) -> NoReturn:
        """Raise RelayError at an offset, by default that of the current token."""
        raise self.error(
            "this Relay text cannot be read",
            at,
            expected=expected,
            found=found or self.shown(),
            hint=hint,
        ) from None

    def unknown(self, expected: str, names: Iterable[str]) -> NoReturn:
        """Raise RelayError for a name that is none of ``names``, with the nearest of them."""
        name = self.text.lstrip("%")
        known = list(islice((n for n in names if len(n) <= _LONGEST), _COMPARED))
        close = difflib.get_close_matches(name, known, n=1) if len(name) <= _LONGEST else []
        self.fail(expected, hint=f"did you mean {close[0]!r}?" if close else None)

    def error(self, what: str, at: int | None = None, **details: Any) -> RelayError:
        """Return an error with the line of an offset, by default that of the current token."""
        place = self.place(self.start if at is None else at)
        assert place.line is not None and place.column is not None
        starts = self._starts()
        begin = starts[place.line - 1]
        end = starts[place.line] - 1 if place.line < len(starts) else len(self.source)
        line, caret = excerpt(self.source, begin, end, place.column - 1)
        return RelayError(what, place=place, excerpt=f"{line}\n{caret}", **details)
