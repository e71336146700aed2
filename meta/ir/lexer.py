"""Cuts program text into tokens, and says where in the text an error is.

Every kind of token is a row of `TOKEN`; what the tokens mean is in `parser.py`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import ClassVar, NoReturn, TypeVar

from meta.base.errors import IRError
from meta.base.source import Span
from meta.ir.names import unquote

T = TypeVar("T")

# A plain character class is repeated, not a choice: the engine keeps no state per character then,
# and the base64 of a constant may be long.
_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
# A dialect operator's name may end with how its kernel is launched: cublas.matmul@split=2,tile=18
_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_PAIR = rf"{_NAME}=[A-Za-z0-9_]+"
TOKEN = re.compile(
    rf"""[ \t\r\n]*(?:
      (?P<comment>\#[^\n]*)
    | (?P<var>%[A-Za-z0-9_]+)
    | (?P<data>@data\.[0-9]+)
    | (?P<global>@(?:[A-Za-z_][A-Za-z0-9_]*|{_STRING}))
    | (?P<name>{_NAME}(?:\.{_NAME})*(?:@{_PAIR}(?:,{_PAIR})*)?)
    | (?P<punctuation>->|[(){{}}\[\],:=.?])
    | (?P<number>-?[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?|-inf\b)
    | (?P<operator>//|[*+-])
    | (?P<string>{_STRING})
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
SPAN = re.compile(rf"#[ \t]+(?:({_STRING})|(.+)):([0-9]{{1,9}})[ \t\r]*")
_SHOWN = 100
"""Columns of the offending line that an error shows."""


class TokenReader(ABC):
    """What readers of texts have in common: the current token, by its ``kind`` and its ``text``.

    names: what kinds of tokens are called in errors.
    """

    names: ClassVar[Mapping[str, str]]
    kind: str
    text: str

    @abstractmethod
    def advance(self) -> str:
        """Step over the current token and return its text."""

    @abstractmethod
    def fail(
        self, expected: object, found: str = "", *, hint: str | None = None, at: int | None = None
    ) -> NoReturn:
        """Raise an error at an offset, by default that of the current token."""

    def accept(self, kind: str) -> bool:
        """Step over the current token if it is of that kind."""
        if self.kind != kind:
            return False
        self.advance()
        return True

    def accept_name(self, name: str) -> bool:
        """Step over the current token if it is that word."""
        if self.kind != "name" or self.text != name:
            return False
        self.advance()
        return True

    def expect(self, kind: str, what: str = "") -> str:
        """Step over a token of that kind and return its text, or fail."""
        if self.kind != kind:
            self.fail(what or self.names.get(kind, repr(kind)))
        return self.advance()

    def expect_name(self, name: str) -> None:
        """Step over that word, or fail."""
        if not self.accept_name(name):
            self.fail(repr(name))

    def shown(self) -> str:
        """Return the current token as errors show it."""
        if self.kind == "end":
            return self.names["end"]
        return repr(self.text if len(self.text) <= 40 else self.text[:40] + "...")


def excerpt(source: str, begin: int, end: int, column: int) -> tuple[str, str]:
    """Return what errors show of the line of a source from ``begin`` to ``end``, and a caret below
    one of its columns.
    """
    clip = max(0, column - _SHOWN * 3 // 4)
    line = source[begin + clip : min(end, begin + clip + _SHOWN)]
    return "".join(c if c.isprintable() else " " for c in line), " " * (column - clip) + "^"


class Cursor(TokenReader):
    """The tokens of a text and a position among them.

    ``kind`` and ``text`` are those of the current token; the kind of punctuation and of operators
    of dimensions is their text.
    """

    names: ClassVar = {
        "var": "a variable",
        "global": "a global name",
        "number": "a number",
        "string": "a string",
        "end": "the end of the text",
    }

    def __init__(self, source: str, file: str) -> None:
        self.source, self.file = source, file
        self._newlines = [m.start() for m in re.finditer("\n", source)]
        self._kinds: list[str] = []
        self._texts: list[str] = []
        self._starts: list[int] = []
        self._spans: dict[int, Span] = {}
        self._scan()
        self._index = 0
        self.kind, self.text = self._kinds[0], self._texts[0]

    def _scan(self) -> None:
        position = 0
        while True:
            match = TOKEN.match(self.source, position)
            if match is None:
                self._refuse(position)
            kind = match.lastgroup
            assert kind is not None, "every alternative of TOKEN is a named group"
            text, position = match[kind], match.end()
            if kind == "comment":
                self._comment(text, match.start(kind))
                continue
            self._kinds.append(text if kind in ("punctuation", "operator") else kind)
            self._texts.append(text)
            self._starts.append(match.start(kind))
            if kind == "end":
                return

    def _refuse(self, at: int) -> NoReturn:
        while self.source[at] in " \t\r\n":
            at += 1
        if self.source[at] == '"':
            self.fail("a string that ends on its line", "an open string", at=at)
        self.fail("program text", repr(self.source[at]), at=at)

    def _comment(self, text: str, at: int) -> None:
        match = SPAN.fullmatch(text)
        if match is not None:
            file = match[2] if match[1] is None else self.unquoted(match[1], at)
            self._spans[self._line(at)] = Span(file, int(match[3]))

    def _line(self, at: int) -> int:
        return bisect_left(self._newlines, at)

    @property
    def start(self) -> int:
        """The current token's offset in the text."""
        return self._starts[self._index]

    @property
    def next_kind(self) -> str:
        """The kind of the token after the current one."""
        return self._kinds[min(self._index + 1, len(self._kinds) - 1)]

    def advance(self) -> str:
        """Step over the current token and return its text."""
        text = self.text
        if self.kind != "end":
            self._index += 1
            self.kind, self.text = self._kinds[self._index], self._texts[self._index]
        return text

    def items(self, read: Callable[[], T], begin: str = "(", end: str = ")") -> tuple[T, ...]:
        """Read ``(item, item)``, or in other brackets, with or without a last comma."""
        items: list[T] = []
        self.expect(begin)
        while not self.accept(end):
            items.append(read())
            if not self.accept(","):
                self.expect(end, f"',' or {end!r}")
                break
        return tuple(items)

    def span_at(self, start: int) -> Span | None:
        """Return the span comment of the line of an offset."""
        return self._spans.get(self._line(start)) if self._spans else None

    def unquoted(self, text: str, at: int) -> str:
        """Return the content of a string token at an offset."""
        try:
            return unquote(text)
        except ValueError as error:
            self.fail("a string", str(error), at=at)

    def fail(
        self, expected: object, found: str = "", *, hint: str | None = None, at: int | None = None
    ) -> NoReturn:
        """Raise IRError at an offset, by default that of the current token."""
        if at is None:
            at, found = self.start, found or self.shown()
        line = self._line(at)
        begin = self._newlines[line - 1] + 1 if line else 0
        end = self._newlines[line] if line < len(self._newlines) else len(self.source)
        shown, caret = excerpt(self.source, begin, end, at - begin)
        raise IRError(
            f"line {line + 1}, column {at - begin + 1}: this program text cannot be read\n"
            f"    {shown}\n    {caret}",
            expected=expected,
            found=found or None,
            hint=hint,
            span=Span(self.file, line + 1),
        ) from None
