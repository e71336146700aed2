"""The check of a type function: it says the same each time, and of symbolic extents what it says of
their numbers.
"""

from __future__ import annotations

from typing import Any

from meta.base.errors import MetaError
from meta.base.registry import OPERATORS
from meta.ir.dims import Dim, SymbolicDim
from meta.ir.types import TensorType, TupleType
from meta.op.core.call import map_tensors, result_types
from meta.testing.case import OpCase, Sample
from meta.testing.shapes import inferred, types_of


def check_types(case: OpCase, one: Sample, dtype: str) -> Any:
    """Return what the type function says of a sample; AssertionError if it says something else the
    second time, or for the same extents as symbols. Symbols it may refuse, by an error of `meta`.
    """
    op, what = OPERATORS[case.op], f"the type function of {case.op}({one}) says"
    found = inferred(case, one, dtype)
    again = inferred(case, one, dtype)
    assert again == found, f"{what} {found}, and the second time {again}"
    if not isinstance(found, TensorType | TupleType):
        return found
    extents: dict[str, int] = {}

    def symbol(extent: Dim) -> Dim:
        if not isinstance(extent, int) or extent < 2:  # 1 is what broadcasts, whatever n is
            return extent
        extents[f"n{extent}"] = extent
        return SymbolicDim(f"n{extent}")

    types = types_of(case, one, dtype)
    symbolic = map_tensors(op, types, lambda t: t.with_shape(tuple(map(symbol, t.shape))))
    try:
        general = op.infer(symbolic)
    except MetaError:
        return found
    says = f"{what} {found}, and of {symbolic} {general}"
    assert isinstance(general, type(found)) and len(result_types(general)) == len(
        result_types(found)
    ), says
    for exact, type_ in zip(result_types(found), result_types(general), strict=True):
        assert isinstance(exact, TensorType) and isinstance(type_, TensorType), says
        dims = tuple(d.evaluate(extents) if isinstance(d, SymbolicDim) else d for d in type_.shape)
        assert len(dims) == exact.ndim and type_.dtype == exact.dtype, says
        pairs = zip(dims, exact.shape, strict=True)
        assert all(d == e for d, e in pairs if isinstance(d, int) and isinstance(e, int)), says
    return found
