"""Errors of reading and converting Relay programs."""

from __future__ import annotations

from typing import Any

from meta.base.errors import FormatError


class RelayError(FormatError):
    """A Relay program that cannot be read or converted.

    Parameters
    ----------
    place: where in the source, as "model.relay:12:5" or "node 17 of model.json", or an
        `ast.Location`.
    excerpt: the source line with a caret under the place, one string with a line break.
    The other parameters are those of `MetaError`.
    """

    def __init__(
        self, what: str, *, place: object = None, excerpt: str | None = None, **details: Any
    ) -> None:
        super().__init__(what, **details)
        self.place = None if place is None else str(place)
        if place is not None:
            self.note(f"in:       {place}")
        if excerpt is not None:
            for line in excerpt.splitlines():
                self.note(f"  {line}")


class ParamsError(FormatError):
    """A parameter file that is damaged, or that does not fit the program."""
