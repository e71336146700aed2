"""What the text form needs to know of operators, without importing them: their names and slots.

A plain name, ``softmax``, is looked up among the base operators. A dotted name, ``tvm.softmax``, is
left to whoever owns the first part: a floor above adds ``OP_RESOLVERS["tvm"] = resolve``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from meta.base.errors import UnknownName
from meta.base.registry import OPERATORS, nearest
from meta.ir.expr import OpNode
from meta.ir.node import Expr

OP_RESOLVERS: dict[str, Callable[[str], OpNode]] = {}
"""By the part before the first dot: a function from the rest to the operator, or UnknownName."""


class SlotLike(Protocol):
    """One parameter of an operator's schema; ``default`` counts if ``has_default``."""

    name: str
    default: Any
    has_default: bool


def resolve_op(name: str) -> OpNode:
    """Return the operator of that name; UnknownName, with what it is called, if there is none."""
    prefix, dot, rest = name.partition(".")
    if dot and name not in OPERATORS:
        if prefix in OP_RESOLVERS:
            return OP_RESOLVERS[prefix](rest)
        known = [f"{p}.{rest}" for p in OP_RESOLVERS]
        raise UnknownName(
            f"nobody resolves operators named {prefix + '.'!r}", hint=nearest(name, known)
        )
    found: OpNode = OPERATORS[name]  # raises UnknownName
    return found


def slots_of(callee: Expr) -> Sequence[SlotLike] | None:
    """Return the slots of an operator in schema order; None for any other callee."""
    schema = getattr(callee, "schema", None)
    if schema is None:
        return None
    slots: Sequence[SlotLike] = schema.slots
    return slots
