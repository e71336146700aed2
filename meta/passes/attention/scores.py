"""From the probabilities back to the product of queries and keys: the softmax, what is done to the
scores, the products as equations of axes.

`trace_back` goes up from the last product to the first, `replay` comes down again and says which
axes the dimensions are on the way. The softmax is over the last axis: the operator, written out, or
made safe for rows without a key.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from typing import Any

import torch

from meta import op
from meta.base.dtype import TO_TORCH
from meta.dialect.core.ir_calls import (
    PRODUCTS,
    OpCall,
    op_call,
    tensor_of,
    tensor_type,
)
from meta.ir import Expr, TensorType, Tuple, TupleGetItem, Var
from meta.op.core import Op
from meta.op.core.axes import product_terms
from meta.op.core.check import normalize_axes, normalize_axis
from meta.op.core.subscripts import subscripts
from meta.passes.alias_analysis import Definitions
from meta.passes.attention.axes import AxisGroup, Refused, ScoreStep, grouped, leaves, scaling
from meta.passes.simplify.arithmetic import fill_of
from meta.passes.simplify.shapes import PERMUTATIONS, VIEWS, order_of

_PRODUCTS = (*PRODUCTS, op.einsum)


@dataclass(frozen=True, slots=True)
class ScoreProduct:
    """A product of two tensors, summed over one axis.

    ``operands``, and per operand and for the result a label for each dimension, None where an
    operand has extent 1 and the result more. ``summed``: the label of the axis summed over.
    """

    operands: tuple[Expr, Expr]
    labels: tuple[tuple[str | None, ...], tuple[str | None, ...]]
    result: tuple[str, ...]
    summed: str
    extents: dict[str, int]


def product(made: OpCall | None) -> ScoreProduct | None:
    """Read a call as a product, of which no dimension is summed alone; None if it is none."""
    if made is None or made.op not in _PRODUCTS:
        return None
    if made.op is op.einsum:
        equation, operands = made.args
        fields = operands.fields if isinstance(operands, Tuple) else ()
    else:
        fields, equation = made.args[:2], PRODUCTS[made.op]
    types = [t for t in map(tensor_type, fields) if t is not None and t.is_static]
    if len(types) != 2 or len(fields) != 2:
        return None
    terms = product_terms(equation)[:2] if made.op in PRODUCTS else ()
    if any(len(term) != t.ndim for term, t in zip(terms, types, strict=False)):
        return None
    read = subscripts(equation, [t.static_shape for t in types])
    first, second = read.operands
    summed = [s for s in read.extents if s not in read.result]
    if len(summed) != 1 or summed[0] not in first or summed[0] not in second:
        return None
    if len(set(first)) < len(first) or len(set(second)) < len(second):
        return None  # a diagonal
    extents = {label: int(n) for label, n in read.extents.items()}  # type: ignore[arg-type]
    labels = tuple(
        tuple(s if n == extents[s] else None for s, n in zip(own, t.static_shape, strict=True))
        for own, t in zip(read.operands, types, strict=True)
    )
    if any(summed[0] not in own for own in labels):
        return None
    return ScoreProduct(
        (fields[0], fields[1]), (labels[0], labels[1]), read.result, summed[0], extents
    )


StepMatch = tuple[ScoreStep, set[Var]]
"""A step, and what else it is computed of."""


def softmax(atom: Var, made: OpCall, known: Definitions) -> StepMatch | None:
    """Return the step of a softmax whose result an atom is; None if it is none.

    Written out it is exp(x - max) divided by its sum. Raises Refused for another axis.
    """
    type_ = tensor_of(atom)
    if made.op is op.softmax:
        if normalize_axis(made.args[1], type_.ndim) != type_.ndim - 1:
            raise Refused("softmax is not over the last axis")
        return ScoreStep("softmax", atom, made.args[0], made), set()
    if made.op is not op.divide:
        return None
    powers, total = made.args
    exp = op_call(known.get(powers))
    if exp is None or exp.op is not op.exp or _reduced(total, known, op.sum) is not powers:
        return None
    below = op_call(known.get(exp.args[0]))
    if below is None or below.op is not op.subtract or any(a is not None for a in below.args[2:]):
        return None
    scores, top = below.args[:2]
    if _reduced(top, known, op.max) is not scores or tensor_type(scores) != type_:
        return None
    return ScoreStep("softmax", atom, scores, made), {powers, total, exp.args[0], top}


def blind_zero(atom: Var, made: OpCall, known: Definitions) -> StepMatch | None:
    """Return the step after which rows of probabilities are 0 whose scores all are -inf.

    So torch writes its own attention out: where(not any(scores != -inf), 0, softmax(scores)).
    """
    if made.op is not op.where:
        return None
    condition, zero, p = made.args
    if fill_of(zero, known) != 0 or not isinstance(p, Var) or tensor_type(p) != tensor_type(atom):
        return None
    inner, told = op_call(known.get(p)), op_call(known.get(condition))
    if inner is None or inner.op is not op.softmax:
        return None
    if told is not None and told.op is op.isnan:
        raise Refused("probabilities that are NaN become 0, also where query or key is NaN")
    scores, members = _all_hidden(condition, known)
    if inner.args[0] is not scores:
        return None
    filled = op_call(known.get(zero))
    if isinstance(zero, Var) and filled is not None and p in filled.args:
        members = {*members, zero}
    return ScoreStep("cleared", atom, p, made), members


def _all_hidden(atom: Any, known: Definitions) -> tuple[Expr | None, set[Var]]:
    """Return the scores of which a condition says that a whole row is -inf, and what computes it.

    ``flips`` counts negations: "all are hidden" is "not any is not hidden".
    """
    members: set[Var] = set()
    flips = [False]
    reduced: Op | None = None
    while isinstance(atom, Var) and (made := op_call(known.get(atom))) is not None:
        members.add(atom)
        if made.op is op.logical_not:
            flips[-1] = not flips[-1]
        elif made.op in (op.any, op.all, op.max, op.min) and reduced is None:
            if _reduced(atom, known, made.op) is None:
                break
            reduced = {op.max: op.any, op.min: op.all}.get(made.op, made.op)
            flips.append(False)
        elif made.op in (op.equal, op.not_equal) and reduced is not None:
            flips[-1] ^= made.op is op.not_equal
            told = (reduced, *flips) in ((op.all, False, False), (op.any, True, True))
            hidden = fill_of(made.args[1], known) == -inf
            return (made.args[0], members) if told and hidden else (None, set())
        elif made.op not in (op.astype, op.reshape):
            break
        atom = made.args[0]
    return None, set()


def _reduced(atom: Any, known: Definitions, *ops: Op) -> Any:
    """Return what is reduced along its last axis, which stays with extent 1; None if nothing is."""
    made = op_call(known.get(atom))
    if made is None or made.op not in ops:
        return None
    x, axis, keepdims = made.args
    type_ = tensor_type(x)
    if type_ is None or keepdims is not True:
        return None
    return x if normalize_axes(axis, type_.ndim) == (type_.ndim - 1,) else None


@dataclass(frozen=True, slots=True)
class Mask:
    """What hides keys, or is added to the scores.

    atom: a condition or numbers. groups: the axes of its dimensions, of extent 1 none.
    hides: None for numbers that are added; else what is in the place of hidden scores.
    negated: whether numbers are subtracted, or the condition says what is hidden.
    factor: by which the scores are multiplied later.
    """

    atom: Expr
    groups: tuple[AxisGroup, ...]
    hides: float | None
    negated: bool
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Chain:
    """All calls from the probabilities' operand of the last product back to the first product.

    steps: the last one first; that of dropout has its probability, and its key, None for a fresh
    one. members: what they are bound to, the first product included.
    """

    steps: tuple[ScoreStep, ...]
    product: Var
    members: frozenset[Var]

    @property
    def dropped(self) -> ScoreStep | None:
        """The step of dropout, if there is one."""
        return next((step for step in self.steps if step.kind == "dropped"), None)

    @property
    def clears(self) -> bool:
        """Whether queries that may look nowhere get 0, as the operator has it."""
        return any(step.kind == "cleared" for step in self.steps)


def trace_back(atom: Expr, known: Definitions) -> Chain | None:
    """Follow the probabilities back through a softmax to a product; None if there is no softmax.

    Raises Refused if what is before the softmax is not known to attention.
    """
    steps: list[ScoreStep] = []
    members: set[Var] = set()
    after = True
    while True:
        value = known.get(atom)
        made = op_call(known.get(value.value) if isinstance(value, TupleGetItem) else value)
        if made is None or not isinstance(atom, Var):
            break
        if isinstance(value, TupleGetItem):
            if not after or made.op is not op.dropout_train or value.index != 0:
                break
            if any(step.kind == "dropped" for step in steps):
                raise Refused("probabilities are dropped out twice")
            whole = value.value
            assert isinstance(whole, Var)
            x, p, key = made.args
            steps.append(ScoreStep("dropped", whole, x, made, (p, key)))
            members |= {atom, whole}
            atom = x
            continue
        members.add(atom)
        if not after and made.op in _PRODUCTS:
            return Chain(tuple(steps), atom, frozenset(members))
        step, more = _read(atom, made, known, after)
        members |= more
        after = after and (step is None or step.kind != "softmax")
        if step is None:
            break
        steps.append(step)
        atom = step.x
    if after:
        return None
    last = op_call(known.get(atom))
    shown = "a value from elsewhere" if last is None else f"the result of {last.op.name}"
    raise Refused(f"{shown} is between the product of query and key and softmax")


def _read(
    atom: Var, made: OpCall, known: Definitions, after: bool
) -> tuple[ScoreStep | None, set[Var]]:
    """Return the step that a call is, and what else it is computed of."""
    for read in (softmax, blind_zero) if after else ():
        found = read(atom, made, known)
        if found is not None:
            return found
    return _moved(atom, made) or (None if after else _changed(atom, made, known)), set()


def _moved(atom: Var, made: OpCall) -> ScoreStep | None:
    """Other dtypes and places of the elements, before the softmax and after it."""
    x = made.args[0]
    nothing = made.op is op.broadcast_to and tensor_type(x) == tensor_type(atom)
    if nothing or made.op in (op.astype, op.cast_like):
        return ScoreStep("same", atom, x, made)
    if made.op in PERMUTATIONS:
        return ScoreStep("permuted", atom, x, made)
    return ScoreStep("view", atom, x, made) if made.op in VIEWS else None


def _changed(atom: Var, made: OpCall, known: Definitions) -> ScoreStep | None:
    """What changes scores before the softmax: a factor, numbers added, numbers in their place."""
    if made.op in (op.multiply, op.divide):
        found = scaling(atom, made, known)
        if found is None:
            raise Refused("scores are multiplied by what is no number")
        return ScoreStep("scaled", atom, found[0], made, found[1])
    if made.op in (op.add, op.subtract, op.bias_add):
        return _added(atom, made, known)
    return _hidden(atom, made, known) if made.op is op.where else None


def _added(atom: Var, made: OpCall, known: Definitions) -> ScoreStep:
    """Numbers added to the scores, or subtracted: (numbers, subtracted, axis of `bias_add`)."""
    x, y = made.args[:2]
    if made.op is op.bias_add:
        return ScoreStep("added", atom, x, made, (y, False, made.args[2]))
    if any(a is not None for a in made.args[2:]):
        raise Refused(f"{made.op.name} has more than two operands")
    if made.op is op.add and _steps_to_product(y, known) < _steps_to_product(x, known):
        x, y = y, x
    if not isinstance(x, Expr) or not isinstance(y, Expr):
        raise Refused("a number is added to the scores")
    return ScoreStep("added", atom, x, made, (y, made.op is op.subtract, None))


def _hidden(atom: Var, made: OpCall, known: Definitions) -> ScoreStep:
    """Scores that another number replaces: (condition, number, whether it says what is hidden)."""
    condition, x, y = made.args
    for scores, other, negated in ((x, y, False), (y, x, True)):
        number = fill_of(other, known)
        if number is not None and not isinstance(number, bool) and isinstance(scores, Expr):
            return ScoreStep("hidden", atom, scores, made, (condition, float(number), negated))
    raise Refused("scores are replaced by what is no number")


def _steps_to_product(atom: Any, known: Definitions) -> int:
    """Return through how many calls an operand of a sum leads to a product, at the least."""
    layer, seen = [atom], 0
    for steps in range(_FAR):
        calls = [made for made in (op_call(known.get(a)) for a in layer) if made is not None]
        if any(made.op in _PRODUCTS for made in calls):
            return steps
        layer = [a for made in calls if made.op in _ALONG for a in made.args if isinstance(a, Var)]
        seen += len(layer)
        if not layer or seen > _FAR:
            break
    return _FAR


_FAR = 64
_ALONG = (
    *(op.astype, op.cast_like, op.multiply, op.divide, op.add, op.subtract, op.bias_add, op.where),
    *VIEWS,
    *PERMUTATIONS,
)


@dataclass(slots=True)
class Replayed:
    """The axes of softmax's scores, of what is dropped out and of the last product's operand, and
    masks and their scale.
    """

    scores: list[AxisGroup]
    dropped: list[AxisGroup] | None
    probabilities: list[AxisGroup]
    masks: list[Mask]
    scale: float


def replay(chain: Chain, groups: list[AxisGroup]) -> Replayed:
    """Follow the scores from the first product, whose dimensions are ``groups``, to the last.

    Raises Refused where axes are mixed, and for masks that do not fit.
    """
    masks: list[Mask] = []
    scale, at_softmax, at_dropout = 1.0, None, None
    for step in reversed(chain.steps):
        if step.kind == "dropped":
            at_dropout = list(groups)
            continue
        type_ = tensor_of(step.var)
        if step.kind == "softmax":
            at_softmax = list(groups)
        elif step.kind == "view":
            regrouped = grouped(leaves(*groups), type_.static_shape)
            if regrouped is None:
                raise Refused("a reshape mixes axes of the scores")
            groups = regrouped
        elif step.kind == "permuted":
            groups = [groups[i] for i in order_of(step.made)]
        elif step.kind == "scaled":
            scale *= step.value
            masks = [_times(m, step.value) for m in masks]
        elif step.kind in ("added", "hidden"):
            before = tensor_type(step.x)
            if before is None or before.shape != type_.shape:
                raise Refused("a mask has more axes than the scores")
            masks.append(_mask(step, groups, type_))
    assert at_softmax is not None
    return Replayed(at_softmax, at_dropout, groups, masks, scale)


def _times(mask: Mask, factor: float) -> Mask:
    if factor <= 0:
        raise Refused("masked scores are multiplied by a number that is not positive")
    hides = None if mask.hides is None else mask.hides * factor
    return Mask(mask.atom, mask.groups, hides, mask.negated, mask.factor * factor)


def _mask(step: ScoreStep, groups: list[AxisGroup], type_: TensorType) -> Mask:
    atom = step.value[0]
    found = tensor_type(atom)
    if found is None or not found.is_static:
        raise Refused("the extents of a mask are known at run time only")
    if step.kind == "added" and step.value[2] is not None:
        own: tuple[AxisGroup, ...] = (groups[normalize_axis(step.value[2], type_.ndim)],)
    else:
        own = tuple(groups[len(groups) - found.ndim :])
    own = tuple(() if n == 1 else g for g, n in zip(own, found.static_shape, strict=True))
    if step.kind == "added":
        return Mask(atom, own, None, step.value[1])
    number = torch.tensor(step.value[1]).to(TO_TORCH[type_.dtype]).item()
    return Mask(atom, own, number, step.value[2])
