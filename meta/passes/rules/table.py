"""The table of rewrite rules by operator, and what a rule is given.

A rule is a function of a `Site`, attached to the operators of its decorator. It returns the atom
that the call equals, another call that gives the same, or None. The first rule that answers counts;
rules are asked in the order in which they are written down.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meta.base.registry import OPERATORS
from meta.ir import UNKNOWN, Call, Expr, TensorType, type_of
from meta.op.core import Op
from meta.passes.buffers import Definitions


@dataclass(frozen=True, slots=True)
class OpCall:
    """A call of a base operator: its name, and its arguments in schema order."""

    name: str
    args: tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class Site:
    """A call of a base operator where it stands.

    Attributes
    ----------
    name: of the operator. args: its arguments in schema order. type: that of the result. known:
    what variables were bound to.
    """

    name: str
    args: tuple[Any, ...]
    type: TensorType
    known: Definitions

    def made_by(self, atom: object, *names: str) -> OpCall | None:
        """Return the call that computed ``atom`` if it is one of these operators."""
        made = op_call(self.known.get(atom))
        return made if made is not None and made.name in names else None

    def same(self, atom: object) -> Expr | None:
        """Return the atom if it can stand for the result: if it has its type."""
        if not isinstance(atom, Expr):
            return None
        # An unknown extent equals another in the type, not in the array.
        return atom if type_of(atom) == self.type and UNKNOWN not in self.type.shape else None


Rule = Callable[[Site], Expr | None]


class Rules:
    """Rules by the name of an operator."""

    def __init__(self) -> None:
        self._rules: dict[str, list[Rule]] = {}

    def rule(self, *names: str) -> Callable[[Rule], Rule]:
        """Attach a rule to operators; a decorator."""

        def attach(function: Rule) -> Rule:
            for name in names:
                self._rules.setdefault(name, []).append(function)
            return function

        return attach

    def apply(self, site: Site) -> Expr | None:
        """Return what the first rule that answers makes of a call; None if none does."""
        for rule in self._rules.get(site.name, ()):
            result = rule(site)
            if result is not None:
                return result
        return None


RULES = Rules()
"""The rules of `simplify`."""


def op_call(value: Expr | None) -> OpCall | None:
    """Read a value that is a call of a base operator; None for any other."""
    if isinstance(value, Call) and isinstance(value.callee, Op):
        return OpCall(value.callee.name, value.args)
    return None


def tensor_type(atom: object) -> TensorType | None:
    """Return the type of an atom that is a tensor; None for numbers and tuples."""
    type_ = type_of(atom) if isinstance(atom, Expr) else None
    return type_ if isinstance(type_, TensorType) else None


def call(name: str, *args: Any) -> Call:
    """Return the call of a base operator with these first arguments and defaults for the rest."""
    op = OPERATORS[name]
    return Call(op, (*args, *(slot.default for slot in op.slots[len(args) :])))
