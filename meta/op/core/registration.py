"""What authors register, checked where it enters: operators, functions, and what these answer.

Each error names the author's file and line.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from meta.base.errors import RegistrationError
from meta.base.registry import FUNCTIONS, OPERATORS, close_names
from meta.base.source import Span, definition_span, python_function
from meta.op.core.op import Op


def require_op(given: Any, what: str, span: Span | None = None) -> None:
    """Raise RegistrationError unless an author gives an operator. ``what`` is for it, "a kernel";
    ``span``: the author's line, by default the innermost that is not of this package.
    """
    if isinstance(given, Op):
        return
    hint, base = None, getattr(given, "base", None)
    if isinstance(given, str):
        names = [given] if given in OPERATORS else close_names(given, OPERATORS)
        hint = " or ".join(f"meta.op.{name}" for name in names) or None
    elif isinstance(base, Op):
        hint = f"meta.op.{base.name}, of which {given.name} is one implementation"
    elif any(given is one for one in FUNCTIONS.values()):
        hint = "it is composed of operators, which have all of it"
    elif callable(given):
        hint = "the operator comes first, in parentheses behind the decorator's name"
    raise RegistrationError(
        f"{what} is of no operator",
        expected="an operator, such as meta.op.relu",
        found=f"{given!r:.200} ({type(given).__name__})",
        hint=hint,
        span=span,
    )


def require_function(
    given: Any, what: str, span: Span | None = None, *, classes: bool = False
) -> None:
    """Raise RegistrationError unless an author gives a function, or an object that is called as
    one. A generator and a coroutine are none, and unless ``classes`` may stand there, a class.
    """
    body = given if inspect.isroutine(given) else python_function(given)
    waits = inspect.isgeneratorfunction(body) or inspect.iscoroutinefunction(body)
    if not callable(given) or (isinstance(given, type) and not classes) or waits:
        raise RegistrationError(
            f"{what} is no plain function",
            expected="a function that returns what it computes",
            found=f"{given!r:.200}",
            span=span,
        )


def reason_of(function: Callable[..., Any], given: Any, what: str) -> str | None:
    """Return the answer of an author's function that says why not: a reason, or None.

    RegistrationError, at the function's line, for any other: True and False read both ways.
    """
    if given is None or (isinstance(given, str) and given.strip()):
        return given
    raise RegistrationError(
        f"{what} returns {given!r:.100}",
        expected="None to accept, or a string with the reason to decline",
        found=type(given).__name__ if not isinstance(given, str) else "an empty reason",
        span=definition_span(function),
    )


@lru_cache(maxsize=4096)
def parameters(function: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of a function's parameters. They are asked for each new kind of call.

    RegistrationError for what does not say them, and for parameters that cannot be named.
    """
    try:
        found = inspect.signature(function).parameters
    except (TypeError, ValueError):
        raise RegistrationError(
            "the parameters of a function are not known",
            expected="a function that is written in Python",
            found=f"{function!r:.200}",
            hint="lambda x: ..., which names the arguments that it takes",
            span=definition_span(function),
        ) from None
    nameless = [n for n, p in found.items() if p.kind is p.POSITIONAL_ONLY]
    if nameless:
        raise RegistrationError(
            f"parameters of a function are by position only: {', '.join(nameless)}",
            expected="parameters that are given by name",
            span=definition_span(function),
        )
    return tuple(found)
