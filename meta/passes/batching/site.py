"""One call of an operator in a program that is batched, and the table of what operators make of it.

A batched tensor has the batch as its first axis; the rest is the tensor of one example. A rule is
given a `Site` and returns the result, or the tuple of results, all of them batched. It returns None
where it has nothing to say, and the call becomes a loop over the examples (`looped`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from meta import op
from meta.ir.dims import product
from meta.op.core import Op
from meta.op.core.check import normalize_axis
from meta.op.core.op import by_schema

Rule = Callable[["Site"], Any]
RULES: dict[Op, Rule] = {}


def rule(*ops: Op) -> Callable[[Rule], Rule]:
    """Register what operators make of batched tensors; a decorator."""

    def register(function: Rule) -> Rule:
        for operator in ops:
            assert operator not in RULES, f"{operator.name} has two rules"
            RULES[operator] = function
        return function

    return register


@dataclass(frozen=True)
class Operand:
    """A tensor argument: the symbol, and whether its first axis is the batch."""

    value: Any
    batched: bool

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of one example."""
        shape: tuple[Any, ...] = self.value.shape
        return shape[1:] if self.batched else shape

    @property
    def ndim(self) -> int:
        """The number of axes of one example."""
        return len(self.shape)


@dataclass(frozen=True)
class Site:
    """A call: ``args`` by name, tensors as `Operand` or as a tuple of them. ``size`` is the extent
    of the batch, ``types`` are those of the results for one example.
    """

    op: Op
    args: dict[str, Any]
    size: Any
    types: tuple[Any, ...]

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of the first result, of one example."""
        shape: tuple[Any, ...] = self.types[0].shape
        return shape

    def is_batched(self, *names: str) -> bool:
        """Whether one of these arguments is batched."""
        return any(isinstance(a, Operand) and a.batched for a in (self.args.get(n) for n in names))

    def batched(self, operand: Operand) -> Any:
        """Return a tensor with the batch as its first axis, repeated along it if it is not."""
        if operand.batched:
            return operand.value
        return op.broadcast_to(operand.value, (self.size, *operand.shape))

    def aligned(self, operand: Operand, ndim: int) -> Any:
        """Return a tensor as it broadcasts with batched ones of ``ndim`` axes an example."""
        missing = ndim - operand.ndim
        if not operand.batched or missing <= 0:
            return operand.value
        return op.reshape(operand.value, (self.size, *[1] * missing, *operand.shape))

    def axis(self, operand: Operand, name: str = "axis") -> int:
        """Return an axis argument as one of the batched tensor."""
        return 1 + normalize_axis(self.args[name], operand.ndim)

    def run(self, **changed: Any) -> Any:
        """Call the operator on all tensors, batched, with some arguments changed."""

        def given(value: Any) -> Any:
            if isinstance(value, tuple) and value and all(isinstance(v, Operand) for v in value):
                return tuple(map(self.batched, value))
            return self.batched(value) if isinstance(value, Operand) else value

        return self.call({n: given(v) for n, v in self.args.items()} | changed)

    def call(self, args: dict[str, Any]) -> Any:
        """Call the operator with arguments by name."""
        return by_schema(self.op)(*(args[name] for name in self.op.schema.names))

    def folded(self, names: Sequence[str], **changed: Any) -> Any:
        """Call an operator whose first axis numbers rows that have nothing to do with one another:
        the batch becomes a part of that axis in these arguments and in the results.

        The other tensors are the same for all examples; else None.
        """
        others = [n for n, v in self.args.items() if isinstance(v, Operand) and n not in names]
        if self.is_batched(*others):
            return None
        args = {n: v.value if isinstance(v, Operand) else v for n, v in self.args.items()}
        for name in names:
            operand = self.args.get(name)
            if isinstance(operand, Operand):
                args[name] = self.fold(self.batched(operand), operand.shape)
        found = self.call(args | changed)
        several = isinstance(found, tuple)
        rows = [
            op.reshape(y, (self.size, *t.shape))
            for y, t in zip(found if several else (found,), self.types, strict=True)
        ]
        return tuple(rows) if several else rows[0]

    def fold(self, value: Any, shape: tuple[Any, ...]) -> Any:
        """Return a batched tensor whose batch is a part of the first axis of an example."""
        return op.reshape(value, (product((self.size, shape[0])), *shape[1:]))


def looped(site: Site) -> Any:
    """Return what a call of each example gives, stacked."""
    found = []
    for i in range(site.size):

        def one(value: Any, i: int = i) -> Any:
            if isinstance(value, tuple) and value and all(isinstance(v, Operand) for v in value):
                return tuple(one(v) for v in value)
            if not isinstance(value, Operand):
                return value
            return value.value[i] if value.batched else value.value

        found.append(site.call({n: one(v) for n, v in site.args.items()}))
    if isinstance(found[0], tuple):
        return tuple(op.stack(column, 0) for column in zip(*found, strict=True))
    return op.stack(found, 0)
