"""What parts of a program are that depend on no input, such as masks made of ranges."""

from __future__ import annotations

from math import isfinite
from typing import Any

import torch

from meta.dialect.core import only
from meta.ir import Binding, Call, Constant, Expr, TensorType, Tuple, Var, type_of
from meta.op.core import Op
from meta.op.core.handler import Default, use
from meta.passes.call_of import flat_atoms, is_pure
from meta.passes.definitions import Definitions
from meta.passes.rules.fills import fill_of
from meta.runtime.ndarray import ndarray

# A mask of 2048 queries and keys; it is computed while the program is compiled.
MAX_ELEMENTS = 1 << 22
MAX_CALLS = 64


def number_of(atom: Any, known: Definitions) -> float | None:
    """Return the finite number that every element of an atom is, None if it is none."""
    found = fill_of(atom, known)
    type_ = type_of(atom) if isinstance(atom, Expr) else None
    if found is None and isinstance(type_, TensorType) and type_.is_static and type_.size == 1:
        value = value_of(atom, known)
        found = None if value is None else value.item()
    if found is None or isinstance(found, bool) or not isfinite(found):
        return None
    return float(found)


def value_of(atom: Expr, known: Definitions) -> torch.Tensor | None:
    """Return the value of an atom that is computed from constants alone; None for any other."""
    order = _computation(atom, known)
    if order is None:
        return None
    values: dict[Expr, torch.Tensor] = {}

    def given(argument: Any) -> Any:
        if isinstance(argument, Tuple):
            return tuple(map(given, argument.fields))
        if isinstance(argument, Constant):
            return ndarray(argument.data.cpu())
        return ndarray(values[argument]) if isinstance(argument, Expr) else argument

    with use(Default.handler), only("torch"):
        for var, call in order:
            op = call.callee
            assert isinstance(op, Op)
            named = zip(op.slots, call.args, strict=True)
            args = ("cpu" if slot.name == "device" else given(a) for slot, a in named)
            values[var] = op(*args).torch()
    return atom.data.cpu() if isinstance(atom, Constant) else values[atom]


def _computation(atom: Expr, known: Definitions) -> list[tuple[Var, Call]] | None:
    """Return the calls that compute an atom of constants, in order; None if it needs more."""
    found: dict[Var, Call] = {}
    waiting = [atom]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Constant) or one in found:
            continue
        value, type_ = known.get(one), type_of(one)
        if not isinstance(one, Var) or not isinstance(value, Call):
            return None
        if not isinstance(value.callee, Op) or not is_pure(Binding(one, value)):
            return None
        small = isinstance(type_, TensorType) and type_.is_static and type_.size <= MAX_ELEMENTS
        if not small or len(found) == MAX_CALLS:
            return None
        found[one] = value
        waiting += [a for argument in value.args for a in flat_atoms(argument)]
    return _sorted(atom, found)


def _sorted(atom: Expr, found: dict[Var, Call]) -> list[tuple[Var, Call]]:
    """Return calls such that each comes after those whose results it takes."""
    order: dict[Var, Call] = {}
    stack: list[Expr] = [atom]
    while stack:
        one = stack[-1]
        call = found.get(one) if isinstance(one, Var) else None
        inner = [] if call is None else [a for arg in call.args for a in flat_atoms(arg)]
        missing = [a for a in inner if isinstance(a, Var) and a not in order]
        if missing:
            stack += missing
            continue
        stack.pop()
        if call is not None:
            order[one] = call  # type: ignore[index]
    return list(order.items())
