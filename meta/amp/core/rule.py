"""Cast rules: what mixed precision does with the arguments of an operator.

A rule is one of three words, or a function. ALWAYS: cast floating point arguments to the half
dtype. NEVER: cast them to float32. INFER: follow the arguments, the half dtype if all of them have
it already. An operator that needs more has a function ``(args, dtype) -> dtypes``: argument types
(by slot name) and the half dtype in, one dtype (or None: leave it) per tensor slot out.

`register_op_cast_rule` is the one way in; the words of `declarations.py` call it for several
operators, and `custom_rules` says other rules for a block. `resolve.py` applies a rule to a call.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

from meta.base.call_context import context, override_context
from meta.base.errors import AutocastError, RegistrationError
from meta.base.registry import OPERATORS
from meta.base.source import Span, caller_span, definition_span
from meta.op.core.op import Op
from meta.op.core.registration import require_function, require_op

CustomRule = Callable[..., tuple[str | None, ...]]


@dataclass(frozen=True, slots=True)
class Casts:
    """A word for the first ``count`` tensor arguments (None: all), or "custom" with a function."""

    word: str
    count: int | None = None
    function: CustomRule | None = None


def generic_cast(to_half: bool, count: int | None = None) -> Casts:
    """Return the rule that casts floating point arguments to the half dtype, or to float32.

    count: how many tensor arguments it is about, the first ones; the others are left as they are.
    None: all. float64 is never narrowed.
    """
    return Casts("always" if to_half else "never", count)


def infer_cast(count: int | None = None) -> Casts:
    """Return the rule that follows the arguments: where their precisions differ, the first
    ``count`` tensor arguments (None: all) meet in the wider one.
    """
    return Casts("infer", count)


@dataclass(frozen=True, slots=True)
class CastRule:
    """The cast rule of one operator, and where it was stated."""

    op: Op
    casts: Casts
    site: Span

    @property
    def word(self) -> str:
        """ "always", "never", "infer" or "custom"."""
        return self.casts.word

    @property
    def function(self) -> CustomRule | None:
        """The function of a custom rule."""
        return self.casts.function

    def __str__(self) -> str:
        count = self.casts.count
        return self.word if count is None else f"{self.word}, the first {count}"


def register_op_cast_rule(op: Op | str, rule: Casts | CustomRule, site: Span | None = None) -> None:
    """State the cast rule of an operator, once.

    op: the operator or its name. rule: what `generic_cast` or `infer_cast` returns, or a function
    ``(args, dtype) -> dtypes``; see above. site: where it is stated, by default the function's line
    or the caller's.

    Raises RegistrationError if the operator has a rule already, or has fewer tensor arguments than
    the rule is about.
    """
    if site is None:
        site = definition_span(rule) if callable(rule) else caller_span()
    made = _cast_rule(op, rule, site)
    old: CastRule | None = made.op.aspects.cast_rule
    if old is not None:
        raise RegistrationError(
            f"operator {made.op.name!r} has two cast rules",
            found=f"{made.site} and {old.site}",
            hint="for a block, with meta.amp.custom_rules({...}) says another one",
            span=made.site,
        )
    made.op.aspects.cast_rule = made


def _cast_rule(op: Op | str, rule: Casts | CustomRule, site: Span) -> CastRule:
    owner = OPERATORS[op] if isinstance(op, str) else op
    require_op(owner, "a cast rule", site)
    if isinstance(rule, Casts):
        casts = rule
    elif callable(rule):
        require_function(rule, f"the cast rule of {owner.name!r}", site)
        casts = Casts("custom", None, rule)
    else:
        raise RegistrationError(
            f"this is no cast rule of {owner.name!r}",
            expected="meta.amp.generic_cast(...), meta.amp.infer_cast(...) or a function",
            found=repr(rule),
            span=site,
        )
    slots = [owner.schema.names[i] for i in owner.schema.tensor_slots]
    count = casts.count
    if count is not None and (type(count) is not int or not 0 <= count <= len(slots)):
        raise RegistrationError(
            f"the cast rule of {owner.name!r} is about more arguments than it has",
            expected=f"at most {len(slots)}: {', '.join(slots)}",
            found=repr(count),
            span=site,
        )
    return CastRule(owner, casts, site)


def custom_rules(rules: Mapping[Op | str, Casts | CustomRule]) -> AbstractContextManager[None]:
    """Let operators have other cast rules in a ``with`` block, in this thread (or task) only.

    rules: by operator or name, what `register_op_cast_rule` takes. Blocks nest; of several rules
    for an operator the innermost counts. What was cast before the block keeps its casts.
    """
    site = caller_span()
    return _override(
        [_cast_rule(o, r, definition_span(r) if callable(r) else site) for o, r in rules.items()]
    )


@contextmanager
def _override(rules: list[CastRule]) -> Iterator[None]:
    before = context.get().cast_rules  # on entry: the block may be entered later than made
    with override_context(cast_rules={**before, **{rule.op: rule for rule in rules}}):
        yield


_NO_RULES: frozenset[tuple[Op, Casts]] = frozenset()


def rules_in_force() -> frozenset[tuple[Op, Casts]]:
    """Return what `custom_rules` says here: programs cast under different rules are different."""
    overrides: Mapping[Op, CastRule] = context.get().cast_rules
    if not overrides:
        return _NO_RULES
    return frozenset((op, rule.casts) for op, rule in overrides.items())


def rule_of(op: Op) -> CastRule | None:
    """Return the rule in force for an operator.

    An operator of this package of which nothing is stated is "infer", at its own line: the table in
    `meta/amp/rules.py` lists the others, and a test goes through all. One from elsewhere has to
    say: None if it does not.
    """
    rule: CastRule | None = context.get().cast_rules.get(op) or op.aspects.cast_rule
    if rule is None and op.site.is_own:
        return CastRule(op, infer_cast(), op.site)
    return rule


def require_rules(ops: Iterable[Op]) -> None:
    """Raise AutocastError, which lists all of them, if there are operators without a rule."""
    missing = {op.name: op for op in ops if rule_of(op) is None}
    if missing:
        raise AutocastError(
            "operators have no cast rule: " + ", ".join(sorted(missing)),
            expected="a rule for every operator of a program in mixed precision",
            found="; ".join(f"{name}, defined at {missing[name].site}" for name in sorted(missing)),
            hint="state one beside each operator: meta.amp.always(op), never(op), infer(op), or a "
            "function under @meta.amp.custom(op)",
        )
