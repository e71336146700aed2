"""Values of a running program that are no tensors, tuples or functions: what the interpreter and
the machine both make.
"""

from __future__ import annotations

from typing import Any

from meta.base.errors import ExecutionError
from meta.base.source import Span


class DataValue:
    """A value of a data type: which constructor made it, and of what.

    A long list of them is freed without recursion: CPython defers what nests deep.
    """

    __slots__ = ("constructor", "fields")

    def __init__(self, constructor: str, fields: tuple[Any, ...]) -> None:
        self.constructor, self.fields = constructor, fields

    def field(self, constructor: str, index: int, span: Span | None = None) -> Any:
        """Return a field; ExecutionError if another constructor made the value."""
        if self.constructor != constructor:
            raise ExecutionError(
                f"field {index} of {constructor} is taken of a value that is none",
                found=f"a {self.constructor}",
                hint="ask with IsVariant first",
                span=span,
            )
        return self.fields[index]

    def __repr__(self) -> str:
        return f"<{self.constructor} of {len(self.fields)} fields>"


class Cell:
    """A reference: what holds one value that may be exchanged."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return "<reference>"
