"""`@function`: public functions that are composed of operators.

Such a function has no kernel and no gradient rule of its own: the operators that it calls bring
both. It takes arrays, what can become one, and values of a program that is being traced.
``meta.<name>`` is found as an operator is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from meta.base.call_context import current
from meta.base.errors import RegistrationError
from meta.base.registry import FUNCTIONS, OPERATORS
from meta.base.signature_check import check_signature
from meta.base.source import definition_span
from meta.op.core.tracing import Symbol, Trace
from meta.runtime import view_copies
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
    call = check_signature(f)
    FUNCTIONS.register(f.__name__, call, site)
    return call


def as_operand(x: Any) -> Any:
    """Return a tensor argument as an ndarray, or as it is where it is traced."""
    return x if isinstance(x, ndarray | Symbol) else as_array(x)


def make_writable(x: Any) -> Any:
    """Return a new array that a function made by an index or by a permutation, as one that may be
    written: what it was made of is the function's alone.
    """
    if type(x) is ndarray:
        x.tensor = view_copies.without_mark(x.tensor)
    return x


def device_of(x: Any) -> str:
    """Return where new arrays are to be made: where ``x`` is, or the program's inputs are."""
    trace = current()
    return str(trace.device if isinstance(trace, Trace) else x.device)
