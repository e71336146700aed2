"""The free variables of an expression: what a bare expression takes as its parameters."""

from __future__ import annotations

from meta.frontend.relay import ast


def _pattern_variables(pattern: ast.Pattern) -> list[ast.Var]:
    found, stack = [], [pattern]
    while stack:
        match stack.pop():
            case ast.PatternVar(var=var):
                found.append(var)
            case ast.PatternConstructor(patterns=patterns) | ast.PatternTuple(patterns=patterns):
                stack.extend(patterns)
    return found


def _parts(expression: ast.Expr) -> tuple[tuple[ast.Expr, ...], tuple[ast.Var, ...]]:
    """Return the direct subexpressions, in order, and the variables that are bound here."""
    match expression:
        case ast.Call():
            return (expression.op, *expression.args), ()
        case ast.Tuple():
            return expression.fields, ()
        case ast.TupleGetItem() | ast.RefCreate():
            return (expression.value,), ()
        case ast.RefRead():
            return (expression.ref,), ()
        case ast.RefWrite():
            return (expression.ref, expression.value), ()
        case ast.Let():
            return (expression.value, expression.body), (expression.var,)
        case ast.If():
            branches = (expression.then_branch, expression.else_branch)
            return (expression.condition, *branches), ()
        case ast.Function():
            return (expression.body,), expression.params
        case ast.Match():
            bound = [v for c in expression.clauses for v in _pattern_variables(c.pattern)]
            return (expression.value, *(c.body for c in expression.clauses)), tuple(bound)
    return (), ()


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
        parts, variables = _parts(current)
        bound.update(variables)
        stack.extend(reversed(parts))
    return tuple(v for v in used if v not in bound)
