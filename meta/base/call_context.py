"""`CallContext`: what decides the meaning of an operator call, in one context variable.

Three kinds of blocks change it, each on its own floor: a call handler (tracing, mixed precision;
`op/core/handler.py`), knobs (`base/config.py`) and a preference for dialects
(`dialect/core/preference.py`). They stand in one object, so that an eager call, which has a
microsecond, asks once: `alone` and `pairs` have the kernels that it may run without asking anything
else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

_KEEP: Any = object()


class CallContext:
    """What holds in a block; it is not changed, but replaced for an inner block.

    Attributes
    ----------
    handler: gives calls their meaning; None: they are run at once. knobs: overridden ones; None:
    none is. preference: the user's choice of dialects; None until their floor is imported.
    alone, pairs: by operator, what runs a call of one array, by its key, and of two operands, by
    their keys: the key alone where both have the same, as most have. They are the preference's
    where nothing else is to be asked, else empty dicts, which stay empty.
    """

    __slots__ = ("alone", "handler", "knobs", "pairs", "preference")

    def __init__(self, handler: Any, knobs: dict[str, Any] | None, preference: Any) -> None:
        self.handler, self.knobs, self.preference = handler, knobs, preference
        plain = handler is None and knobs is None and preference is not None
        self.alone: dict[Any, Any] = preference.alone if plain else {}
        self.pairs: dict[Any, Any] = preference.pairs if plain else {}


_default = CallContext(None, None, None)
context: ContextVar[CallContext] = ContextVar("meta_call_context", default=_default)


def set_default_preference(preference: Any) -> None:
    """Set the preference of contexts that no block has changed, in every thread."""
    _default.preference = preference
    _default.alone, _default.pairs = preference.alone, preference.pairs


@contextmanager
def override_context(
    handler: Any = _KEEP, knobs: Any = _KEEP, preference: Any = _KEEP
) -> Iterator[None]:
    """Replace parts of the context in a block, in this thread (or task) only."""
    before = context.get()
    token = context.set(
        CallContext(
            before.handler if handler is _KEEP else handler,
            before.knobs if knobs is _KEEP else knobs,
            before.preference if preference is _KEEP else preference,
        )
    )
    try:
        yield
    finally:
        context.reset(token)


T = TypeVar("T")


@contextmanager
def overriding(variable: ContextVar[T], change: Callable[[T], T]) -> Iterator[T]:
    """Let another variable hold, in a ``with`` block of this thread (or task), what a function
    makes of its value on entry. What is decided together stands in one frozen object.
    """
    value = change(variable.get())
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)
