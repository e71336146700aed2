"""The free variables of an expression: what a bare expression takes as its parameters."""

from __future__ import annotations

from meta.frontend.relay import ast
from meta.frontend.relay.subexpressions import bound_variables, subexpressions


def free_variables(expression: ast.Expr) -> tuple[ast.Var, ...]:
    """Return the variables that an expression uses and does not bind, in the order of their first
    use. A variable is bound in one place only: it is known by its node, not by its name.
    """
    used: dict[ast.Var, None] = {}
    bound: set[ast.Var] = set()
    seen: set[ast.Expr] = set()
    stack = [expression]
    while stack:
        current = stack.pop()
        if current in seen:
            continue
        seen.add(current)
        if isinstance(current, ast.Var):
            used[current] = None
            continue
        bound.update(bound_variables(current))
        stack.extend(reversed(subexpressions(current)))
    return tuple(v for v in used if v not in bound)
