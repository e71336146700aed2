"""Where an operand comes from, through whatever gives elements another place, and back again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from meta import op
from meta.ir import Expr, TensorType
from meta.passes.attention.axes import Axis, Group, extent, grouped, leaves
from meta.passes.attention.constants import number_of
from meta.passes.definitions import Definitions
from meta.passes.rules.shapes import PERMUTATIONS, VIEWS, order_of
from meta.passes.rules.table import OpCall, op_call, tensor_type


@dataclass(frozen=True, slots=True)
class Operand:
    """An array, and which axes its dimensions are; ``factor``: what it is multiplied by."""

    atom: Expr
    groups: tuple[Group, ...]
    factor: float = 1.0

    @property
    def axes(self) -> list[Axis]:
        """Its axes, in the order in which its elements lie."""
        return leaves(*self.groups)


def source(operand: Operand, known: Definitions, *, scaled: bool = False) -> Operand:
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


def _before(operand: Operand, made: OpCall, known: Definitions, scaled: bool) -> Operand | None:
    type_ = tensor_type(made.args[0])
    if scaled and made.name in ("multiply", "divide"):
        found = scaling(operand.atom, made, known)
        return found and replace(operand, atom=found[0], factor=operand.factor * found[1])
    if type_ is None or not type_.is_static:
        return None
    groups: Sequence[Group] | None = None
    if made.name in VIEWS:
        groups = grouped(operand.axes, type_.static_shape)
    elif made.name in PERMUTATIONS:
        places = order_of(made)
        groups = [operand.groups[places.index(i)] for i in range(type_.ndim)]
    elif made.name in ("broadcast_to", "broadcast_to_like"):
        own = operand.groups[len(operand.groups) - type_.ndim :]
        pairs = zip(own, type_.static_shape, strict=True)
        groups = [() if n == 1 else group for group, n in pairs]
    elif made.name == "repeat":
        groups = _repeated(operand, made, type_)
    return None if groups is None else replace(operand, atom=made.args[0], groups=tuple(groups))


def _repeated(operand: Operand, made: OpCall, type_: TensorType) -> list[Group] | None:
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
    if number is None and made.name == "multiply":
        x1, number = x2, number_of(x1, known)
    if number is None or not isinstance(x1, Expr) or tensor_type(x1) != tensor_type(atom):
        return None
    if made.name == "divide":
        return None if number == 0 else (x1, 1.0 / number)
    return x1, number


def arranged(x: Any, axes: Sequence[Axis], wanted: Sequence[Sequence[Axis]]) -> Any:
    """Return a symbol, whose elements lie along ``axes``, with dimensions made of ``wanted``.

    Axes that it does not have are of extent 1, where a dimension has none that it does; else it is
    broadcast along them.
    """
    order = [a for group in wanted for a in group if a in axes]
    if order != list(axes):
        x = _reshaped(x, tuple(a.extent for a in axes))
        x = op.transpose(x, tuple(list(axes).index(a) for a in order))
    kept = [[a for a in group if a in axes] for group in wanted]
    if any(k and len(k) < len(group) for k, group in zip(kept, wanted, strict=True)):
        flat = [(a, bool(k)) for k, group in zip(kept, wanted, strict=True) for a in group]
        x = _reshaped(x, tuple(a.extent if a in axes else 1 for a, _ in flat))
        x = op.broadcast_to(x, tuple(a.extent if full else 1 for a, full in flat))
        kept = [list(group) if k else [] for k, group in zip(kept, wanted, strict=True)]
    return _reshaped(x, tuple(map(extent, kept)))


def _reshaped(x: Any, shape: tuple[int, ...]) -> Any:
    return x if tuple(x.shape) == shape else op.reshape(x, shape)
