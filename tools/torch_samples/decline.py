"""How an adapter says that a sample is outside of what `meta` declares."""

from __future__ import annotations


class Declined(Exception):
    """The sample asks for something that `meta` does not offer; the message says what."""


def decline_if(condition: object, reason: str) -> None:
    """Raise Declined for a sample that fulfils the condition."""
    if condition:
        raise Declined(reason)
