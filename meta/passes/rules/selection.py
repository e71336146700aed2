"""Rules of `where`."""

from __future__ import annotations

from meta.ir import Expr
from meta.passes.rules.fills import fill_of
from meta.passes.rules.table import RULES, Site, call, tensor_type


@RULES.rule("where")
def decided(at: Site) -> Expr | None:
    """A choice between x and x, or by a condition that is the same everywhere."""
    condition, x, y = at.args
    if x is y:
        chosen = x
    else:
        fill = fill_of(condition, at.known)
        if fill is None:
            return None
        chosen = x if fill else y
    if tensor_type(chosen) is None or at.same(chosen) is not None or not at.type.is_static:
        return at.same(chosen)
    return call("broadcast_to", chosen, at.type.static_shape)
