"""Cast rules: what mixed precision does with the arguments of an operator.

ALWAYS: cast floating point arguments to the half dtype. NEVER: cast them to float32. INFER (what
an operator without a row in `meta/amp/rules.py` has): follow the arguments, the half dtype if all
of them have it already. An operator that needs more has a function ``(args, dtype) -> dtypes``:
argument types (by slot name) and the half dtype in, one dtype (or None: leave it) per tensor slot
out. `resolve.py` applies a rule to a call.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meta.base.errors import RegistrationError
from meta.base.source import Span, definition_span
from meta.op.core.op import Op

CustomRule = Callable[..., tuple[str | None, ...]]
WORDS = ("always", "never", "infer")


@dataclass(frozen=True, slots=True)
class CastRule:
    """The AMP aspect of one operator: one of the three words, or "custom" with a function."""

    op: Op
    word: str
    function: CustomRule | None
    site: Span


def attach(op: Op, word: str, function: CustomRule | None, site: Span) -> None:
    """Set an operator's cast rule; RegistrationError if it has one."""
    old: CastRule | None = op.aspects.cast_rule
    if old is not None:
        raise RegistrationError(
            f"operator {op.name!r} has two cast rules", found=f"{site} and {old.site}", span=site
        )
    op.aspects.cast_rule = CastRule(op, word, function, site)


def custom(*ops: Op) -> Callable[[CustomRule], CustomRule]:
    """Register a function as the cast rule of operators; a decorator."""

    def register(function: CustomRule) -> CustomRule:
        for op in ops:
            attach(op, "custom", function, definition_span(function))
        return function

    return register


def rule_of(op: Op) -> CastRule:
    """Return the operator's rule; "infer" at the operator's own line where none is stated."""
    rule: Any = op.aspects.cast_rule
    return rule if rule is not None else CastRule(op, "infer", None, op.site)
