"""Patterns: pieces of programs, described in operator call syntax, found and replaced.

>>> from meta import op
>>> from meta.ir import parse
>>> from meta.passes.pattern import constant, explain, match, pattern, wildcard

>>> @pattern
... def scaled(x, factor=constant(), axis=wildcard()):
...     return op.softmax(x * factor, axis)

>>> module = parse('''
... func @main(%x: float32[2, 3]) -> float32[2, 3] {
...   %0: float32[2, 3] = multiply(0.5, %x)
...   %1: float32[2, 3] = softmax(%0, axis=1)
...   return %1
... }''')
>>> [found] = match(scaled, module.main)
>>> found.types
{'x': TensorType(shape=(2, 3), dtype='float32'), 'factor': 0.5, 'axis': 1}

A new kind of node goes to `nodes.py`; when bindings may become one is decided in `matches.py`.
"""

from meta.passes.pattern.build import Pattern, operator, pattern
from meta.passes.pattern.formula import formula
from meta.passes.pattern.matches import Match, Refusal, explain, match, refusals
from meta.passes.pattern.nodes import Node, chain, constant, named, wildcard
from meta.passes.pattern.replacement import partition, rewrite

__all__ = [
    "Match",
    "Node",
    "Pattern",
    "Refusal",
    "chain",
    "constant",
    "explain",
    "formula",
    "match",
    "named",
    "operator",
    "partition",
    "pattern",
    "refusals",
    "rewrite",
    "wildcard",
]
