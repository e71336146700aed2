"""Reads a JSON text value by value, with the scanner of the standard library for the inner work.

It refuses what that lets pass: keys that occur twice, NaN and infinities, numbers of any length;
and nesting without end is an error like the others.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from typing import Any, NoReturn

from meta.frontend.relay.errors import RelayError

_BLANKS = re.compile(r"[ \t\n\r]*")
_COMMA = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")
_MAX_DIGITS = 30


class _Refused(ValueError):
    """What is wrong with a value of the JSON, from inside the standard library's scanner."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        twice = next(name for name, count in counts.items() if count > 1)
        raise _Refused(f"the key {twice[:80]!r} occurs twice in one object")
    return result


def _no_constant(name: str) -> NoReturn:
    raise _Refused(f"{name} is no JSON")


def _integer(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise _Refused(f"a number of {len(digits)} digits")
    return int(digits)


def decode(data: bytes, source: str) -> str:
    """Return a file's text. Raises RelayError where it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise RelayError(
            "the text is not valid UTF-8", place=f"{source}, byte {error.start}"
        ) from None


class Scanner:
    """Reads a JSON text from the front, value by value."""

    def __init__(self, text: str, source: str) -> None:
        self.text, self.source, self.position = text, source, 0
        self.decoder = json.JSONDecoder(
            object_pairs_hook=_object, parse_constant=_no_constant, parse_int=_integer
        )

    def fail(self, what: str, at: int | None = None, expected: str | None = None) -> NoReturn:
        """Raise RelayError with line and column."""
        at = self.position if at is None else at
        line = self.text.count("\n", 0, at) + 1
        column = at - self.text.rfind("\n", 0, at)
        raise RelayError(
            f"the JSON cannot be read: {what}",
            place=f"{self.source}:{line}:{column}",
            expected=expected,
        )

    def skip_blanks(self) -> None:
        """Go to the next character that is no blank."""
        found = _BLANKS.match(self.text, self.position)
        assert found is not None
        self.position = found.end()

    def take(self, character: str) -> bool:
        """Skip a character, and the blanks around it, if it is the next."""
        self.skip_blanks()
        if not self.text.startswith(character, self.position):
            return False
        self.position += 1
        self.skip_blanks()
        return True

    def take_comma(self) -> bool:
        """Skip a comma, if it is the next: what `take` does, faster."""
        found = _COMMA.match(self.text, self.position)
        if found is None:
            self.skip_blanks()
            return False
        self.position = found.end()
        return True

    def expect(self, character: str) -> None:
        """Skip a character that has to be the next."""
        if not self.take(character):
            at_end = self.position >= len(self.text)
            self.fail("it ends here" if at_end else "an unexpected character", expected=character)

    def value(self) -> Any:
        """Read the value that begins here."""
        try:
            value, self.position = self.decoder.raw_decode(self.text, self.position)
        except json.JSONDecodeError as error:
            self.fail(error.msg, error.pos)
        except RecursionError:
            self.fail("brackets are nested too deeply")
        except _Refused as error:
            self.fail(str(error))
        return value

    def key(self) -> str:
        """Read a key of an object, and the colon after it."""
        key = self.value()
        if not isinstance(key, str):
            self.fail("a key that is no string")
        self.expect(":")
        return key
