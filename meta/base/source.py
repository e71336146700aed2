"""Where in the user's code we are: the first stack frame outside the package."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True, slots=True)
class Span:
    """A line of source code."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def user_span() -> Span | None:
    """Return the line of the innermost frame that is not part of `meta`, or None at the top of a
    thread.
    """
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith(_PACKAGE) and not file.startswith("<"):
            return Span(file, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None


def definition_span(function: object) -> Span:
    """Return where a function was defined."""
    code = function.__code__  # type: ignore[attr-defined]
    return Span(code.co_filename, code.co_firstlineno)
