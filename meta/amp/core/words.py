"""Stating a cast rule by a word. `custom` in `rule.py` is the fourth way, for what no word says."""

from __future__ import annotations

import sys

from meta.amp.core.rule import attach
from meta.base.source import Span
from meta.op.core.op import Op


def always(*ops: Op) -> None:
    """Cast the floating point arguments of these operators to the half dtype."""
    _state(ops, "always")


def never(*ops: Op) -> None:
    """Cast the half precision arguments of these operators to float32."""
    _state(ops, "never")


def infer(*ops: Op) -> None:
    """Let the arguments decide, as they do for every operator of which nothing is stated."""
    _state(ops, "infer")


def _state(ops: tuple[Op, ...], word: str) -> None:
    caller = sys._getframe(2)
    for op in ops:
        attach(op, word, None, Span(caller.f_code.co_filename, caller.f_lineno))
