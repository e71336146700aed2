"""Remainders by powers of two in indices, which LLVM's loop vectoriser takes for no remainders.

``x[(i % 8) * 8 + j]`` for i below 16 is read by LLVM 22 as ``x[i * 8 + j]``: TVM lowers the
remainder to ``i & 7``, LLVM describes that as a number of 3 bits which is assumed not to wrap
around, and where the loop over j is unrolled, nothing is left of the test of this assumption. What
TVM has vectorised itself is as it should be. Here the mask is a number that LLVM does not know.
"""

from __future__ import annotations

from typing import Any

import tvm.ir
import tvm_ffi
from tvm import tirx

from meta.dialect.tvm import llvm_code


def _definition(symbol: str, dtype: str, lanes: int) -> str:
    """The bits of the first number that the second has, which is hidden from the optimiser."""
    kind = llvm_code.integers(dtype, lanes)
    return f"""
define {kind} @{symbol}({kind} %x, {kind} %mask) nounwind {{
  %hidden = call {kind} asm "", "=r,0"({kind} %mask) nounwind memory(none)
  %y = and {kind} %x, %hidden
  ret {kind} %y
}}"""


_MASKED = llvm_code.function("masked", 2, _definition)


def hidden(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """Return a lowered function whose scalar accesses have such masks in their indices."""

    def of_load(node: Any) -> Any:
        indices = _masked(node.indices)
        return node if indices is None else tirx.BufferLoad(node.source, indices)

    def of_store(node: Any) -> Any:
        indices = _masked(node.indices)
        return node if indices is None else tirx.BufferStore(node.buffer, node.value, indices)

    def of_name(node: Any) -> Any:  # of a part of several indices
        value = _masked([node.value])
        return node if value is None else tirx.Bind(node.var, *value)

    rules = [(tvm.ir.TensorLoad, of_load), (tirx.BufferStore, of_store), (tirx.Bind, of_name)]
    return function.with_body(tvm_ffi.structural_map(function.body, rules, order="post"))


def _masked(values: Any) -> list[Any] | None:
    """Return values without such remainders, or None if they have none."""
    new = [tvm_ffi.structural_map(v, [(tirx.FloorMod, _remainder)], order="post") for v in values]
    same = all(a.same_as(b) for a, b in zip(new, values, strict=True))
    return None if same else new


def _remainder(node: Any) -> Any:
    divisor = node.b.value if isinstance(node.b, tirx.IntImm) else 0
    if divisor < 2 or divisor & (divisor - 1):
        return node
    return llvm_code.call(_MASKED, node.a, tirx.const(divisor - 1, str(node.a.ty.dtype)))
