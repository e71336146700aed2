"""Formulas of updates (`meta/op/core/formula.py`) as TIR expressions."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from tvm import tirx

from meta.op.core.formula import Expr, evaluate


def _clamp(x: Any, bound: Any) -> Any:
    """Return x within the bounds; what is no number stays so."""
    return tirx.Select(x > bound, bound, tirx.Select(x < -bound, -bound, x))


OPERATIONS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    ">": operator.gt,
    "==": lambda a, b: a.equal(b),
    "&": tirx.And,
    "**": tirx.power,
    "sqrt": tirx.sqrt,
    "where": tirx.Select,
    "clamp": _clamp,
}


def printer(
    wide: str, leaf: Callable[[Expr], Any], known: dict[Expr, Any] | None = None
) -> Callable[[Expr], Any]:
    """Return the function from nodes to expressions of dtype ``wide``.

    ``leaf`` gives those of leaves that are no constants, ``known`` those of further nodes.
    """
    values = {} if known is None else known

    def of_leaf(node: Expr) -> Any:
        return tirx.const(node.parts[0], wide) if node.kind == "constant" else leaf(node)

    return lambda node: evaluate(node, of_leaf, OPERATIONS, values)
