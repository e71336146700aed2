"""Where in the user's code we are: the first stack frame outside the package."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import sys
from dataclasses import dataclass
from functools import partial
from inspect import isroutine
from types import FrameType, TracebackType
from typing import Any

from meta.base.bounded_cache import bounded_insert

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
# What runs the functions that a context manager decorates, and modules.
_PYTHON = (contextlib.__file__, importlib.__file__, importlib.metadata.__file__)
FILES = 4096
"""File names that are remembered: each cell of a notebook has one of its own."""
# By file name, whether it is part of the package or of Python itself.
_OURS: dict[str, bool] = {}


@dataclass(frozen=True, slots=True)
class Span:
    """A line of source code."""

    file: str
    line: int

    @property
    def is_own(self) -> bool:
        """Whether it is a line of this package."""
        return self.file.startswith(_PACKAGE)

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


def user_line() -> tuple[str, int] | None:
    """Return `user_span` as (file, line), which costs less: for what is rarely looked at."""
    return line_of(sys._getframe(1))


def line_of(frame: FrameType | None) -> tuple[str, int] | None:
    """Return the file and line of a frame, or of the first one above it outside of `meta`."""
    while frame is not None:
        if not _is_ours(frame.f_code.co_filename):
            return frame.f_code.co_filename, frame.f_lineno
        frame = frame.f_back
    return None


def innermost_user_line(trace: TracebackType | None) -> tuple[str, int] | None:
    """Return the innermost line of a traceback that is outside of `meta`."""
    found = None
    while trace is not None:
        if not _is_ours(trace.tb_frame.f_code.co_filename):
            found = trace.tb_frame.f_code.co_filename, trace.tb_lineno
        trace = trace.tb_next
    return found


def outermost_user_span(trace: TracebackType | None) -> Span | None:
    """Return the first line of a traceback that is outside of `meta`: of what was called there."""
    while trace is not None:
        if not _is_ours(trace.tb_frame.f_code.co_filename):
            return Span(trace.tb_frame.f_code.co_filename, trace.tb_lineno)
        trace = trace.tb_next
    return None


def _is_ours(file: str) -> bool:
    ours = _OURS.get(file)
    if ours is None:
        # "<string>", "<stdin>" and notebook cells are the user's; "<frozen ...>" is Python's.
        ours = file.startswith((_PACKAGE, "<frozen")) or file in _PYTHON
        bounded_insert(_OURS, file, ours, FILES)
    return ours


def user_span() -> Span | None:
    """Return the line of the innermost frame that is not part of `meta`, or None at the top of a
    thread.
    """
    line = user_line()
    return None if line is None else Span(*line)


def definition_span(function: Any) -> Span:
    """Return where a function was defined; of a partial or wrapped one, that which it calls. Of
    what is not written in Python it is the user's line, as the one that registers it.
    """
    if isinstance(function, partial):
        return definition_span(function.func)
    if hasattr(function, "__wrapped__"):
        return definition_span(function.__wrapped__)
    code = getattr(python_function(function), "__code__", None)
    if code is None:
        return user_span() or Span("?", 0)
    found = Span(code.co_filename, code.co_firstlineno)
    if found.is_own and not isroutine(function):  # an object of ours, which a user gives
        return user_span() or found
    return found


def python_function(function: Any) -> Any:
    """Return the function, or method, that a call of an object runs; None for one that is not
    written in Python.
    """
    while isinstance(function, partial):
        function = function.func
    if not hasattr(function, "__code__"):
        function = type(function).__call__
    return function if hasattr(function, "__code__") else None


def python_span(function: Any) -> Span | None:
    """Return where a callable was defined; None for one that is not written in Python."""
    found = python_function(function)
    return None if found is None else definition_span(found)


def caller_span(above: int = 0) -> Span:
    """Return the line that called the function which calls this one, or so many calls above it."""
    frame = sys._getframe(2 + above)
    return Span(frame.f_code.co_filename, frame.f_lineno)


def short_site(site: str) -> str:
    """Return a file:line relative to the working directory if it lies in it."""
    return os.path.relpath(site) if site.startswith(os.getcwd() + os.sep) else site
