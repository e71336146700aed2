"""Cast rules: what mixed precision does with the arguments of an operator.

A rule is one of three words, or a function. ALWAYS: cast floating point arguments to the half
dtype. NEVER: cast them to float32. INFER: follow the arguments, the half dtype if all of them have
it already. An operator that needs more has a function ``(args, dtype) -> dtypes``: argument types
(by slot name) and the half dtype in, one dtype (or None: leave it) per tensor slot out.

`register_op_cast_rule` is the one way in; `always`, `never`, `infer` and `custom` call it for
several operators, and `custom_rules` says other rules for a block. `cast_dtypes` applies a rule to
a call.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import reduce
from typing import Any

from meta.base.call_context import context, override_context
from meta.base.dtype import bits, canonical, is_float, limits, overflow_rounded, promote
from meta.base.errors import ArgumentError, AutocastError, RegistrationError
from meta.base.registry import OPERATORS
from meta.base.source import Span, caller_span, definition_span
from meta.ir.types import TensorType
from meta.op.core.op import Op
from meta.op.core.registration import require_function, require_op
from meta.op.core.slot import Slot

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

    >>> meta.amp.generic_cast(True).word, meta.amp.generic_cast(False, count=2).count
    ('always', 2)
    """
    return Casts("always" if to_half else "never", count)


def infer_cast(count: int | None = None) -> Casts:
    """Return the rule that follows the arguments: where their precisions differ, the first
    ``count`` tensor arguments (None: all) meet in the wider one.

    >>> meta.amp.infer_cast().word
    'infer'
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

    >>> from meta.op.core import Op
    >>> mine = Op(meta.op.exp.type_function, name="mine", schema=meta.op.exp.schema, random=False)
    >>> meta.amp.register_op_cast_rule(mine, meta.amp.infer_cast(count=1))
    >>> str(meta.amp.rule_of(mine))
    'infer, the first 1'
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

    >>> x, rules = meta.ones((2, 2)), {"matmul": meta.amp.generic_cast(False)}
    >>> with meta.amp.autocast_scope(), meta.amp.custom_rules(rules):
    ...     (x @ x).dtype
    'float32'
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

    >>> str(meta.amp.rule_of(meta.op.matmul)), str(meta.amp.rule_of(meta.op.softmax))
    ('always', 'never')
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


# Stating the cast rules of several operators at once, as the table in `meta/amp/rules.py` does.


def always(*ops: Op) -> None:
    """Cast the floating point arguments of these operators to the half dtype.

    Raises RegistrationError for an operator that has a rule.

    >>> from meta.op.core import Op
    >>> mine = Op(meta.op.exp.type_function, name="mine", schema=meta.op.exp.schema, random=False)
    >>> meta.amp.always(mine)
    >>> str(meta.amp.rule_of(mine))
    'always'
    """
    site = caller_span()
    for op in ops:
        register_op_cast_rule(op, generic_cast(True), site)


def never(*ops: Op) -> None:
    """Cast the half precision arguments of these operators to float32.

    Raises RegistrationError for an operator that has a rule.

    >>> from meta.op.core import Op
    >>> mine = Op(meta.op.exp.type_function, name="mine", schema=meta.op.exp.schema, random=False)
    >>> meta.amp.never(mine)
    >>> meta.amp.cast_dtypes(mine, (meta.ir.parse_type("float16[2]"),), "float16")
    ('float32',)
    """
    site = caller_span()
    for op in ops:
        register_op_cast_rule(op, generic_cast(False), site)


def infer(*ops: Op) -> None:
    """Let the arguments decide: half precision if all of them have it, else the widest of them.

    Raises RegistrationError for an operator that has a rule.

    >>> from meta.op.core import Op
    >>> mine = Op(meta.op.exp.type_function, name="mine", schema=meta.op.exp.schema, random=False)
    >>> meta.amp.infer(mine)
    >>> str(meta.amp.rule_of(mine))
    'infer'
    """
    site = caller_span()
    for op in ops:
        register_op_cast_rule(op, infer_cast(), site)


def custom(*ops: Op) -> Callable[[CustomRule], CustomRule]:
    """Register a function as the cast rule of operators; a decorator.

    The function takes the arguments, tensors as types, and the half dtype, and returns a dtype or
    None for each argument. Raises RegistrationError for an operator that has a rule.

    >>> from meta.op.core import Op
    >>> mine = Op(meta.op.exp.type_function, name="mine", schema=meta.op.exp.schema, random=False)
    >>> @meta.amp.custom(mine)
    ... def if_large(args, half):
    ...     return (half if args[0].size > 100 else None,)
    >>> small, large = meta.ir.parse_type("float32[9]"), meta.ir.parse_type("float32[200]")
    >>> [meta.amp.cast_dtypes(mine, (x,), "float16") for x in (small, large)]
    [(None,), ('float16',)]
    """
    for op in ops:
        require_op(op, "a cast rule")

    def register(function: CustomRule) -> CustomRule:
        for op in ops:
            register_op_cast_rule(op, function)
        return function

    return register


DtypeChoice = Callable[[list[str], str], "str | None"]
"""From the dtypes of floating point tensors and the half dtype to the one they are cast to."""


def per_argument(*ops: Op, **words: Any) -> None:
    """State for each argument what it is cast to; those that are not named stay as they are.

    words: by argument a dtype; a `DtypeChoice`, of the argument's own dtypes; or a word and the
    names of the arguments of whose dtypes it is.
    """
    site = caller_span()
    for op in ops:
        require_op(op, "a cast rule", site)
        names = [op.schema.names[i] for i in op.schema.tensor_slots]
        if unknown := words.keys() - names:
            raise RegistrationError(
                f"the cast rule of {op.name!r} names other arguments than it has",
                expected=", ".join(names),
                found=", ".join(sorted(unknown)),
                span=site,
            )
        register_op_cast_rule(op, _rule_per_argument([(n, words.get(n)) for n in names]), site)


def _rule_per_argument(stated: list[tuple[str, Any]]) -> CustomRule:
    def one(args: Any, half: str, name: str, said: Any) -> str | None:
        if said is None or isinstance(said, str):
            return said
        word, *of = said if isinstance(said, tuple) else (said, name)
        dtype: str | None = word([d for n in of for d in float_dtypes(getattr(args, n))], half)
        return dtype

    return lambda args, half: tuple(one(args, half, name, said) for name, said in stated)


def narrow(dtypes: list[str], half: str) -> str:
    """Return the half dtype, unless there is one of double precision."""
    return "float64" if "float64" in dtypes else half


def finite(dtypes: list[str], half: str) -> str:
    """Return the half dtype for a mask, unless there is one of double precision."""
    return Finite(narrow(dtypes, half))


def wide(dtypes: list[str], half: str = "") -> str:
    """Return the dtype of at least float32 in which to keep arguments."""
    return "float64" if "float64" in dtypes else "float32"


def widest(dtypes: list[str], half: str = "") -> str | None:
    """Return the widest dtype, None if there is none. float16 and bfloat16 meet in float32."""
    found = set(dtypes)
    return "float32" if found == {"float16", "bfloat16"} else max(found, key=bits, default=None)


# From a cast rule and a call to the casts that it takes. The autocast pass inserts them.


HALVES = ("float16", "bfloat16")


class Finite(str):
    """A dtype that a rule asks for where numbers must not become infinite: of a mask that is added,
    in which -3.4e38 stands for "not this one". In a row of nothing else, infinities make NaN.
    """

    __slots__ = ()


def stays_finite(source: str, dtype: str) -> bool:
    """Whether a cast is to keep numbers finite, and they might not be."""
    return isinstance(dtype, Finite) and bits(source) > bits(dtype)


def cast_finite(x: Any, dtype: str, call: Callable[..., Any]) -> Any:
    """Return x cast to a `Finite` dtype: numbers beyond half of its range as that, so that what is
    added to them does not overflow either; infinities stay infinite.

    call: ``(operator's name, *arguments)`` makes a call, now or in a program.
    """
    limit = float(limits(dtype).max / 2)
    near = call("where", call("isinf", x), x, call("clip", x, -limit, limit))
    return call("astype", near, str(dtype))


def cast_dtypes(op: Op, args: tuple[Any, ...], half: str) -> tuple[str | None, ...]:
    """Return what the floating point tensors of every argument are cast to; None leaves them alone.

    Parameters
    ----------
    args: canonical arguments in slot order, a `TensorType` for a tensor, as type functions get.
    half: "float16" or "bfloat16".

    One entry per slot of the schema. An argument that is written, that holds no floating point
    tensor or that has the dtype already is left alone, whatever the rule says. float64 is not
    narrowed: a call with a float64 argument is treated as "infer", in which arguments of different
    precision meet in the wider one. A call with a number that its dtype does not hold, such as a
    mask's -1e9, is computed in float32. A `Finite` dtype is a cast by `cast_finite`.

    >>> x = meta.ir.parse_type("float32[2, 2]")
    >>> meta.amp.cast_dtypes(meta.op.matmul, (x, x), "float16")
    ('float16', 'float16')
    """
    wanted = _dtypes_by_rule(op, args, half)
    if _too_large(op, args, wanted):
        wide = "float64" if "float64" in _dtypes_after_casts(op, args, wanted) else "float32"
        pairs = zip(op.schema.slots, args, strict=True)
        return tuple(_cast_if_needed(slot, value, wide) for slot, value in pairs)
    return wanted


def too_large(op: Op, args: tuple[Any, ...], half: str) -> list[float]:
    """Return the numbers because of which a call is computed in float32, whatever its rule says."""
    return _too_large(op, args, _dtypes_by_rule(op, args, half))


def _too_large(op: Op, args: tuple[Any, ...], wanted: tuple[str | None, ...]) -> list[float]:
    narrow = {d for d in _dtypes_after_casts(op, args, wanted) if d in HALVES}
    if not narrow or op.schema.written:
        return []  # what is written keeps its dtype
    numbers = [
        value
        for slot, value in zip(op.schema.slots, args, strict=True)
        if slot.kind in ("scalar", "scalar or tensor")
        and type(value) in (int, float)
        and math.isfinite(value)
    ]
    return [n for n in numbers if any(math.isinf(overflow_rounded(n, d)) for d in narrow)]


def _dtypes_after_casts(op: Op, args: tuple[Any, ...], wanted: tuple[str | None, ...]) -> set[str]:
    """Return the dtypes that a call's floating point tensors have once they are cast."""
    return {w or d for a, w in zip(args, wanted, strict=True) for d in float_dtypes(a)}


def _dtypes_by_rule(op: Op, args: tuple[Any, ...], half: str) -> tuple[str | None, ...]:
    rule = rule_of(op)
    if rule is None:
        require_rules([op])
    assert rule is not None
    slots = op.schema.tensor_slots
    if rule.function is None:
        ruled = slots if rule.casts.count is None else slots[: rule.casts.count]
        wanted: dict[int, str | None] = dict.fromkeys(
            ruled, _common_dtype(rule.word, op, ruled, args, half)
        )
    else:
        stated = rule.function(op.schema.Args(*args), half)
        if len(stated) != len(slots):
            raise RegistrationError(
                f"the cast rule of {op.name!r} returns the wrong number of dtypes",
                expected=f"one per tensor slot: {[op.schema.names[i] for i in slots]}",
                found=stated,
                span=rule.site,
            )
        wanted = dict(zip(slots, stated, strict=True))
    return tuple(
        _cast_if_needed(slot, value, wanted.get(i))
        for i, (slot, value) in enumerate(zip(op.schema.slots, args, strict=True))
    )


def _common_dtype(
    word: str, op: Op, ruled: Sequence[int], args: tuple[Any, ...], half: str
) -> str | None:
    """Return the dtype in which the arguments that a rule is about meet."""
    present = [d for i in ruled for d in float_dtypes(args[i])]
    if word == "always" and "float64" not in present:
        return half
    # What is written in place keeps its dtype, so the others follow.
    written = [d for i in op.schema.written for d in float_dtypes(args[i])]
    lowest = ["float32"] if word == "never" else []
    dtypes = written or present + lowest
    return reduce(promote, dtypes) if dtypes else None


def _cast_if_needed(slot: Slot, value: Any, wanted: str | None) -> str | None:
    present = float_dtypes(value)
    if slot.access == "RW" or all(d == wanted for d in present):
        return None
    return wanted


def require_half(dtype: object) -> str:
    """Return the name of a half precision dtype; ArgumentError for any other."""
    half = canonical(dtype)
    if half not in HALVES:
        raise ArgumentError(
            "mixed precision computes in 16 bits", expected=" or ".join(HALVES), found=half
        )
    return half


def float_dtypes(argument: Any) -> list[str]:
    """Return the dtypes of the floating point tensors of one argument."""
    tensors = argument if isinstance(argument, tuple) else (argument,)
    return [t.dtype for t in tensors if isinstance(t, TensorType) and is_float(t.dtype)]
