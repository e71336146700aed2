"""The table of rewrite rules by operator, and what a rule is given.

A rule is a function of a `Site`, attached to the operators of its decorator. It returns the atom
that the call equals, another call that gives the same, or None. The first rule that answers counts;
rules are asked in the order in which they are written down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meta.base.errors import ArgumentError
from meta.ir import UNKNOWN, Expr, TensorType, type_of
from meta.op.core import Op
from meta.passes.buffers import Definitions
from meta.passes.calls import OpCall, op_call


@dataclass(frozen=True, slots=True)
class Site:
    """A call of a base operator where it stands.

    Attributes
    ----------
    op: the operator. args: its arguments in schema order. type: that of the result. known: what
    variables were bound to.
    """

    op: Op
    args: tuple[Any, ...]
    type: TensorType
    known: Definitions

    def made_by(self, atom: object, *ops: Op) -> OpCall | None:
        """Return the call that computed ``atom`` if it is one of these operators."""
        made = op_call(self.known.get(atom))
        return made if made is not None and made.op in ops else None

    def same(self, atom: object) -> Expr | None:
        """Return the atom if it can stand for the result: if it has its type."""
        if not isinstance(atom, Expr):
            return None
        # An unknown extent equals another in the type, not in the array.
        return atom if type_of(atom) == self.type and UNKNOWN not in self.type.shape else None


Rule = Callable[[Site], Expr | None]


class Rules:
    """Rules by operator."""

    def __init__(self) -> None:
        self._rules: dict[Op, list[Rule]] = {}

    def rule(self, *ops: Op) -> Callable[[Rule], Rule]:
        """Attach a rule to operators; a decorator. ArgumentError for what is no operator."""
        for op in ops:
            if not isinstance(op, Op):
                raise ArgumentError(
                    "a rule is for operators", expected="meta.op.<name>", found=repr(op)
                )

        def attach(function: Rule) -> Rule:
            for op in ops:
                self._rules.setdefault(op, []).append(function)
            return function

        return attach

    def apply(self, site: Site) -> Expr | None:
        """Return what the first rule that answers makes of a call; None if none does."""
        for rule in self._rules.get(site.op, ()):
            result = rule(site)
            if result is not None:
                return result
        return None


RULES = Rules()
"""The rules of `simplify`."""
