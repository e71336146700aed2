"""Which axis of one array is which axis of another: of the scores, and of what an operand is made
of, through whatever gives elements another place, and back again; and what depends on no input,
such as masks made of ranges.

An axis of the scores may be one dimension here (batch and heads merged) and several there. So a
dimension is described by the axes that it is made of, outermost first, and an axis that turns out
to be several is split, for all descriptions at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import isfinite, prod
from typing import Any

import torch

from meta import op
from meta.base.call_context import Default, use
from meta.dialect.core import only
from meta.dialect.core.ir_calls import OpCall, flat_atoms, is_pure, op_call, tensor_type
from meta.ir import Binding, Call, Constant, Expr, TensorType, Tuple, Var, type_of
from meta.op.core import Op
from meta.passes.alias_analysis import Definitions
from meta.passes.simplify.arithmetic import fill_of
from meta.passes.simplify.shapes import PERMUTATIONS, VIEWS, order_of
from meta.runtime.ndarray import ndarray

AxisGroup = tuple["ScoreAxis", ...]
"""The axes that one dimension is made of."""


@dataclass(eq=False, slots=True)
class ScoreAxis:
    """An axis of a computation: of one extent, unless it was split.

    ``solid``: whether it must not be split; ``parts``: what it was split into.
    """

    extent: int
    solid: bool = False
    parts: tuple[ScoreAxis, ...] = ()

    def leaves(self) -> list[ScoreAxis]:
        """Return what it is made of; nothing for an extent of 1, which may be anywhere."""
        if self.parts:
            return [leaf for part in self.parts for leaf in part.leaves()]
        return [self] if self.extent != 1 else []


def leaves(*groups: AxisGroup) -> list[ScoreAxis]:
    """Return the axes of dimensions in their order."""
    return [leaf for group in groups for axis in group for leaf in axis.leaves()]


def extent(axes: Iterable[ScoreAxis]) -> int:
    """Return how many elements there are along axes."""
    return prod(axis.extent for axis in axes)


def grouped(axes: Sequence[ScoreAxis], shape: Sequence[int]) -> list[AxisGroup] | None:
    """Return which of these axes each dimension of a shape is made of; None if that is none.

    Axes are split where dimensions end inside of them.
    """
    waiting, groups = list(reversed(axes)), []
    for size in shape:
        group: list[ScoreAxis] = []
        while size != 1:
            if not waiting or size == 0:
                return None
            axis = waiting.pop()
            if size % axis.extent == 0:
                group.append(axis)
                size //= axis.extent
                continue
            if axis.extent % size or axis.solid:
                return None
            axis.parts = ScoreAxis(size), ScoreAxis(axis.extent // size)
            group.append(axis.parts[0])
            waiting.append(axis.parts[1])
            size = 1
        groups.append(tuple(group))
    return None if waiting else groups


class Refused(Exception):
    """Why a softmax between two products does not become attention."""


@dataclass(frozen=True, slots=True)
class ScoreStep:
    """One call between the two products. ``x``: what it is applied to; ``var``: its result."""

    kind: str
    var: Var
    x: Expr
    made: OpCall
    value: Any = None


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
        for var, call in order.items():
            called = call.callee
            assert isinstance(called, Op)
            named = zip(called.slots, call.args, strict=True)
            args = ("cpu" if slot.name == "device" else given(a) for slot, a in named)
            values[var] = called(*args).tensor
    return atom.data.cpu() if isinstance(atom, Constant) else values[atom]


def _computation(atom: Expr, known: Definitions) -> dict[Expr, Call] | None:
    """Return the calls that compute an atom of constants, each after those whose results it takes;
    None if it needs more.
    """
    order: dict[Expr, Call] = {}
    stack = [atom]
    while stack:
        one = stack[-1]
        if isinstance(one, Constant) or one in order:
            stack.pop()
            continue
        value, type_ = known.get(one), tensor_type(one)
        if not isinstance(one, Var) or not isinstance(value, Call):
            return None
        if not isinstance(value.callee, Op) or not is_pure(Binding(one, value)):
            return None
        small = type_ is not None and type_.is_static and type_.size <= MAX_ELEMENTS
        if not small or len(order) == MAX_CALLS:
            return None
        inner = [a for argument in value.args for a in flat_atoms(argument)]
        missing = [a for a in inner if not isinstance(a, Constant) and a not in order]
        stack += missing
        if not missing:
            order[stack.pop()] = value
    return order


@dataclass(frozen=True, slots=True)
class ScoreOperand:
    """An array, and which axes its dimensions are; ``factor``: what it is multiplied by."""

    atom: Expr
    groups: tuple[AxisGroup, ...]
    factor: float = 1.0

    @property
    def axes(self) -> list[ScoreAxis]:
        """Its axes, in the order in which its elements lie."""
        return leaves(*self.groups)


def source(operand: ScoreOperand, known: Definitions, *, scaled: bool = False) -> ScoreOperand:
    """Return what an operand is a view of: transposed, repeated, broadcast, or reshaped.

    ``scaled``: products with a number are looked through, too. Axes along which it is repeated are
    not among those of the result.
    """
    while True:
        made = op_call(known.get(operand.atom))
        before = None if made is None else _before(operand, made, known, scaled)
        if before is None:
            return operand
        operand = before


def _before(
    operand: ScoreOperand, made: OpCall, known: Definitions, scaled: bool
) -> ScoreOperand | None:
    type_ = tensor_type(made.args[0])
    if scaled and made.op in (op.multiply, op.divide):
        found = scaling(operand.atom, made, known)
        return found and replace(operand, atom=found[0], factor=operand.factor * found[1])
    if type_ is None or not type_.is_static:
        return None
    groups: Sequence[AxisGroup] | None = None
    if made.op in VIEWS:
        groups = grouped(operand.axes, type_.static_shape)
    elif made.op in PERMUTATIONS:
        places = order_of(made)
        groups = [operand.groups[places.index(i)] for i in range(type_.ndim)]
    elif made.op in (op.broadcast_to, op.broadcast_to_like):
        own = operand.groups[len(operand.groups) - type_.ndim :]
        pairs = zip(own, type_.static_shape, strict=True)
        groups = [() if n == 1 else group for group, n in pairs]
    elif made.op is op.repeat:
        groups = _repeated(operand, made, type_)
    return None if groups is None else replace(operand, atom=made.args[0], groups=tuple(groups))


def _repeated(operand: ScoreOperand, made: OpCall, type_: TensorType) -> list[AxisGroup] | None:
    """Return the dimensions of what is repeated: each element so often, one after the other."""
    _, count, axis = made.args
    if not isinstance(count, int) or not isinstance(axis, int):
        return None
    axis %= type_.ndim
    split = grouped(leaves(operand.groups[axis]), (type_.static_shape[axis], count))
    if split is None:
        return None
    return [split[0] if i == axis else group for i, group in enumerate(operand.groups)]


def scaling(atom: Expr, made: OpCall, known: Definitions) -> tuple[Expr, float] | None:
    """Return what ``atom``, a product or a quotient, is a number times of, and the number."""
    x1, x2 = made.args[:2]
    number = number_of(x2, known)
    if number is None and made.op is op.multiply:
        x1, number = x2, number_of(x1, known)
    if number is None or not isinstance(x1, Expr) or tensor_type(x1) != tensor_type(atom):
        return None
    if made.op is op.divide:
        return None if number == 0 else (x1, 1.0 / number)
    return x1, number


def arranged(x: Any, axes: Sequence[ScoreAxis], wanted: Sequence[Sequence[ScoreAxis]]) -> Any:
    """Return a symbol, whose elements lie along ``axes``, with dimensions made of ``wanted``.

    Axes that it does not have are of extent 1, where a dimension has none that it does; else it is
    broadcast along them.
    """
    order = [a for group in wanted for a in group if a in axes]
    if order != list(axes):
        runs = _runs([list(axes).index(a) for a in order])
        placed = sorted(runs)
        x = _reshaped(x, tuple(extent(axes[first : last + 1]) for first, last in placed))
        x = op.permute_dims(x, tuple(map(placed.index, runs)))
    kept = [[a for a in group if a in axes] for group in wanted]
    if any(k and len(k) < len(group) for k, group in zip(kept, wanted, strict=True)):
        flat = [(a, bool(k)) for k, group in zip(kept, wanted, strict=True) for a in group]
        x = _reshaped(x, tuple(a.extent if a in axes else 1 for a, _ in flat))
        x = op.broadcast_to(x, tuple(a.extent if full else 1 for a, full in flat))
        kept = [list(group) if k else [] for k, group in zip(kept, wanted, strict=True)]
    return _reshaped(x, tuple(map(extent, kept)))


def _runs(places: Sequence[int]) -> list[tuple[int, int]]:
    """Return the first and the last of numbers that follow one another, in their order."""
    runs: list[tuple[int, int]] = []
    for place in places:
        if runs and place == runs[-1][1] + 1:
            runs[-1] = runs[-1][0], place
        else:
            runs.append((place, place))
    return runs


def _reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    return x if tuple(x.shape) == shape else op.reshape(x, shape)
