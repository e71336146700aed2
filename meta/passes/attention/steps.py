"""What stands between the two products of attention, call by call, and why it is no attention."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from meta.ir import Expr, Var
from meta.passes.rules.table import OpCall


class Refused(Exception):
    """Why a softmax between two products does not become attention."""


@dataclass(frozen=True, slots=True)
class Step:
    """One call between the two products. ``x``: what it is applied to; ``var``: its result."""

    kind: str
    var: Var
    x: Expr
    made: OpCall
    value: Any = None
