"""Canonical forms: one spelling for one thing, so that later passes look for one."""

from __future__ import annotations

from meta.ir import Module
from meta.passes.rules.apply import apply
from meta.passes.rules.spelling import SPELLING


def canonicalize(module: Module) -> Module:
    """Write what can be written in several ways in one.

    - Numbers and constants are the second operand where operands may be exchanged; ``0 < x`` is
      ``x > 0``. A constant whose elements are equal is a number.
    - An axis is the operator's default where it means the same, else not negative; reduced axes are
      a sorted tuple, all axes ().
    - Permutations are `transpose`, views are `reshape` to a written shape; `broadcast_to_like` and
      `cast_like` are `broadcast_to` and `cast`.
    - ``x1 @ x2.T`` is `dense`; an `einsum` that is a matrix product is that product.
    - A sum with a vector along one axis is `bias_add`. A tensor full of 0 or 1 is `zeros` or
      `ones`.

    >>> from meta.ir import parse
    >>> print(canonicalize(parse('''
    ... func @main(%x: float32[2, 3], %b: float32[3]) -> float32[2] {
    ...   %a: float32[2, 3] = multiply(const float32[] 2.0, %x)
    ...   %c: float32[2, 3] = add(%b, %a)
    ...   %d: float32[2, 3] = softmax(%c, axis=1)
    ...   %e: float32[2] = sum(%d, axis=-1)
    ...   return %e
    ... }''')))
    func @main(%x: float32[2, 3], %b: float32[3]) -> float32[2] {
      %a: float32[2, 3] = multiply(%x, x2=2.0)
      %c: float32[2, 3] = bias_add(%a, %b)
      %d: float32[2, 3] = softmax(%c)
      %e: float32[2] = sum(%d, axis=(1,))
      return %e
    }
    """
    return apply(SPELLING, module)
