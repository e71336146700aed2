"""Stating the cast rules of several operators at once, as the table in `meta/amp/rules.py` does."""

from __future__ import annotations

from collections.abc import Callable

from meta.amp.core.rule import CustomRule, generic_cast, infer_cast, register_op_cast_rule
from meta.base.source import caller_span
from meta.op.core.op import Op


def always(*ops: Op) -> None:
    """Cast the floating point arguments of these operators to the half dtype."""
    site = caller_span()
    for op in ops:
        register_op_cast_rule(op, generic_cast(True), site)


def never(*ops: Op) -> None:
    """Cast the half precision arguments of these operators to float32."""
    site = caller_span()
    for op in ops:
        register_op_cast_rule(op, generic_cast(False), site)


def infer(*ops: Op) -> None:
    """Let the arguments decide: half precision if all of them have it, else the widest of them."""
    site = caller_span()
    for op in ops:
        register_op_cast_rule(op, infer_cast(), site)


def custom(*ops: Op) -> Callable[[CustomRule], CustomRule]:
    """Register a function as the cast rule of operators; a decorator."""

    def register(function: CustomRule) -> CustomRule:
        for op in ops:
            register_op_cast_rule(op, function)
        return function

    return register
