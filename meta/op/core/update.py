"""Steps of optimizers: from the formula of one, under `@optimizer`, its operator.

`FORMULAS` is what dialects make kernels from, `OPTIMIZERS` what passes and rules look for. The
arguments that all steps share are described in `meta/op/optimizer.py`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from inspect import Parameter
from math import inf
from typing import Any

from meta.base import dtype as dtypes
from meta.base.source import Span, caller_span, definition_span
from meta.ir.types import TensorType
from meta.op.core.check import is_single_element, require, require_float, require_same_dtype
from meta.op.core.declare import op
from meta.op.core.formula import Expr, Formula, Stores, Traced, postorder
from meta.op.core.op import Op
from meta.op.core.slot import InOut, Scalar, Tensor

Tensors = tuple[TensorType, ...]
RATES = "learning_rate", "weight_decay"
PREFIX = "multi_tensor_"
SHARED = """The arguments that all steps share: see `meta.op.optimizer`. Raises TypeInferError for
tensors that do not fit together."""

FORMULAS: dict[Op, Formula] = {}
"""The formulas of all operators on lists of tensors."""
OPTIMIZERS: list[Op] = []
"""The steps of several parameters."""
SINGLE_STEPS: dict[Op, SingleStep] = {}
"""The steps that are calls of one of these."""


@dataclass(frozen=True)
class SingleStep:
    """How a step is a call of ``multi``: ``arguments`` makes, of its own by name, those of that.
    Numbers that they leave out are what changes nothing.
    """

    multi: Op
    arguments: Callable[..., dict[str, Any]]


def optimizer(
    *, weight_decay: float, derived: Mapping[str, Expr] | None = None, **numbers: float
) -> Callable[[Callable[..., Stores]], Op]:
    """Make the operator of a step of several parameters; a decorator of its formula.

    The formula is ``(k, x, g, *state, *, **attributes) -> Stores``: the numbers ``k``, and an
    element of the parameter, of its gradient and of its state. A state with the default None may be
    an empty list, which the formula sees as None.

    Parameters
    ----------
    weight_decay: its default. derived: numbers that follow from others, computed once for a call,
    in float64; if one of them takes ``step``, the operator does. numbers: those of its own, with
    their defaults.
    """

    def make(formula: Callable[..., Stores]) -> Op:
        _, _, _, *own = inspect.signature(formula, eval_str=True).parameters.values()
        state = [p for p in own if p.kind is not p.KEYWORD_ONLY]
        attributes = [p for p in own if p.kind is p.KEYWORD_ONLY]
        made_of = postorder(*(derived or {}).values())
        counted = ["step"] if any(n.parts == ("step",) for n in made_of) else []
        slots: dict[str, tuple[Any, Any]] = {
            "x": (tuple[InOut, ...], Parameter.empty),
            "dx": (tuple[Tensor, ...], Parameter.empty),
            **{p.name: (tuple[InOut, ...], Parameter.empty) for p in state},
            **dict.fromkeys((*counted, "learning_rate"), (Scalar | Tensor, Parameter.empty)),
            **{name: (Scalar, default) for name, default in numbers.items()},
            "weight_decay": (Scalar | Tensor, weight_decay),
            "copies": (tuple[InOut, ...], ()),
            "factor": (Scalar | Tensor, 1.0),
            "clip_value": (Scalar, inf),
            "skip": (Tensor | None, None),
            **{p.name: (p.annotation, p.default) for p in attributes},
        }
        optional = {p.name for p in state if p.default is None}

        def infer(*arguments: Any) -> tuple[()]:
            given = dict(zip(slots, arguments, strict=True))
            check_step({p.name: given[p.name] for p in state}, optional, given)
            return ()

        site = definition_span(formula)
        doc = f"{inspect.getdoc(formula) or ''}\n\n{SHARED}".strip()
        made = _operator(infer, formula.__name__, doc, site, slots)
        FORMULAS[made] = Formula(
            formula,
            ("x", "dx", *(p.name for p in state)),
            ("factor", "clip_value", *numbers, *counted, *RATES),
            derived or {},
            tuple(p.name for p in attributes),
            step=True,
        )
        OPTIMIZERS.append(made)
        return made

    return make


def single_step_op(multi: Op, doc: str) -> Op:
    """Make the operator of a step of one parameter, without what serves mixed precision."""
    lists = FORMULAS[multi].lists
    left_out = "copies", "factor", "clip_value", "skip"
    slots: dict[str, tuple[Any, Any]] = {}
    for slot in multi.schema.slots:
        if slot.name in lists:
            slots[slot.name] = (InOut if slot.access == "RW" else Tensor, Parameter.empty)
        elif slot.name not in left_out:
            both = slot.kind == "scalar or tensor" and slot.name != "weight_decay"
            slots[slot.name] = (Scalar | Tensor if both else Scalar, slot.default)

    def infer(*arguments: Any) -> tuple[()]:
        given = dict(zip(slots, arguments, strict=True))
        check_single({n: given[n] for n in lists})
        check_numbers(given["step"], given["learning_rate"])
        return ()

    def arguments(**given: Any) -> dict[str, Any]:
        return {n: (value,) if n in lists else value for n, value in given.items()}

    made = _operator(infer, multi.name.removeprefix(PREFIX), doc, caller_span(), slots)
    SINGLE_STEPS[made] = SingleStep(multi, arguments)
    return made


@dataclass(frozen=True)
class ListCall:
    """What a call of an operator on lists, or of a `SingleStep`, gives its formula.

    lists, numbers: what stands in the slots of lists, and of numbers, by name; lists that are empty
    are left out. constants: the numbers known to change nothing. skip: whether to write nothing.
    """

    formula: Formula
    lists: dict[str, Any]
    numbers: dict[str, Any]
    attributes: tuple[tuple[str, Any], ...]
    constants: tuple[tuple[str, float], ...]
    skip: Any

    @classmethod
    def of(cls, operator: Op, given: Mapping[str, Any]) -> ListCall:
        """Return what a call gives: arguments by name, and the results under the list's name."""
        if operator in SINGLE_STEPS:
            given = SINGLE_STEPS[operator].arguments(**given)
            operator = SINGLE_STEPS[operator].multi
        formula = FORMULAS[operator]
        names = (*formula.lists, "copies") if formula.step else formula.lists
        constants = {n: NEUTRAL_VALUES.get(n, 0.0) for n in formula.numbers if n not in given}
        return cls(
            formula,
            {n: given[n] for n in names if given.get(n)},
            {n: given[n] for n in formula.numbers if n in given},
            tuple((n, given[n]) for n in formula.attributes if n in given),
            tuple(constants.items()),
            given.get("skip"),
        )

    def trace(self) -> Traced:
        """Return the formula of the call."""
        return _formula_with_constants(
            self.formula, tuple(self.lists), self.attributes, self.constants
        )


NEUTRAL_VALUES = {"factor": 1.0, "clip_value": inf}
"""What changes nothing, of numbers of which that is not 0."""


@lru_cache(256)
def _formula_with_constants(
    formula: Formula,
    present: tuple[str, ...],
    attributes: tuple[tuple[str, Any], ...],
    constants: tuple[tuple[str, float], ...],
) -> Traced:
    return formula.trace(present, dict(attributes), dict(constants))


def _operator(
    infer: Callable[..., Any],
    name: str,
    doc: str | None,
    site: Span,
    slots: Mapping[str, tuple[Any, Any]],
) -> Op:
    """Return the operator of a type function with these annotations and defaults by slot."""
    kind = Parameter.POSITIONAL_OR_KEYWORD
    parameters = [Parameter(n, kind, default=d, annotation=a) for n, (a, d) in slots.items()]
    infer.__name__, infer.__doc__ = name, doc
    infer.__annotations__ = {n: a for n, (a, _) in slots.items()}
    infer.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    made = op(infer)
    made.site = site
    return made


def check_step(
    state: dict[str, Tensors], optional: Iterable[str], given: Mapping[str, Any]
) -> None:
    """Raise TypeInferError unless the arguments of a step fit."""
    kept = {name: tensors for name, tensors in state.items() if tensors or name not in optional}
    x, copies = given["x"], given["copies"]
    lists = {"x": x, "dx": given["dx"], **kept, **({"copies": copies} if copies else {})}
    check_lists(lists, same_dtype=(x, tuple(t for s in kept.values() for t in s), copies))
    check_numbers(given.get("step", 1), 1.0)
    for name in RATES:
        check_rate(name, given[name], len(x))
    check_rate("factor", given["factor"], 1)
    check_skip(given["skip"])


def check_lists(lists: dict[str, Tensors], same_dtype: tuple[Tensors, ...]) -> None:
    count = len(next(iter(lists.values())))
    lengths = {name: len(tensors) for name, tensors in lists.items()}
    fits = count > 0 and set(lengths.values()) == {count}
    require(fits, "the lists differ in length", expected="n >= 1 tensors each", found=lengths)
    for i, together in enumerate(zip(*lists.values(), strict=True)):
        found = ", ".join(f"{n}={t}" for n, t in zip(lists, together, strict=True))
        fits = len({t.shape for t in together}) == 1
        require(fits, f"the tensors of parameter {i} differ", expected="one shape", found=found)
        for name, tensor in zip(lists, together, strict=True):
            require_float(tensor, name)
    for tensors in same_dtype:
        present = sorted({t.dtype for t in tensors})
        fits = len(present) <= 1
        expected = "one dtype; make one call for each"
        require(fits, "a list has several dtypes", expected=expected, found=present)


def check_single(tensors: Mapping[str, TensorType]) -> None:
    """Raise TypeInferError unless the tensors of one parameter have one shape and dtype."""
    *names, last = tensors
    require_float(tensors["x"], "x")
    require_same_dtype(*tensors.values())
    require(
        len(set(tensors.values())) == 1,
        f"{', '.join(names)} and {last} differ",
        expected="one shape",
        found=", ".join(f"{n}={t}" for n, t in tensors.items()),
    )


def check_numbers(step: object, learning_rate: object) -> None:
    """Raise TypeInferError unless each is a number or a tensor that holds one."""
    for name, value in (("step", step), ("learning_rate", learning_rate)):
        if isinstance(value, TensorType):
            fits = is_single_element(value) and value.dtype != "bool"
            require(fits, f"{name} must be one number", found=str(value))
    if isinstance(learning_rate, TensorType):
        require(dtypes.is_float(learning_rate.dtype), "learning_rate must be floating point")


def check_rate(name: str, value: object, count: int) -> None:
    if not isinstance(value, TensorType):
        return
    require(dtypes.is_float(value.dtype), f"{name} must be floating point", found=str(value))
    fits = is_single_element(value) or value.shape == (count,)
    expected = f"one element, or ({count},)" if count > 1 else "one element"
    require(fits, f"{name} has another shape", expected=expected, found=str(value))


def check_skip(skip: TensorType | None) -> None:
    if skip is not None:
        fits = skip.dtype == "bool" and is_single_element(skip)
        require(fits, "skip must be one bool", found=str(skip))
