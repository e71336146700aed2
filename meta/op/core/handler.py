"""The call protocol: what calling an operator means is asked of one context variable.

Eager execution, tracing and pattern building are handlers. A gradient rule or a model body is
written once, as plain calls, and works under each of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol


class CallHandler(Protocol):
    """Gives a call its meaning.

    ``op`` is a base operator or, except for the default handler, a dialect's (which has the same
    ``schema``, ``infer``, ``call_values``, ``random`` and ``promotes``). ``args`` and ``kwargs``
    are as the caller wrote them.
    """

    def __call__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class Default:
    """Holds the handler of threads that set none: eager execution, installed by the VM floor."""

    handler: CallHandler


current: ContextVar[CallHandler | None] = ContextVar("meta_call_handler", default=None)


def mixed_precision() -> bool:
    """Whether a block of mixed precision casts the arguments of calls that are made now."""
    return bool(getattr(current.get(), "casts", False))


@contextmanager
def use(handler: CallHandler | None) -> Iterator[None]:
    """Let ``handler`` (None: the default) give calls their meaning in this block."""
    token = current.set(handler)
    try:
        yield
    finally:
        current.reset(token)
