"""Products of matrices, and stacks of them, read as an equation of axes."""

from __future__ import annotations

from dataclasses import dataclass

from meta.ir import Expr, TensorType, Tuple
from meta.op.core.subscripts import subscripts
from meta.passes.rules.table import OpCall, tensor_type

_EQUATIONS = {
    "matmul": "ab,bc->ac",
    "dense": "ab,cb->ac",
    "matmul_nt": "ab,cb->ac",
    "matmul_tn": "ba,bc->ac",
    "matmul_tt": "ba,cb->ac",
    "batch_matmul": "nab,nbc->nac",
    "batch_matmul_nt": "nab,ncb->nac",
    "batch_matmul_tn": "nba,nbc->nac",
    "batch_matmul_tt": "nba,ncb->nac",
}
PRODUCTS = (*_EQUATIONS, "einsum")


@dataclass(frozen=True, slots=True)
class Product:
    """A product of two tensors, summed over one axis.

    ``operands``, and per operand and for the result a label for each dimension, None where an
    operand has extent 1 and the result more. ``summed``: the label of the axis summed over.
    """

    operands: tuple[Expr, Expr]
    labels: tuple[tuple[str | None, ...], tuple[str | None, ...]]
    result: tuple[str, ...]
    summed: str
    extents: dict[str, int]


def product(made: OpCall | None) -> Product | None:
    """Read a call as a product, of which no dimension is summed alone; None if it is none."""
    if made is None or made.name not in PRODUCTS:
        return None
    if made.name == "einsum":
        fields = made.args[0].fields if isinstance(made.args[0], Tuple) else ()
        equation = made.args[1]
    else:
        fields, equation = made.args[:2], _EQUATIONS[made.name]
    types = [t for t in map(tensor_type, fields) if t is not None and t.is_static]
    if len(types) != 2 or len(fields) != 2 or not _has_axes(made.name, equation, types):
        return None
    read = subscripts(equation, [t.static_shape for t in types])
    first, second = read.operands
    summed = [s for s in read.extents if s not in read.result]
    if len(summed) != 1 or summed[0] not in first or summed[0] not in second:
        return None
    if len(set(first)) < len(first) or len(set(second)) < len(second):
        return None  # a diagonal
    extents = {label: int(n) for label, n in read.extents.items()}  # type: ignore[arg-type]
    labels = tuple(
        tuple(s if n == extents[s] else None for s, n in zip(own, t.static_shape, strict=True))
        for own, t in zip(read.operands, types, strict=True)
    )
    if any(summed[0] not in own for own in labels):
        return None
    return Product((fields[0], fields[1]), (labels[0], labels[1]), read.result, summed[0], extents)


def _has_axes(name: str, equation: str, types: list[TensorType]) -> bool:
    """Whether operands have as many axes as the equation of a product that is no `einsum` says."""
    if name == "einsum":
        return True
    terms = equation.split("->")[0].split(",")
    return all(len(term) == t.ndim for term, t in zip(terms, types, strict=True))
