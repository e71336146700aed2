"""Rules of matrix products."""

from __future__ import annotations

from meta.ir import Expr
from meta.passes.rules.shapes import PERMUTATIONS, order_of
from meta.passes.rules.table import RULES, Site, call

# By operator: whether x1 and x2 are stored transposed.
_STORED = {
    f"{stem}{suffix}": flags
    for stem in ("matmul", "batch_matmul")
    for suffix, flags in (
        ("", (False, False)),
        ("_nt", (False, True)),
        ("_tn", (True, False)),
        ("_tt", (True, True)),
    )
}
_STORED["dense"] = (False, True)
# `matmul_nt` is what `dense` is, the name that layers use.
_NAMES = {(n.startswith("batch"), flags): n for n, flags in _STORED.items() if n != "matmul_nt"}
_SWAPPED = {2: (1, 0), 3: (0, 2, 1)}


@RULES.rule(*_STORED)
def transposed_operand(at: Site) -> Expr | None:
    """A product of a transposed matrix reads the matrix as it is stored."""
    operands, flags = list(at.args), list(_STORED[at.name])
    for i, operand in enumerate(operands):
        made = at.made_by(operand, *PERMUTATIONS)
        if made is not None and order_of(made) == _SWAPPED[at.type.ndim]:
            operands[i], flags[i] = made.args[0], not flags[i]
    if tuple(operands) == tuple(at.args):
        return None
    return call(_NAMES[at.name.startswith("batch"), (flags[0], flags[1])], *operands)
