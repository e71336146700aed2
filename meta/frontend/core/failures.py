"""What a program asks for and has no converter, and the one error that lists all of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from meta.base.errors import FormatError


@dataclass(frozen=True)
class Failure:
    """A call that is not converted; ``place`` is the source's name of its node or variable."""

    operator: str
    why: str
    hint: str | None = None
    place: str = ""


_Error = TypeVar("_Error", bound=FormatError)


def conversion_error(
    failures: Iterable[Failure], kind: type[_Error], hint: str | None = None
) -> _Error:
    """Return the error, of a kind, that lists failures: each operator once, how often, and where
    first.
    """
    grouped: dict[tuple[str, str], list[Failure]] = {}
    for failure in failures:
        grouped.setdefault((failure.operator, failure.why), []).append(failure)
    most = sorted(grouped.items(), key=lambda item: -len(item[1]))
    count = sum(map(len, grouped.values()))
    calls = "call of this program is" if count == 1 else "calls of this program are"
    error = kind(f"{count} {calls} not supported", hint=hint)
    error.failures = tuple(found for group in grouped.values() for found in group)
    for (operator, why), found in most:
        times = "once" if len(found) == 1 else f"{len(found)} times"
        place = f", first at {found[0].place}" if found[0].place else ""
        near = f" ({found[0].hint})" if found[0].hint else ""
        error.note(f"  - {operator}, {times}{place}: {why}{near}")
    return error
