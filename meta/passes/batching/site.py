"""One call of an operator in a program that is batched, and the table of what operators make of it.

A batched tensor has the batch as its first axis; the rest is the tensor of one example. A rule is
given a `Site` and returns the result, or the tuple of results, all of them batched. It returns None
where it has nothing to say, and the call becomes a loop over the examples (`looped`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from meta import op
from meta.base.device import Device
from meta.base.errors import TraceError
from meta.ir.dims import product
from meta.op.core import Op
from meta.op.core.axes import Axes
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
    of the batch, ``types`` are those of the results for one example, ``device`` is where it runs.
    ``different``: the operator is to draw other numbers for each example.
    """

    op: Op
    args: dict[str, Any]
    size: Any
    types: tuple[Any, ...]
    device: Device
    different: bool = False

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of the first result, of one example."""
        shape: tuple[Any, ...] = self.types[0].shape
        return shape

    @property
    def axes(self) -> tuple[Axes, ...]:
        """How the axes of one example belong together, as the operator says."""

        def type_of(value: Any) -> Any:
            if isinstance(value, Operand):
                return value.value.type.with_shape(value.shape)
            return tuple(map(type_of, value)) if isinstance(value, tuple) else value

        return self.op.axes_of({n: type_of(v) for n, v in self.args.items()})

    def is_batched(self, *names: str) -> bool:
        """Whether one of these arguments is batched."""
        return any(o.batched for n in names for o in self.operands(n))

    def operands(self, name: str) -> tuple[Operand, ...]:
        """Return the tensors of an argument."""
        value = self.args.get(name)
        return tuple(
            o for o in (value if isinstance(value, tuple) else (value,)) if isinstance(o, Operand)
        )

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

        return self.call({n: on_tensors(self.batched, v) for n, v in self.args.items()} | changed)

    def call(self, args: dict[str, Any]) -> Any:
        """Call the operator with arguments by name."""
        return by_schema(self.op)(*(args[name] for name in self.op.schema.names))

    def plain(self, **changed: Any) -> Any:
        """Call the operator on all tensors as they are, with some arguments changed."""
        return self.call(
            {n: on_tensors(lambda o: o.value, v) for n, v in self.args.items()} | changed
        )

    def fold(self, operand: Operand, axis: int = 0) -> Any:
        """Return a tensor whose batch is a part of an axis of an example: the part in front."""
        shape = operand.shape
        order = (*range(1, 1 + axis), 0, *range(1 + axis, 1 + len(shape)))
        rows = (*shape[:axis], product((self.size, shape[axis])), *shape[axis + 1 :])
        return op.reshape(_permuted(self.batched(operand), order), rows)

    def unfold(self, value: Any, shape: tuple[Any, ...], axis: int = 0) -> Any:
        """Undo `fold`, of examples of a shape."""
        ndim = 1 + len(shape)
        pieces = op.reshape(value, (*shape[:axis], self.size, *shape[axis:]))
        return _permuted(pieces, (axis, *(i for i in range(ndim) if i != axis)))


def on_tensors(change: Callable[[Operand], Any], value: Any) -> Any:
    """Return an argument with its tensors changed."""
    if isinstance(value, tuple):
        return tuple(on_tensors(change, v) for v in value)
    return change(value) if isinstance(value, Operand) else value


def _permuted(value: Any, order: tuple[int, ...]) -> Any:
    return value if order == tuple(range(len(order))) else op.permute_dims(value, order)


def of_none(site: Site) -> Any:
    """Return the results of no examples; TraceError if their extents depend on values."""
    if not all(t.is_static for t in site.types):
        raise TraceError("of no examples it is not known how large results are", op=site.op.name)
    empty = tuple(op.zeros((0, *t.shape), t.dtype, site.device) for t in site.types)
    return empty if len(empty) > 1 else empty[0]


def looped(site: Site) -> Any:
    """Return what a call of each example gives, stacked."""

    def one(i: int) -> Any:
        def row(o: Operand) -> Any:
            return o.value[i] if o.batched else o.value

        return site.call({n: on_tensors(row, v) for n, v in site.args.items()})

    found = [one(i) for i in range(site.size)]
    if isinstance(found[0], tuple):
        return tuple(op.stack(column, 0) for column in zip(*found, strict=True))
    return op.stack(found, 0)
