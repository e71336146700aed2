"""The call protocol: what calling an operator means is asked of one context variable
(`base/call_context.py`).

Eager execution, tracing and pattern building are handlers. A gradient rule or a model body is
written once, as plain calls, and works under each of them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from meta.base.call_context import context, override_context


class CallHandler(Protocol):
    """Gives a call its meaning.

    ``op`` is a base operator or, except for the default handler, a dialect's (which has the same
    ``schema``, ``infer``, ``call_values``, ``random`` and ``promotes``). ``args`` and ``kwargs``
    are as the caller wrote them.
    """

    def __call__(self, op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class Default:
    """Holds what the VM floor installs: the handler of threads that set none, which is eager
    execution; what records a call for `backward` and returns its result; and what returns the
    error to raise for a call from what its kernel raised.
    """

    handler: CallHandler
    recorded: Callable[[Any, tuple[Any, ...], Any], Any]
    failed: Callable[[Any, tuple[Any, ...], Exception], Exception]


def current() -> CallHandler | None:
    """Return what gives calls their meaning here; None: they are run at once."""
    handler: CallHandler | None = context.get().handler
    return handler


def mixed_precision() -> bool:
    """Whether a block of mixed precision casts the arguments of calls that are made now."""
    return bool(getattr(current(), "casts", False))


def use(handler: CallHandler | None) -> AbstractContextManager[None]:
    """Let ``handler`` (None: the default) give calls their meaning in this block."""
    return override_context(handler=handler)
