"""Local simplification: what a call equals, by rules that hold for every value, by subject.

To add a rule, write a function in the file of its subject and attach it to its operators with
``@RULES.rule(...)``. A rule holds for every value of the dtypes that it accepts, NaN, infinities
and signed zeros included (the sign and payload of a NaN do not count); its docstring says why where
that is not plain. What would round differently is no simplification.
"""

from __future__ import annotations

from meta.ir import Module
from meta.passes.simplify import arithmetic, casts, shapes
from meta.passes.simplify.table import RULES, Rules, RuleSite, apply

__all__ = ["RULES", "RuleSite", "Rules", "arithmetic", "casts", "shapes", "simplify"]


def simplify(module: Module) -> Module:
    """Replace calls by what they equal: an argument, an earlier value, a cheaper call.

    The rules are in the files of this folder, by subject: identities of arithmetic, casts that lose
    nothing, chains of views, transpositions and broadcasts, split and concat, transposed
    operands of products, decided `where`; fields of known tuples, and results that are tuples taken
    apart and put together again. They are exact, also for NaN,
    infinities and signed zeros. What is written or leaves the program stays an array of its own.

    >>> from meta.ir import parse
    >>> print(meta.passes.simplify(parse('''
    ... func @main(%x: float32[2, 3], %w: float32[2, 5]) -> float32[3, 5] {
    ...   %a: float32[6] = reshape(%x, shape=(6,))
    ...   %b: float32[2, 3] = reshape(%a, shape=(2, 3))
    ...   %c: float32[2, 3] = multiply(%b, 1.0)
    ...   %t: float32[3, 2] = permute_dims(%c)
    ...   %d: float32[3, 5] = matmul(%t, %w)
    ...   return %d
    ... }''')))
    func @main(%x: float32[2, 3], %w: float32[2, 5]) -> float32[3, 5] {
      %a: float32[6] = reshape(%x, shape=(6,))
      %t: float32[3, 2] = permute_dims(%x)
      %d: float32[3, 5] = matmul_tn(%x, %w)
      return %d
    }
    """
    return apply(RULES, module)
