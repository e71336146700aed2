"""How often each expression of a function is used: what is used more than once gets a number."""

from __future__ import annotations

from meta.frontend.relay import ast
from meta.frontend.relay.subexpressions import subexpressions


def count_uses(root: ast.Expr) -> dict[ast.Expr, int]:
    """Return by expression in how many places it stands; the root stands in one."""
    uses = {root: 1}
    work = [root]
    while work:
        for part in subexpressions(work.pop()):
            if part not in uses:
                uses[part] = 0
                work.append(part)
            uses[part] += 1
    return uses
