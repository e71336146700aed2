"""`@function`: public functions that are composed of operators.

Such a function has no kernel and no gradient rule of its own: the operators that it calls bring
both. It takes arrays, what can become one, and values of a program that is being traced.
``meta.<name>`` is found as an operator is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast

from meta.base.errors import ArgumentError, RegistrationError
from meta.base.registry import FUNCTIONS, OPERATORS
from meta.base.source import definition_span
from meta.op.core.handler import current
from meta.op.core.schema import other_argument
from meta.op.core.tracing import Symbol, Trace
from meta.runtime.ndarray import as_array, ndarray

F = TypeVar("F", bound=Callable[..., Any])


def function(f: F) -> F:
    """Register a composed function under its name; RegistrationError if the name is taken.

    A call that does not fit its signature is an ArgumentError, as that of an operator is.
    """
    site = definition_span(f)
    if f.__name__ in OPERATORS:
        raise RegistrationError(
            f"the function {f.__name__!r} has the name of an operator",
            found=f"{site} and {OPERATORS.site(f.__name__)}",
            hint="rename one of them",
            span=site,
        )
    call = checked(f)
    FUNCTIONS.register(f.__name__, call, site)
    return call


def checked(f: F) -> F:
    """Return a function whose call is an ArgumentError if it does not fit the signature."""
    signature = inspect.signature(f)

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except TypeError:
            _require_fit(f.__name__, signature, args, kwargs)
            raise

    return cast(F, call)


def _require_fit(
    name: str, signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = tuple(signature.parameters)
        unknown = [n for n in kwargs if n not in names]
        plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        raise ArgumentError(
            f"there is no argument {unknown[0]!r}" if unknown else str(error),
            op=name,
            expected=f"{name}{inspect.Signature(plain)}",
            hint=other_argument(unknown[0], names) if unknown else None,
        ) from None


def operand(x: Any) -> Any:
    """Return a tensor argument as an ndarray, or as it is where it is traced."""
    return x if isinstance(x, ndarray | Symbol) else as_array(x)


def device_of(x: Any) -> str:
    """Return where new arrays are to be made: where ``x`` is, or the program's inputs are."""
    trace = current()
    return str(trace.device if isinstance(trace, Trace) else x.device)
