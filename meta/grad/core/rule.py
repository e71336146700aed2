"""Gradient rules: what turns the gradient of an operator's result into gradients of its arguments.

A rule asks by parameter name for what it needs: any forward argument, ``y`` (the result) and ``dy``
(its gradient; both are tuples for an operator with several results). Where an argument is itself
called ``y`` or ``dy``, these two are asked for as ``y_`` and ``dy_``. What a rule does not ask for
is not kept alive. A parameter annotated ``TensorType`` (of several tensors: ``tuple[TensorType,
...]``) receives the type of that argument (or of ``y``) only, which keeps no memory; the argument
itself if its type does not know the shape.
``*options`` stands for all attributes and run-time numbers that are not named, in the order of the
schema.

The rule returns one gradient per tensor slot, a bare value if there is one slot; None says that
there is none. A gradient has the shape and the dtype of its argument: who applies a rule, the tape
or a pass, looks at that (`Rule.require`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from meta.base.errors import GradientError, MetaError, RegistrationError
from meta.base.source import Span, definition_span, outermost_user_span
from meta.ir.dims import differ
from meta.ir.types import TensorType, Type
from meta.op.core.op import Op
from meta.op.core.registration import require_function, require_op
from meta.op.core.schema import hints_of
from meta.runtime.out_of_memory import is_out_of_memory

_TYPES = (TensorType, tuple[TensorType, ...])
"""Annotations of what is kept as its type only."""


@dataclass(frozen=True, slots=True)
class Rule:
    """The gradient aspect of one operator. ``function`` is None if it has none, and ``reason`` says
    why; ``missing`` then says that it would not be zero. ``kept`` says what it keeps: (name, index
    of the argument or -1 for the result, whether the type only); ``dy`` is its name for the
    gradient of the result.
    """

    op: Op
    function: Callable[..., Any] | None
    parameters: tuple[str, ...]
    types_only: frozenset[str]
    reason: str
    site: Span
    kept: tuple[tuple[str, int, bool], ...] = ()
    dy: str = "dy"
    missing: bool = False

    def __call__(self, values: dict[str, Any]) -> tuple[Any, ...]:
        """Apply the rule to kept values by name; return one gradient (or None) per tensor slot of
        the schema.
        """
        if self.function is None:
            raise GradientError(
                "this operator is not differentiable", op=self.op.name, found=self.reason
            )
        try:
            result = self.function(*[values[p] for p in self.parameters])
        except Exception as error:
            known = isinstance(error, MetaError | Warning) or is_out_of_memory(error)
            if self.site.is_own or known:
                raise
            failed = GradientError(
                f"the gradient rule raises {type(error).__name__}: {error}", op=self.op.name
            )
            failed.note(f"gradient rule: {outermost_user_span(error.__traceback__) or self.site}")
            raise failed from error
        slots = self.op.schema.tensor_slots
        grads = result
        if len(slots) == 1:
            # A bare value; a tuple of them where the slot takes several tensors.
            several = self.op.schema.slots[slots[0]].kind == "tensors"
            grads = (result,) if result is None or isinstance(result, tuple) == several else ()
        if not isinstance(grads, tuple) or len(grads) != len(slots):
            raise GradientError(
                "the gradient rule returns the wrong number of results",
                op=self.op.name,
                expected=f"one per tensor slot: {[self.op.schema.names[i] for i in slots]}",
                found=f"{type(result).__name__} from the rule at {self.site}",
            )
        return grads

    def several(self, slot: int, gradients: Any, count: int) -> tuple[Any, ...]:
        """Return the gradients of the tensors in a slot that takes several; GradientError if there
        are not as many.
        """
        found = (None,) * count if gradients is None else gradients
        if not isinstance(found, tuple) or len(found) != count:
            raise GradientError(
                "the gradient rule returns the wrong number of results",
                op=self.op.name,
                expected=f"{count} for {self.op.schema.names[slot]!r}, which takes several tensors",
                found=f"{len(found) if isinstance(found, tuple) else type(found).__name__} from "
                f"the rule at {self.site}",
            )
        return found

    def require(self, slot: int, gradient: Any, argument: Type, span: Span | None) -> None:
        """Raise GradientError unless a gradient may have the type of its argument. Symbolic
        dimensions that are not the same may be equal; an unknown one may be any.

        gradient: the type of an array or of a symbol, or what the rule returned in its place.
        span: the line of the operator's call.
        """
        if isinstance(gradient, TensorType) and isinstance(argument, TensorType):
            dims = zip(gradient.shape, argument.shape, strict=False)
            same = gradient.ndim == argument.ndim and not any(differ(a, b) for a, b in dims)
            if same and gradient.dtype == argument.dtype:
                return
        found = gradient if isinstance(gradient, TensorType) else type(gradient).__name__
        raise GradientError(
            f"the gradient of argument {self.op.schema.names[slot]!r} is not of its type",
            op=self.op.name,
            expected=f"{argument}, the shape and the dtype of the argument",
            found=f"{found} from the rule at {self.site}",
            hint="a rule sums over the axes along which an argument was repeated "
            "(meta.collapse_sum_like), and casts (meta.cast_like)",
            span=span,
        )


def _attach(op: Op, rule: Rule) -> None:
    if op.aspects.gradient is not None:
        raise RegistrationError(
            f"operator {op.name!r} has two gradients",
            found=f"{rule.site} and {op.aspects.gradient.site}",
            span=rule.site,
        )
    op.aspects.gradient = rule


def gradient(*ops: Op) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a gradient rule for one or more operators; a decorator.

    Raises RegistrationError if a parameter is neither an argument of the operator nor ``y`` nor
    ``dy``.
    """

    for op in ops:
        require_op(op, "a gradient")
    if not ops:
        raise RegistrationError("a gradient is of no operator", expected="@gradient(op)")

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        site = definition_span(function)
        require_function(function, f"the gradient of {ops[0].name!r}", site)
        given = inspect.signature(function).parameters.values()
        named = tuple(p.name for p in given if p.kind is not p.VAR_POSITIONAL)
        by_name = [p.name for p in given if p.kind is p.KEYWORD_ONLY]
        if by_name:
            raise RegistrationError(
                f"the gradient of {ops[0].name!r} takes parameters by keyword only",
                expected="plain parameters", found=", ".join(by_name), span=site,
            )  # fmt: skip
        hints = hints_of(function, f"the gradient of {ops[0].name!r}")
        types_only = frozenset(p for p, hint in hints.items() if hint in _TYPES)
        for op in ops:
            y, dy = op.schema.reserved("y"), op.schema.reserved("dy")
            parameters = named if len(named) == len(given) else (*named, *_options(op, named))
            unknown = [p for p in parameters if p not in (*op.schema.names, y, dy)]
            if unknown or dy not in parameters:
                raise RegistrationError(
                    f"the gradient of {op.name!r} asks for {unknown or f'no {dy}'}",
                    expected=f"some of {(*op.schema.names, y)}, and {dy!r}",
                    span=site,
                )
            kept = tuple(
                (p, -1 if p == y else op.schema.index[p], p in types_only)
                for p in parameters
                if p != dy
            )
            _attach(op, Rule(op, function, parameters, types_only, "", site, kept, dy))
        return function

    return register


def _options(op: Op, named: tuple[str, ...]) -> list[str]:
    """Return what ``*options`` stands for in a rule that names other arguments."""
    kinds = ("attribute", "scalar")
    return [s.name for s in op.schema.slots if s.kind in kinds and s.name not in named]


def gradients(rules: Mapping[Op, Callable[..., Any]]) -> None:
    """Register a table of short gradient rules; see `gradient`."""
    for op, function in rules.items():
        gradient(op)(function)


def not_differentiable(*ops: Op, why: str, missing: bool = False) -> None:
    """State that operators have no gradient, and why. Results do not require a gradient; nothing is
    recorded.

    missing: there is a gradient that is not zero, only no rule for it. To ask for one of what was
    computed from such a result is an error, where it would else be silently without this part.
    """
    frame = inspect.currentframe()
    caller = frame.f_back if frame is not None else None
    site = Span(caller.f_code.co_filename, caller.f_lineno) if caller is not None else Span("?", 0)
    if not isinstance(why, str) or not why:
        raise RegistrationError("nothing says why there is no gradient", expected="why='...'",
                                found=repr(why), span=site)  # fmt: skip
    for op in ops:
        require_op(op, "a statement that there is no gradient", site)
        _attach(op, Rule(op, None, (), frozenset(), why, site, missing=missing))


def rule_of(op: Op) -> Rule:
    """Return the gradient aspect; GradientError if none was ever stated."""
    rule = op.aspects.gradient
    if rule is None:
        raise GradientError(
            "nothing is said about this operator's gradient",
            op=op.name,
            hint="register one with @gradient, or state not_differentiable(op, why=...)",
        )
    found: Rule = rule
    return found
