"""Calls of operators: the converters are called, at once where all that they are given is known."""

from __future__ import annotations

from typing import Any

from meta.base.errors import MetaError
from meta.dialect.core.preference import only
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.relay import ast, converters
from meta.frontend.relay.convert.context import Context
from meta.frontend.relay.convert.types import Bindings, relay_text
from meta.frontend.relay.convert.values import leaves, type_of
from meta.frontend.relay.errors import RelayError
from meta.frontend.relay.registry import relay
from meta.ir import Call, Op, TensorType
from meta.op.core.handler import use
from meta.op.core.op import Op as BaseOp
from meta.op.core.tracing import Trace, Value
from meta.runtime.ndarray import ndarray

__all__ = ["MAX_KNOWN", "call_operator", "converters"]

MAX_KNOWN = 1 << 16
"""What is computed of known arrays is known itself up to this many elements, given and made."""

_BAD_ATTRIBUTES = (
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    AttributeError,
    MemoryError,  # a size beyond all reason
)
"""What Python raises where an attribute of a file has not the form that the operator's have."""


def call_operator(
    context: Context, name: str, args: tuple[Any, ...], node: ast.Call | None, types: Bindings
) -> Any:
    """Convert a call of an operator and return its value.

    Raises RelayError, with the place, for a call that cannot be converted and for a result of
    another type than the program states.
    """
    attrs = None if node is None else node.attrs
    stated = None if node is None else node.checked_type
    fields = {} if attrs is None else attrs.fields
    for leaf in leaves(args):
        if not isinstance(leaf, ndarray) and not isinstance(type_of(leaf), TensorType):
            raise context.error(
                f"{name} is given a value that is no tensor",
                found=type_of(leaf) or type(leaf).__name__,
            )
    site = CallSite(
        name,
        context.program.module.version,
        frozenset(fields),
        attrs is not None,
        context.training,
        context.root.device,
        stated,
    )
    try:
        result = _convert(context, site, args, fields)
    except Unconvertible as error:
        raise context.error(
            f"{name} cannot be converted: {error.why}",
            found=_call_text(name, args),
            hint=error.hint,
        ) from error
    except RelayError:
        raise
    except MetaError as error:
        error.note(f"in:       {_call_text(name, args)}, {context.place or 'of the program'}")
        raise
    except _BAD_ATTRIBUTES as error:
        raise context.error(
            f"the attributes of {name} cannot be used: {error or type(error).__name__}",
            found=f"{_call_text(name, args)} with {fields}",
        ) from error
    type_ = type_of(result)
    if type_ is not None and not context.types.unify(stated, type_, dict(types)):
        raise context.error(
            f"the result of {name} has not the type that the program states",
            expected=relay_text(stated),
            found=f"{type_}, of {_call_text(name, args)}",
        )
    return result


def _call_text(name: str, args: tuple[Any, ...]) -> str:
    return f"{name}({', '.join(str(type_of(a)) for a in args)})"


def _convert(
    context: Context, site: CallSite, args: tuple[Any, ...], fields: dict[str, Any]
) -> Any:
    known = [a for a in leaves(args) if isinstance(a, ndarray)]
    if len(known) == len(leaves(args)) and sum(a.size for a in known) <= MAX_KNOWN:
        scratch = Trace(context.root.device)
        result = _plain(scratch.run(relay.apply, site, args, fields))
        if _can_be_known(scratch, result):
            # By the reference dialect: so it compiles no kernel.
            with use(None), only("torch"):
                return _plain(relay.apply(site, args, fields))
    return _plain(relay.apply(site, args, fields))


def _plain(result: Any) -> Any:
    return tuple(map(_plain, result)) if isinstance(result, tuple | list) else result


def _can_be_known(scratch: Trace, result: Any) -> bool:
    """Whether a result is small, and depends on nothing but the arguments."""
    types = [type_of(leaf) for leaf in leaves(result)]
    if scratch.functions or not all(isinstance(t, TensorType) and t.is_static for t in types):
        return False
    if sum(t.size for t in types if isinstance(t, TensorType)) > MAX_KNOWN:
        return False
    values = [b.value for b in scratch.finish(_atoms(result)).bindings]
    calls = [v for v in values if isinstance(v, Call)]
    return all(
        isinstance(c.callee, Op)
        and isinstance(c.callee, BaseOp)
        and not (c.callee.random or c.callee.has_effect)
        for c in calls
    )


def _atoms(result: Any) -> Any:
    return tuple(v for v in leaves(result) if isinstance(v, Value | ndarray))
