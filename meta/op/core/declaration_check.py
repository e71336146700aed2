"""Checks of what `@op` is given: the function, the name, and arguments that are named."""

from __future__ import annotations

import inspect
import keyword
import sys
from collections.abc import Callable
from typing import Any

from meta.base.errors import RegistrationError
from meta.base.registry import FUNCTIONS, OPERATORS
from meta.base.source import definition_span
from meta.ir.operators import OP_RESOLVERS
from meta.op.core.schema import Schema


def check_function(function: Any) -> None:
    """Raise RegistrationError for a type function that is no function of Python."""
    if not inspect.isfunction(function):
        raise RegistrationError(
            "@op is above what is no function",
            expected="a function of the types of the arguments",
            found=f"{function!r:.200}",
        )


def check_name(name: Any, function: Callable[..., Any]) -> None:
    """Raise RegistrationError for a name that an operator cannot have: one that is no word, or that
    means something else in `meta`.
    """
    span = definition_span(function)
    if name == "<lambda>" == function.__name__:
        return  # its schema says what is wrong with it
    if not isinstance(name, str) or not name.isidentifier() or keyword.iskeyword(name):
        raise RegistrationError(
            "an operator's name is a word", expected="such as softmax", found=repr(name), span=span
        )
    if name in OPERATORS:
        return  # to be said with both places
    taken = FUNCTIONS.site(name) if name in FUNCTIONS else OP_RESOLVERS.get(name)
    if not span.is_own:
        taken = taken or vars(sys.modules["meta"]).get(name)
    if taken is not None:
        raise RegistrationError(
            f"the operator {name!r} has a name that means something else in meta",
            found=f"{taken!r:.200}",
            hint="rename it: @op(name=...)",
            span=span,
        )


def check_promotes(schema: Schema, promotes: Any, function: Callable[..., Any]) -> None:
    """Raise RegistrationError for operands to promote that are no arguments."""
    if isinstance(promotes, str) or any(name not in schema.index for name in promotes):
        raise RegistrationError(
            f"promotes= of operator {schema.name!r} has what is no argument",
            expected=f"a tuple of some of {schema.names}",
            found=repr(promotes),
            span=definition_span(function),
        )


def check_indices(schema: Schema, indices: Any, function: Callable[..., Any]) -> None:
    """Raise RegistrationError for a rule of indices that is none, or asks for no argument."""
    span = definition_span(function)
    if indices is not None and not callable(indices):
        raise RegistrationError(
            f"the indices of operator {schema.name!r} are no function",
            expected="a function of some arguments that returns IndexRanges",
            found=repr(indices),
            span=span,
        )
    asked = () if indices is None else tuple(inspect.signature(indices).parameters)
    unknown = [n for n in asked if n not in schema.index]
    if unknown:
        raise RegistrationError(
            f"the indices of operator {schema.name!r} depend on {unknown[0]!r}, which is no "
            "argument",
            expected=f"some of {schema.names}",
            span=span,
        )
