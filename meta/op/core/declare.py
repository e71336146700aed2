"""`@op`: makes a base operator of a type function, and checks what it is given: the function, the
name, and arguments that are named.
"""

from __future__ import annotations

import inspect
import keyword
import sys
from collections.abc import Callable
from typing import Any, overload

from meta.base.errors import RegistrationError
from meta.base.registry import FUNCTIONS, OPERATORS
from meta.base.source import definition_span
from meta.ir.operators import OP_RESOLVERS
from meta.op.core.axes import AxesRule
from meta.op.core.indices import IndexRule
from meta.op.core.names import NO_NAMES, Names
from meta.op.core.op import ComposedOp, Op
from meta.op.core.schema import Schema


@overload
def op(function: Callable[..., Any]) -> Op: ...
@overload
def op(
    *,
    composed: bool,
    name: str = ...,
    like: Op | None = ...,
    elementwise: bool = ...,
    commutative: bool = ...,
    float8: bool = ...,
    complex: bool = ...,
    axes: AxesRule | None = ...,
    indices: IndexRule | None = ...,
    promotes: tuple[str, ...] = ...,
    names: Names = ...,
) -> Callable[[Callable[..., Any]], ComposedOp]: ...
@overload
def op(
    *,
    name: str = ...,
    schema: Op | None = ...,
    like: Op | None = ...,
    options: Op | None = ...,
    random: bool = ...,
    collective: str = ...,
    elementwise: bool = ...,
    commutative: bool = ...,
    float8: bool = ...,
    complex: bool = ...,
    axes: AxesRule | None = ...,
    indices: IndexRule | None = ...,
    promotes: tuple[str, ...] = ...,
    counts_as_float: bool = ...,
    unary: str = ...,
    view_elsewhere: bool = ...,
    names: Names = ...,
) -> Callable[[Callable[..., Any]], Op]: ...
def op(
    function: Callable[..., Any] | None = None,
    *,
    name: str = "",
    schema: Op | None = None,
    like: Op | None = None,
    options: Op | None = None,
    random: bool = False,
    collective: str = "",
    elementwise: bool = False,
    commutative: bool = False,
    float8: bool = False,
    complex: bool = False,
    axes: AxesRule | None = None,
    indices: IndexRule | None = None,
    composed: bool = False,
    promotes: tuple[str, ...] = (),
    counts_as_float: bool = False,
    unary: str = "",
    view_elsewhere: bool = False,
    names: Names = NO_NAMES,
) -> Any:
    """Make a base operator of a type function and register it under the function's name.

    Parameters
    ----------
    name: another name than the function's.
    schema: an operator whose schema is shared; the function then takes the same parameters, or
        ``*arguments`` where it hands them all on.
    like: an operator whose schema and type function are shared; the function has a name and a
        docstring alone.
    options: an operator whose attributes and run-time numbers this one takes, too, as ``*options``
        behind its own parameters: those of a gradient operator's forward operator.
    random: the result is not determined by the arguments.
    elementwise: each element of the result is made of the elements at its place in the tensors,
        which are broadcast, alone. Passes may then cut the tensors (`meta.passes.distributed`).
    commutative: exchanging the first two arguments changes no element of the result.
    float8: tensors of float8 are taken, too: it only moves or converts elements.
    complex: complex tensors are taken, too. An operator that takes float8 takes them as well.
    axes: how the axes of tensors belong together, where ``elementwise`` does not say it; see
        `axes.py`. ``like`` shares it.
    indices: a function of some of the arguments, by name, that says which of them are indices, and
        into what; see `indices.py`.
    composed: a call takes more than the schema; see `ComposedOp`.
    promotes: names of the slots whose operands are cast to one dtype in a user's call; see
        `promotion.py`.
    counts_as_float: integers and bools among these count as float32 in a user's call.
    unary: the operator that a call with the first argument alone means, as NumPy has it.
    view_elsewhere: NumPy and PyTorch return a view of the first argument; this is a copy of it.
    names: what other systems call the operator, where it takes the same operands; see `names.py`.

    Raises RegistrationError for a name that is taken (naming both sites) or no word, an annotation
    that is no slot kind, and for ``indices`` and ``promotes`` of what is no argument.
    """
    for word, other in (("schema", schema), ("like", like), ("options", options)):
        if other is not None and not isinstance(other, Op):
            raise RegistrationError(
                f"{word}= of @op is no operator", expected="such as meta.op.relu", found=repr(other)
            )

    def make(f: Callable[..., Any]) -> Op:
        _check_function(f)
        op_name = name or f.__name__
        _check_name(op_name, f)
        if like is not None:
            own = like.schema.named(op_name)
        elif schema is not None:
            own = schema.schema.shared(op_name, f)
        else:
            own = Schema(op_name, f, None if options is None else options.schema)
        _check_rule(own, "axes", axes, f)
        _check_rule(own, "indices", indices, f)
        _check_indices(own, indices, f)
        _check_promotes(own, promotes, f)
        made = (ComposedOp if composed else Op)(
            f,
            name=op_name,
            schema=own,
            random=random,
            collective=collective,
            elementwise=elementwise,
            commutative=commutative,
            float8=float8,
            complex=complex,
            axes=like.axes if axes is None and like is not None else axes,
            indices=indices,
            promotes=promotes,
            counts_as_float=counts_as_float,
            unary=unary,
            view_elsewhere=view_elsewhere,
            names=names,
        )
        if like is not None:
            made.type_function = like.type_function
        OPERATORS.register(op_name, made, made.site)
        return made

    return make if function is None else make(function)


def _check_function(function: Any) -> None:
    """Raise RegistrationError for a type function that is no function of Python."""
    if not inspect.isfunction(function):
        raise RegistrationError(
            "@op is above what is no function",
            expected="a function of the types of the arguments",
            found=f"{function!r:.200}",
        )


def _check_name(name: Any, function: Callable[..., Any]) -> None:
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


def _check_promotes(schema: Schema, promotes: Any, function: Callable[..., Any]) -> None:
    """Raise RegistrationError for operands to promote that are no arguments."""
    if definition_span(function).is_own:  # as below: a test looks at ours
        return
    if isinstance(promotes, str) or any(name not in schema.index for name in promotes):
        raise RegistrationError(
            f"promotes= of operator {schema.name!r} has what is no argument",
            expected=f"a tuple of some of {schema.names}",
            found=repr(promotes),
            span=definition_span(function),
        )


def _check_rule(schema: Schema, what: str, rule: Any, function: Callable[..., Any]) -> None:
    """Raise RegistrationError for a rule of axes or of indices that is none."""
    if rule is not None and not callable(rule):
        raise RegistrationError(
            f"the {what} of operator {schema.name!r} are no function",
            expected="a function of arguments; see meta/op/core",
            found=repr(rule),
            span=definition_span(function),
        )


def _check_indices(schema: Schema, indices: Any, function: Callable[..., Any]) -> None:
    """Raise RegistrationError for a rule of indices that asks for no argument."""
    span = definition_span(function)
    if span.is_own:
        return
    asked = () if indices is None else tuple(inspect.signature(indices).parameters)
    unknown = [n for n in asked if n not in schema.index]
    if unknown:
        raise RegistrationError(
            f"the indices of operator {schema.name!r} depend on {unknown[0]!r}, which is no "
            "argument",
            expected=f"some of {schema.names}",
            span=span,
        )
