"""Products with weights of 8 bits that a program casts, and maybe scales, before they are read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from meta import op
from meta.dialect.core.ir_calls import called_op, tensor_of
from meta.ir import Module, bindings
from meta.op.quantized import MIDDLE
from meta.passes.dead_code import dead_code
from meta.passes.pattern import Match, operator, pattern, rewrite


def _no_weight(match: Match) -> str | None:
    """Return why a match is no product with quantised weights, or None."""
    w, x, y = (tensor_of(v) for v in (match.captures["w"], match.captures["x"], match.root.var))
    if w.dtype not in MIDDLE or w.dtype == "uint8":
        return f"the weight is {w.dtype}"
    if x.dtype not in ("float32", "float16", "bfloat16"):
        return f"x is {x.dtype}"
    if not w.is_static or w.ndim != 2 or 0 in w.shape or x.dtype != y.dtype:
        return "the weight is no matrix of known extents"
    scale = match.captures.get("scale")
    if scale is not None and tensor_of(scale).shape != (w.shape[0], 1):
        return "the scales are not those of rows"
    return None


@pattern(check=_no_weight)
def cast_product(x: Any, w: Any, scale: Any) -> Any:
    """A product with a weight that is cast to the dtype of x, and scaled."""
    wide = op.astype(w, ...)
    return operator(op.dense, op.matmul_nt)(x, wide * scale | wide)


def _as_quantized(match: Match, x: Any, w: Any, scale: Any) -> Any:
    if scale is None:
        scale = op.ones((w.shape[0], 1), "float32")
    return op.quantized_matmul(x, w, scale)


def fuse_quantized_products(module: Module, *, trained: Iterable[int] | None = None) -> Module:
    """Call `quantized_matmul` where a program casts a weight of int8 or float8 for a product, or
    casts and scales its rows: nothing writes the weight down, and its numbers are rounded less.

    ``trained``: as of `fuse_composites`.

    >>> from meta.ir import parse
    >>> print(meta.passes.fuse_quantized_products(parse('''
    ... func @main(%x: float32[1, 64], %w: int8[8, 64], %s: float32[8, 1]) -> float32[1, 8] {
    ...   %0: float32[8, 64] = astype(%w, dtype="float32")
    ...   %1: float32[8, 64] = multiply(%0, %s)
    ...   %2: float32[1, 8] = dense(%x, %1)
    ...   return %2
    ... }''')))
    func @main(%x: float32[1, 64], %w: int8[8, 64], %s: float32[8, 1]) -> float32[1, 8] {
      %0: float32[1, 8] = quantized_matmul(%x, %w, %s)
      return %0
    }
    """
    called = {called_op(b.value) for f in module.functions.values() for b in bindings(f)}
    if op.astype not in called or not called & {op.dense, op.matmul_nt}:
        return module
    # A transposed weight that nobody reads any more would be another reader of it.
    return rewrite(dead_code(module), cast_product, _as_quantized)
