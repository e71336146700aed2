"""Calls that do not fit a signature: an ArgumentError, as of an operator, and not a TypeError.

Python's own TypeError names neither what the argument is called here nor the whole signature.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from meta.base import argument_aliases
from meta.base.errors import ArgumentError, MetaError
from meta.base.registry import close_names, nearest

F = TypeVar("F", bound=Callable[..., Any])


def check_signature(f: F) -> F:
    """Return a function, or method, whose call is an ArgumentError if it does not fit."""
    signature = inspect.signature(f)
    name = f.__qualname__.split(".")[-2] if f.__name__ == "__init__" else f.__name__

    @functools.wraps(f)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            return f(*args, **kwargs)
        except MetaError:
            raise
        except TypeError:
            require_bindable(name, signature, args, kwargs)
            raise

    return cast(F, call)


def require_bindable(
    name: str, signature: inspect.Signature, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> None:
    """Raise ArgumentError for arguments that do not fit a signature."""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        names = tuple(signature.parameters)
        unknown = [n for n in kwargs if n not in names]
        plain = [p.replace(annotation=p.empty) for p in signature.parameters.values()]
        plain = plain[1:] if names[:1] == ("self",) else plain
        raise ArgumentError(
            f"there is no argument {unknown[0]!r}" if unknown else str(error),
            op=name,
            expected=f"{name}{inspect.Signature(plain)}",
            hint=suggest_argument(unknown[0], names) if unknown else _suggest_names(plain, args),
        ) from None


def _suggest_names(parameters: Sequence[inspect.Parameter], args: Sequence[Any]) -> str | None:
    """Return what to try where arguments are given by position that are taken by name."""
    named = [p.name for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    first = [p.name for p in parameters if p.kind < inspect.Parameter.VAR_POSITIONAL]
    if len(args) <= len(first) or not named:
        return None
    shape = ", a shape as one tuple" if "shape" in first else ""
    return f"first {', '.join(first)}{shape}; by name {', '.join(f'{n}=' for n in named)}"


def suggest_argument(name: str, names: Sequence[str]) -> str | None:
    """Return what to try instead of an argument that there is not."""
    if name in argument_aliases.NO_ARGUMENT:
        return argument_aliases.NO_ARGUMENT[name]
    for meant in argument_aliases.ARGUMENT.get(name, ()):
        if meant in names:
            return f"the argument is called {meant!r}"
    return nearest(name, names) if close_names(name, names) else None
