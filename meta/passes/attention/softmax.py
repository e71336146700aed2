"""Softmax over the last axis: the operator, written out, and made safe for rows without a key."""

from __future__ import annotations

from math import inf
from typing import Any

from meta.ir import Expr, Var
from meta.op.core.check import normalize_axes, normalize_axis
from meta.passes.attention.steps import Refused, Step
from meta.passes.definitions import Definitions
from meta.passes.rules.fills import fill_of
from meta.passes.rules.table import OpCall, op_call, tensor_type

Found = tuple[Step, set[Var]]
"""A step, and what else it is computed of."""


def softmax(atom: Var, made: OpCall, known: Definitions) -> Found | None:
    """Return the step of a softmax whose result an atom is; None if it is none.

    Written out it is exp(x - max) divided by its sum. Raises Refused for another axis.
    """
    type_ = tensor_type(atom)
    assert type_ is not None
    if made.name == "softmax":
        if normalize_axis(made.args[1], type_.ndim) != type_.ndim - 1:
            raise Refused("softmax is not over the last axis")
        return Step("softmax", atom, made.args[0], made), set()
    if made.name != "divide":
        return None
    powers, total = made.args
    exp = op_call(known.get(powers))
    if exp is None or exp.name != "exp" or _reduced(total, known, ("sum",)) is not powers:
        return None
    below = op_call(known.get(exp.args[0]))
    if below is None or below.name != "subtract" or any(a is not None for a in below.args[2:]):
        return None
    scores, top = below.args[:2]
    if _reduced(top, known, ("max", "amax")) is not scores or tensor_type(scores) != type_:
        return None
    return Step("softmax", atom, scores, made), {powers, total, exp.args[0], top}


def blind_zero(atom: Var, made: OpCall, known: Definitions) -> Found | None:
    """Return the step after which rows of probabilities are 0 whose scores all are -inf.

    So torch writes its own attention out: where(not any(scores != -inf), 0, softmax(scores)).
    """
    if made.name != "where":
        return None
    condition, zero, p = made.args
    if fill_of(zero, known) != 0 or not isinstance(p, Var) or tensor_type(p) != tensor_type(atom):
        return None
    inner, told = op_call(known.get(p)), op_call(known.get(condition))
    if inner is None or inner.name != "softmax":
        return None
    if told is not None and told.name == "isnan":
        raise Refused("probabilities that are NaN become 0, also where query or key is NaN")
    scores, members = _all_hidden(condition, known)
    if inner.args[0] is not scores:
        return None
    made_of = {zero} if isinstance(zero, Var) and p in _arguments(zero, known) else set()
    return Step("cleared", atom, p, made), members | made_of


def _all_hidden(atom: Any, known: Definitions) -> tuple[Expr | None, set[Var]]:
    """Return the scores of which a condition says that a whole row is -inf, and what computes it.

    ``flips`` counts negations: "all are hidden" is "not any is not hidden".
    """
    members: set[Var] = set()
    flips = [False]
    reduced = ""
    while isinstance(atom, Var) and (made := op_call(known.get(atom))) is not None:
        members.add(atom)
        if made.name == "logical_not":
            flips[-1] = not flips[-1]
        elif made.name in ("any", "all", "max", "min") and not reduced:
            if _reduced(atom, known, (made.name,)) is None:
                break
            reduced = {"max": "any", "min": "all"}.get(made.name, made.name)
            flips.append(False)
        elif made.name in ("equal", "not_equal") and reduced:
            flips[-1] ^= made.name == "not_equal"
            told = (reduced, *flips) in (("all", False, False), ("any", True, True))
            hidden = fill_of(made.args[1], known) == -inf
            return (made.args[0], members) if told and hidden else (None, set())
        elif made.name not in ("cast", "reshape"):
            break
        atom = made.args[0]
    return None, set()


def _arguments(atom: Var, known: Definitions) -> tuple[Any, ...]:
    made = op_call(known.get(atom))
    return () if made is None else made.args


def _reduced(atom: Any, known: Definitions, names: tuple[str, ...]) -> Any:
    """Return what is reduced along its last axis, which stays with extent 1; None if nothing is."""
    made = op_call(known.get(atom))
    if made is None or made.name not in names:
        return None
    x, axis, keepdims, exclude = made.args
    type_ = tensor_type(x)
    if type_ is None or keepdims is not True:
        return None
    return x if normalize_axes(axis, type_.ndim, exclude) == (type_.ndim - 1,) else None
