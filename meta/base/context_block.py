"""Blocks that replace what a context variable holds: several things that a thread (or task) decides
together stand in one frozen object.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")


@contextmanager
def overriding(variable: ContextVar[T], change: Callable[[T], T]) -> Iterator[T]:
    """Let a variable hold, in a ``with`` block, what a function makes of its value on entry."""
    value = change(variable.get())
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
