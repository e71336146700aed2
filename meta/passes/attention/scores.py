"""From the probabilities back to the product of queries and keys: what is done to the scores.

`trace_back` goes up from the last product to the first, `replay` comes down again and says which
axes the dimensions are on the way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from meta.base.dtype import TO_TORCH
from meta.ir import Expr, TensorType, TupleGetItem, Var
from meta.op.core.check import normalize_axis
from meta.passes.attention.axes import Group, grouped, leaves
from meta.passes.attention.products import PRODUCTS
from meta.passes.attention.softmax import blind_zero, softmax
from meta.passes.attention.steps import Refused, Step
from meta.passes.attention.views import scaling
from meta.passes.definitions import Definitions
from meta.passes.rules.fills import fill_of
from meta.passes.rules.shapes import PERMUTATIONS, VIEWS, order_of
from meta.passes.rules.table import OpCall, op_call, tensor_type


@dataclass(frozen=True, slots=True)
class Mask:
    """What hides keys, or is added to the scores.

    Attributes
    ----------
    atom: a condition or numbers. groups: the axes of its dimensions, of extent 1 none.
    hides: None for numbers that are added; else what is in the place of hidden scores.
    negated: whether numbers are subtracted, or the condition says what is hidden.
    factor: by which the scores are multiplied later.
    """

    atom: Expr
    groups: tuple[Group, ...]
    hides: float | None
    negated: bool
    factor: float = 1.0


@dataclass(frozen=True, slots=True)
class Chain:
    """All calls from the probabilities' operand of the last product back to the first product.

    steps: the last one first. members: what they are bound to, the first product included.
    """

    steps: tuple[Step, ...]
    product: Var
    members: frozenset[Var]

    @property
    def clears(self) -> bool:
        """Whether queries that may look nowhere get 0, as the operator has it."""
        return any(step.kind == "cleared" for step in self.steps)


def trace_back(atom: Expr, known: Definitions) -> Chain | None:
    """Follow the probabilities back through a softmax to a product; None if there is no softmax.

    Raises Refused if what is before the softmax is not known to attention.
    """
    steps: list[Step] = []
    members: set[Var] = set()
    after, dropped = True, False
    while True:
        value = known.get(atom)
        made = op_call(known.get(value.value) if isinstance(value, TupleGetItem) else value)
        if made is None or not isinstance(atom, Var):
            break
        if isinstance(value, TupleGetItem):
            if not after or made.name != "_contrib_dropout":
                break
            dropped, atom = True, made.args[0]
            continue
        members.add(atom)
        if not after and made.name in PRODUCTS:
            if dropped:
                raise Refused("probabilities are dropped out, which no kernel of attention does")
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
    raise Refused(f"{_called(atom, known)} is between the product of query and key and softmax")


def _read(atom: Var, made: OpCall, known: Definitions, after: bool) -> tuple[Step | None, set[Var]]:
    """Return the step that a call is, and what else it is computed of."""
    for read in (softmax, blind_zero) if after else ():
        found = read(atom, made, known)
        if found is not None:
            return found
    steps = (step for read in _READ for step in read(atom, made, known, after))
    return next(steps, None), set()


def _called(atom: Expr, known: Definitions) -> str:
    made = op_call(known.get(atom))
    return "a value from elsewhere" if made is None else f"the result of {made.name}"


Reader = Callable[[Var, OpCall, Definitions, bool], Iterator[Step]]


def _moved(atom: Var, made: OpCall, known: Definitions, after: bool) -> Iterator[Step]:
    """Other dtypes and places of the elements, before the softmax and after it."""
    x = made.args[0]
    nothing = made.name == "broadcast_to" and tensor_type(x) == tensor_type(atom)
    if nothing or made.name in ("cast", "cast_like"):
        yield Step("same", atom, x, made)
    elif made.name in PERMUTATIONS:
        yield Step("permuted", atom, x, made)
    elif made.name in VIEWS:
        yield Step("view", atom, x, made)


def _scaled(atom: Var, made: OpCall, known: Definitions, after: bool) -> Iterator[Step]:
    if not after and made.name in ("multiply", "divide"):
        found = scaling(atom, made, known)
        if found is None:
            raise Refused("scores are multiplied by what is no number")
        yield Step("scaled", atom, found[0], made, found[1])


def _added(atom: Var, made: OpCall, known: Definitions, after: bool) -> Iterator[Step]:
    """Numbers added to the scores, or subtracted: (numbers, subtracted, axis of `bias_add`)."""
    if after or made.name not in ("add", "subtract", "bias_add"):
        return
    x, y = made.args[:2]
    if made.name == "bias_add":
        yield Step("added", atom, x, made, (y, False, made.args[2]))
        return
    if any(a is not None for a in made.args[2:]):
        raise Refused(f"{made.name} has more than two operands")
    if made.name == "add" and _steps_to_product(y, known) < _steps_to_product(x, known):
        x, y = y, x
    if not isinstance(x, Expr) or not isinstance(y, Expr):
        raise Refused("a number is added to the scores")
    yield Step("added", atom, x, made, (y, made.name == "subtract", None))


def _hidden(atom: Var, made: OpCall, known: Definitions, after: bool) -> Iterator[Step]:
    """Scores that another number replaces: (condition, number, whether it says what is hidden)."""
    if after or made.name != "where":
        return
    condition, x, y = made.args
    for scores, other, negated in ((x, y, False), (y, x, True)):
        number = fill_of(other, known)
        if number is not None and not isinstance(number, bool) and isinstance(scores, Expr):
            yield Step("hidden", atom, scores, made, (condition, float(number), negated))
            return
    raise Refused("scores are replaced by what is no number")


_READ: tuple[Reader, ...] = (_moved, _scaled, _added, _hidden)


def _steps_to_product(atom: Any, known: Definitions) -> int:
    """Return through how many calls an operand of a sum leads to a product, at the least."""
    layer, seen = [atom], 0
    for steps in range(_FAR):
        calls = [made for made in (op_call(known.get(a)) for a in layer) if made is not None]
        if any(made.name in PRODUCTS for made in calls):
            return steps
        layer = [a for made in calls if made.name in _ALONG for a in made.args if _is_var(a)]
        seen += len(layer)
        if not layer or seen > _FAR:
            break
    return _FAR


def _is_var(atom: Any) -> bool:
    return isinstance(atom, Var)


_FAR = 64
_ALONG = (
    *("cast", "cast_like", "multiply", "divide", "add", "subtract", "bias_add", "where"),
    *VIEWS,
    *PERMUTATIONS,
)


@dataclass(slots=True)
class Replayed:
    """The axes of the scores where softmax gets them, and of the probabilities where the last
    product does; the masks in their order, and by what the scores are multiplied.
    """

    scores: list[Group]
    probabilities: list[Group]
    masks: list[Mask]
    scale: float


def replay(chain: Chain, groups: list[Group]) -> Replayed:
    """Follow the scores from the first product, whose dimensions are ``groups``, to the last.

    Raises Refused where axes are mixed, and for masks that do not fit.
    """
    masks: list[Mask] = []
    scale, at_softmax = 1.0, None
    for step in reversed(chain.steps):
        type_ = tensor_type(step.var)
        assert type_ is not None
        if step.kind == "softmax":
            at_softmax = list(groups)
        elif step.kind == "view":
            groups = _regrouped(groups, type_)
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
    return Replayed(at_softmax, groups, masks, scale)


def _regrouped(groups: list[Group], type_: TensorType) -> list[Group]:
    found = grouped(leaves(*groups), type_.static_shape)
    if found is None:
        raise Refused("a reshape mixes axes of the scores")
    return found


def _times(mask: Mask, factor: float) -> Mask:
    if factor <= 0:
        raise Refused("masked scores are multiplied by a number that is not positive")
    hides = None if mask.hides is None else mask.hides * factor
    return Mask(mask.atom, mask.groups, hides, mask.negated, mask.factor * factor)


def _mask(step: Step, groups: list[Group], type_: TensorType) -> Mask:
    atom = step.value[0]
    found = tensor_type(atom)
    if found is None or not found.is_static:
        raise Refused("the extents of a mask are known at run time only")
    if step.kind == "added" and step.value[2] is not None:
        own: tuple[Group, ...] = (groups[normalize_axis(step.value[2], type_.ndim)],)
    else:
        own = tuple(groups[len(groups) - found.ndim :])
    own = tuple(() if n == 1 else g for g, n in zip(own, found.static_shape, strict=True))
    if step.kind == "added":
        return Mask(atom, own, None, step.value[1])
    number = torch.tensor(step.value[1]).to(TO_TORCH[type_.dtype]).item()
    return Mask(atom, own, number, step.value[2])
