"""What this rank holds of each value of a program that was written for one device, and what an
operator makes of parts.

A value is the same on all ranks, or each rank has a part of it (`ShardAxis`). What an operator does
with parts, and where ranks exchange, follows from its axes, or a rule says it
(`sharding_rules.py`); others get whole values, which are gathered. `tensor_parallel.py` walks over
programs.

Gradients follow from the operators that are put in. One that all ranks compute alike is the same on
all of them; a part has the part of it. So a whole value that is used together with parts goes
through `copy_to`, and a part becomes whole by `gather_from` or, if it is a term of a sum, by
`reduce_from`. Shoeybi et al., "Megatron-LM", arXiv:1909.08053; Xu et al., "GSPMD",
arXiv:2105.04663.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.base.errors import IRError
from meta.base.source import Span
from meta.ir import TupleType, Type
from meta.op.core import Op
from meta.op.core.axes import Axes
from meta.op.core.op import by_schema
from meta.op.core.tracing import Symbol, Value
from meta.runtime.placement import Joined, lengths


@dataclass(frozen=True, slots=True)
class ShardAxis:
    """The axis along which ranks have parts of a value. joined: so many pieces of equal length lie
    one after the other along it, or pieces of these lengths, beside one another, and a rank has its
    part of each.
    """

    axis: int
    joined: Joined = 1

    def fits(self, shape: Sequence[Any], size: int) -> bool:
        """Whether a value of a shape can be cut so among ``size`` ranks."""
        extent = shape[self.axis]
        return isinstance(extent, int) and extent % (sum(lengths(self.joined)) * size) == 0

    def local(self, shape: Sequence[Any], size: int) -> tuple[Any, ...]:
        """Return the shape of a part."""
        assert self.fits(shape, size)
        return (*shape[: self.axis], shape[self.axis] // size, *shape[self.axis + 1 :])


@dataclass(eq=False, slots=True)
class ShardedValue:
    """A value of the program: its ``type`` on one device, and what this rank has of it.

    cut: None if all ranks have the same. grad: whether a gradient may reach it.
    """

    value: Any
    type: Any
    cut: ShardAxis | None = None
    grad: bool = False
    # What was made of it before: the whole, the copy for parts, parts by cut.
    whole: ShardedValue | None = None
    copied: Any = None
    parts: dict[ShardAxis, Any] = field(default_factory=dict)

    @property
    def shape(self) -> tuple[Any, ...]:
        """The extents on one device."""
        extents: tuple[Any, ...] = self.type.shape
        return extents

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.shape)

    def was_written(self) -> None:
        """Forget what was made of the values that it had."""
        self.whole, self.copied, self.parts = None, None, {}


def leaves(value: Any) -> Iterator[ShardedValue]:
    """Yield the parts in an argument, a nested tuple or one of them; nothing for a literal."""
    if isinstance(value, ShardedValue):
        yield value
    elif isinstance(value, tuple):
        for one in value:
            yield from leaves(one)


def map_shards(value: Any, change: Callable[[ShardedValue], Any]) -> Any:
    """Return an argument with its parts changed."""
    if isinstance(value, ShardedValue):
        return change(value)
    if isinstance(value, tuple):
        return tuple(map_shards(one, change) for one in value)
    return value


@dataclass(frozen=True, slots=True)
class InsertedCollective:
    """A collective that was put into a program: of a value of this type on one rank, why, and for
    which line.
    """

    collective: str
    type: Type
    why: str
    span: Span | None = None

    def __str__(self) -> str:
        where = "" if self.span is None else f"  # {self.span}"
        return f"{self.collective}({self.type}): {self.why}{where}"


class Ranks:
    """The ranks along ``over``, of which there are ``size``, and what they exchange.

    Attributes
    ----------
    exchanges: the collectives that were put in, in order. span: the line that is written now.
    device: where the program runs.
    """

    def __init__(self, over: str, size: int, device: str) -> None:
        self.over, self.size, self.device = over, size, device
        self.exchanges: list[InsertedCollective] = []
        self.span: Span | None = None
        self._place: Symbol | None = None

    def begin(self) -> None:
        """Begin another function, in which values of the one before are not known."""
        self._place = None

    def exchange(self, collective: str, value: Any, why: str) -> None:
        """Note that a collective of a value is put in."""
        self.exchanges.append(InsertedCollective(collective, value.type, why, self.span))

    def place(self) -> Symbol:
        """Return this rank's place along the axis: int64, shape ()."""
        if self._place is None:
            self._place = op.axis_index(self.over, self.size, self.device)
        return self._place

    def whole(self, part: ShardedValue, why: str) -> ShardedValue:
        """Return a value that all ranks have."""
        if part.cut is None:
            return part
        if part.whole is None:
            self.exchange("gather_from", part.value, why)
            made = self._moved(part.value, part.cut, op.gather_from, self.size)
            part.whole = ShardedValue(made, part.type, None, part.grad)
        return part.whole

    def copied(self, part: ShardedValue) -> Value:
        """Return what all ranks have, to be used together with parts."""
        assert part.cut is None
        if not part.grad:
            return part.value  # type: ignore[no-any-return]
        if part.copied is None:
            self.exchange("copy_to", part.value, "parts are computed from it")
            part.copied = op.copy_to(part.value, self.over, self.size)
        return part.copied  # type: ignore[no-any-return]

    def cut(self, part: ShardedValue, cut: ShardAxis, why: str) -> Value:
        """Return this rank's part of a value along a cut."""
        if part.cut == cut:
            return part.value  # type: ignore[no-any-return]
        part = self.whole(part, why)
        if cut not in part.parts:
            self.exchange("scatter_to", part.value, why)
            part.parts[cut] = self._moved(part.value, cut, op.scatter_to, 1)
        return part.parts[cut]  # type: ignore[no-any-return]

    def _moved(self, value: Any, cut: ShardAxis, move: Op, times: int) -> Any:
        """Return a value after ``move`` along a cut, which makes the axis longer or shorter."""
        axis, joined = cut.axis, cut.joined
        if joined == 1:
            return move(value, self.over, self.size, axis)
        if isinstance(joined, tuple):
            unit = value.shape[axis] // sum(joined)
            ends = tuple(n * unit for n in accumulate(joined[:-1]))
            pieces = op.split(value, ends, axis)
            return op.concat(tuple(move(p, self.over, self.size, axis) for p in pieces), axis)
        before, after = value.shape[:axis], value.shape[axis + 1 :]
        pieces = op.reshape(value, (*before, joined, value.shape[axis] // joined, *after))
        made = move(pieces, self.over, self.size, axis + 1)
        return op.reshape(made, (*before, joined * made.shape[axis + 1], *after))

    def summed(self, value: Any, why: str) -> Value:
        """Return the sum of a term that each rank has."""
        self.exchange("reduce_from", value, why)
        return op.reduce_from(value, self.over, self.size)  # type: ignore[no-any-return]

    def largest(self, value: Any, why: str) -> Value:
        """Return the largest of what each rank has, elementwise, through which no gradient goes."""
        self.exchange("all_reduce", value, why)
        found: Value = op.all_reduce(op.detach(value), self.over, self.size, "max")
        return found

    def own_key(self, key: Any) -> Value:
        """Return another key of random numbers on each rank, for numbers of parts."""
        found: Value = op.bitwise_xor(key, op.multiply(self.place(), _KEY_STRIDE))
        return found

    def own_indices(self, indices: Any, extent: int) -> tuple[Value, Value]:
        """Return where indices are in this rank's part of an axis, 0 for what is not there, and
        which are there. ``extent``: of the part.
        """
        shifted = op.subtract(indices, op.multiply(self.place(), extent))
        there = op.logical_and(op.greater_equal(shifted, 0), op.less(shifted, extent))
        return op.where(there, shifted, 0), there


_KEY_STRIDE = 0x9E3779B97F4A7
"""An odd number: times the rank it is what keys of ranks differ by."""


@dataclass(slots=True)
class Site:
    """A call of an operator: its arguments by name, tensors being a `ShardedValue` or a tuple of
    them; ``type`` is that of its result on one device.
    """

    ranks: Ranks
    op: Op
    args: dict[str, Any]
    type: Any

    @property
    def why(self) -> str:
        """For what values are exchanged."""
        return f"{self.op.name} needs it"

    @property
    def axes(self) -> tuple[Axes, ...]:
        """How the axes of whole tensors belong together, as the operator says."""
        return self.op.axes_of({n: map_shards(a, lambda p: p.type) for n, a in self.args.items()})

    def parts(self) -> list[ShardedValue]:
        """Return all parts among the arguments."""
        return [p for a in self.args.values() for p in leaves(a)]

    def __getitem__(self, name: str) -> Any:
        return self.args[name]

    def made(self, **changed: Any) -> Any:
        """Return what the call gives with other arguments; those that all ranks have are copied."""

        def given(part: ShardedValue) -> Any:
            return part.value if part.cut is not None else self.ranks.copied(part)

        args = {
            n: changed[n] if n in changed else map_shards(a, given) for n, a in self.args.items()
        }
        return by_schema(self.op)(*args.values())

    def run(self, cut: Any, **changed: Any) -> Any:
        """Return the results of `made`, cut: in one way, or each in another."""
        return self.result(self.made(**changed), cut)

    def result(self, made: Any, cut: Any) -> Any:
        """Return a value, or several, as the results of the call."""
        if isinstance(self.type, TupleType):
            cuts = cut if isinstance(cut, tuple) else (cut,) * len(self.type.fields)
            return tuple(map(self._part, made, self.type.fields, cuts))
        return self._part(made, self.type, cut)

    def _part(self, made: Any, type_: Any, cut: ShardAxis | None) -> ShardedValue:
        shape = type_.shape if cut is None else cut.local(type_.shape, self.ranks.size)
        if made.type != type_.with_shape(shape):
            raise IRError(
                "a rule of sharding gives another type",
                op=self.op.name,
                expected=type_.with_shape(shape),
                found=made.type,
            )
        grad = is_float(type_.dtype) and any(p.grad for p in self.parts())
        return ShardedValue(made, type_, cut, grad)

    def aligned(self, part: ShardedValue, cut: ShardAxis, ndim: int) -> Value:
        """Return what goes, broadcast, together with parts of ``ndim`` axes."""
        axis = cut.axis - (ndim - part.ndim)
        if axis < 0 or part.shape[axis] == 1:
            return self.ranks.copied(self.ranks.whole(part, self.why))
        return self.ranks.cut(part, ShardAxis(axis, cut.joined), self.why)

    def summed(self, made: Any) -> ShardedValue:
        """Return the result from the term of it that each rank has."""
        found: ShardedValue = self.result(self.ranks.summed(made, f"{self.op.name} of parts"), None)
        return found

    def local(self, cut: ShardAxis) -> tuple[Any, ...]:
        """Return the shape of a part of the result."""
        return cut.local(self.type.shape, self.ranks.size)


Rule = Callable[[Site], Any]
"""Returns what a call makes of parts; None if it is to be called with whole values."""
RULES: dict[Op, Rule] = {}


def rule(*ops: Op) -> Callable[[Rule], Rule]:
    """Register what operators make of parts, as a decorator."""

    def register(function: Rule) -> Rule:
        RULES.update(dict.fromkeys(ops, function))
        return function

    return register
