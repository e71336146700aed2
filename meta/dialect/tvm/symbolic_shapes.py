"""Symbolic dimensions as TVM expressions: kernels that serve all extents.

Index arithmetic is done in 64 bits then, since nothing bounds the extents.
"""

from __future__ import annotations

from typing import Any

from tvm import te, tirx

from meta.ir.types import SymbolicDim, TensorType, UnknownDim


def expressible(type_: TensorType) -> bool:
    """Whether every dimension is a number or symbolic."""
    return not any(isinstance(dim, UnknownDim) for dim in type_.shape)


class Extents:
    """The variables that stand for the symbolic dimensions of one kernel, one for each polynomial.

    TVM reads them off the shapes of the arguments at each call.
    """

    def __init__(self) -> None:
        self._vars: dict[SymbolicDim, tirx.Var] = {}

    def shape(self, type_: TensorType) -> tuple[Any, ...]:
        """Return a shape in TVM's terms; the plain numbers of a static one."""
        return tuple(self._var(d) if isinstance(d, SymbolicDim) else d for d in type_.shape)

    def _var(self, dim: SymbolicDim) -> tirx.Var:
        if dim not in self._vars:
            self._vars[dim] = te.var(f"extent{len(self._vars)}", "int64")
        return self._vars[dim]
