"""Data parallel training steps, and ZeRO: who has which part of parameters, gradients and states,
how gradients become one, and the norm of gradients of which a rank has parts.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, Any

from meta import op
from meta.base.dtype import promote
from meta.model.gradient import shard_parameters
from meta.model.model import Model
from meta.op.core import Op
from meta.op.core.formula import Expr, evaluate
from meta.op.core.update import FORMULAS, NEUTRAL_VALUES
from meta.passes.distributed.flat_shards import (
    all_gather,
    bucket_all_gather,
    bucket_reduce_scatter,
    buckets,
    is_in_place,
    own_shard,
)
from meta.runtime.mesh import axis_size
from meta.runtime.ndarray import ndarray
from meta.runtime.placement import Placement, Split

if TYPE_CHECKING:
    from meta.optim.optimizer import Optimizer, ParameterBatch

Arrays = Mapping[str, Any]


@dataclass(frozen=True)
class DataParallel:
    """A data parallel step: ``over`` which axis of the mesh, over how many ranks, in which dtype
    gradients are averaged (None: their own), and what is split: nothing (0), the state of the
    optimizer (1), gradients, too (2), and parameters (3).
    """

    over: str
    size: int
    dtype: str | None
    zero: int

    @classmethod
    def of(cls, over: str, dtype: str | None, zero: int) -> DataParallel:
        """Return those of the mesh at hand; one rank has the whole of everything."""
        size = axis_size(over)
        return cls(over, size, dtype, zero if size > 1 else 0)

    @property
    def split(self) -> Split:
        """How what is split is split."""
        return Split(self.over, self.size)

    def start(self, model: Model) -> None:
        """Give a model the arrays that it has on rank 0, or this rank's parts of them."""
        self.broadcast(model.state().values())
        if self.zero == 3:
            shard_parameters(model, self.split)

    def broadcast(self, arrays: Iterable[ndarray]) -> None:
        """Write arrays as rank 0 has them."""
        for value in arrays:
            value.update(op.broadcast_from(value, self.over, self.size))

    def placement(self, array: ndarray) -> Placement:
        """Return which part of a parameter this rank updates."""
        whole = self.zero in (1, 2)
        return array.placement.then(self.split) if whole else array.placement

    def gradient_placement(self, array: ndarray) -> Placement:
        """Return which part of a parameter's gradient this rank has."""
        return array.placement if self.zero == 1 else self.placement(array)

    def means(self, gradients: Arrays) -> dict[str, Any]:
        """Return the means of gradients over the ranks, or this rank's parts of them."""
        wide = {
            n: g if self.dtype is None else op.astype(g, self.dtype) for n, g in gradients.items()
        }
        means: dict[str, Any] = {}
        if self.zero > 1:
            for names in buckets(wide, self.split):
                found = bucket_reduce_scatter([wide[n] for n in names], self.split, "mean")
                means |= dict(zip(names, found, strict=True))
        else:
            for name, gradient in wide.items():
                means[name] = op.all_reduce(gradient, self.over, self.size, "mean")
        if self.dtype is None:
            return {n: means[n] for n in gradients}
        return {n: op.astype(means[n], g.dtype) for n, g in gradients.items()}

    def parts(self, arrays: Arrays, params: Mapping[str, ndarray]) -> dict[str, Any]:
        """Return this rank's parts of parameters, or of what is like them, by name: as `own_shard`,
        views where they can be.
        """
        places: dict[str, Any] = {}
        for device in dict.fromkeys(str(params[n].device) for n in arrays):
            places[device] = op.axis_index(self.over, self.size, device)
        return {
            n: own_shard(x, self.split, places[str(params[n].device)]) for n, x in arrays.items()
        }

    def put(self, parts: Arrays, params: Mapping[str, ndarray]) -> None:
        """Write the parameters from the parts of all ranks, which `parts` returned."""
        in_place: dict[tuple[str, str], list[Any]] = {}
        copied: dict[str, ndarray] = {}
        for name in parts:
            param = params[name]
            if is_in_place(param, self.split):
                in_place.setdefault((param.dtype, str(param.device)), []).append(param)
            else:
                copied[name] = param
        for together in in_place.values():
            op.multi_tensor_all_gather_in_place(together, self.over, self.size)
        for names in buckets(copied, self.split):
            shapes = [params[n].shape for n in names]
            found = bucket_all_gather([parts[n] for n in names], self.split, shapes)
            for name, whole in zip(names, found, strict=True):
                op.assign(params[name], whole)


def gradient_norm(gradients: Arrays, placements: Mapping[str, Placement]) -> Any:
    """Return the Euclidean norm of all gradients together, float32[], equal on all ranks.

    A gradient of which this rank has a part counts with the parts of the others: its sum of squares
    is one over every axis of the mesh along which it is split. A whole gradient counts once.
    """
    members: dict[tuple[tuple[str, int], ...], list[Any]] = {}
    for name, gradient in gradients.items():
        axes = sorted((s.over, s.size) for s in placements[name].splits if s.size > 1)
        members.setdefault(tuple(axes), []).append(gradient)
    if set(members) == {()}:
        return op.multi_tensor_norm(members[()])
    # In float64, as the sum within `multi_tensor_norm`: the square of a float32 may be none.
    squares: dict[tuple[tuple[str, int], ...], Any] = {}
    for axes_of, arrays in members.items():
        norm = op.astype(op.multi_tensor_norm(arrays), "float64")
        squares[axes_of] = norm * norm
    while split := max(squares, key=len):
        *rest, (over, size) = split
        total = op.all_reduce(squares.pop(split), over, size)
        known = squares.get(tuple(rest))
        squares[tuple(rest)] = total if known is None else known + total
    return op.astype(op.sqrt(squares[()]), "float32")


# Steps that need the whole of a parameter, of which a rank may have a part: generators that go
# through rounds together.
#
# A `Step` updates one parameter. It yields sums over the elements that this rank has, and is sent
# those over the whole parameter; it returns the new values. A round is that of all parameters of a
# call, so the ranks add up one vector in each, whatever the number of parameters.


Step = Generator[list[Any], list[Any], tuple[Any, dict[str, Any]]]
SUM_DTYPE = "float64"
"""Sums of squares of float32 do not overflow in it."""


@dataclass(frozen=True)
class ParameterShard:
    """What this rank has of a parameter: all of it, or a part.

    places: this rank's places along axes of the mesh, by their names. device: of the parameter.
    """

    placement: Placement
    places: Mapping[str, Any]
    device: str

    @property
    def axes(self) -> tuple[tuple[str, int], ...]:
        """The axes of the mesh whose ranks have the other parts, with their numbers of ranks."""
        return tuple((s.over, s.size) for s in actual_splits(self.placement))

    @property
    def count(self) -> int:
        """The elements of the whole parameter, at least 1."""
        return max(1, prod(self.placement.shape))

    def whole(self, x: Any) -> Any:
        """Return a matrix from the parts of all ranks."""
        split = flat_split(self.placement)
        return x if split is None else all_gather(x, split, self.placement.shape)

    def part(self, x: Any) -> Any:
        """Return this rank's part of a matrix."""
        split = flat_split(self.placement)
        return x if split is None else own_shard(x, split, self.places[split.over])

    def spread(self, x: Any) -> Any:
        """Return a matrix that has this rank's part in its place, and zeros elsewhere."""
        split = flat_split(self.placement)
        if split is None:
            return x
        ranks = op.reshape(op.arange(split.size, device=self.device), (split.size, 1))
        rows = op.where(op.equal(ranks, self.places[split.over]), op.reshape(x, (1, -1)), 0.0)
        count = prod(self.placement.shape)
        row = op.strided_slice(op.reshape(rows, (-1,)), (0,), (count,))
        return op.reshape(row, self.placement.shape)

    def filled(self, x: Any) -> Any:
        """Return x with zeros behind the last element, where what is computed may be no number."""
        split = flat_split(self.placement)
        if split is None:
            return x
        count = prod(self.placement.shapes()[-2])
        (length,) = x.shape
        if length * split.size == count:
            return x
        left = count - self.places[split.over] * length
        return op.where(op.less(op.arange(length, device=self.device), left), x, 0.0)


def actual_splits(placement: Placement) -> list[Split]:
    """Return the splits that leave a rank a part."""
    return [s for s in placement.splits if s.size > 1]


def flat_split(placement: Placement) -> Split | None:
    """Return the split of elements in a row, which is the last one, if there is one."""
    splits = actual_splits(placement)
    return splits[-1] if splits and splits[-1].axis is None else None


def run_steps(
    steps: Mapping[str, Step], held: Mapping[str, ParameterShard]
) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield the name, the new value and the new state of each parameter, as soon as its step, one
    of ``steps`` by name, returns them.
    """
    sent: dict[str, Any] = dict.fromkeys(steps)
    while sent:
        asked: dict[str, list[Any]] = {}
        for name, values in sent.items():
            try:
                asked[name] = steps[name].send(values)
            except StopIteration as end:
                yield name, *end.value
        _all_reduce_sums(asked, held)
        sent = asked


def apply_sharded_steps(
    optimizer: Optimizer,
    call: ParameterBatch,
    params: Mapping[str, Any],
    gradients: Mapping[str, Any],
    further: Mapping[str, Any],
) -> None:
    """Update the parameters of a call by the optimizer's `new_values`; see `Optimizer.apply`."""
    factor, bound = further["factor"], further.get("clip_value")
    steps: dict[str, Step] = {}
    states: dict[str, dict[str, Any]] = {}
    kinds = (*optimizer.state_names, *optimizer.own_state_names)
    held = _shards_of(optimizer, call.names)
    for name, decay, multiple in zip(call.names, call.decays, call.rates, strict=True):
        x = optimizer.master.get(name, params[name])
        wide = promote(x.dtype, "float32")
        g = _cast(gradients[name], wide)
        if not isinstance(factor, float):
            g = g * _cast(factor, wide)
        elif factor != 1.0:
            g = g * factor
        if bound is not None:
            g = op.clip(g, -bound, bound)
        kept = {kind: getattr(optimizer, kind) for kind in kinds}
        states[name] = {kind: of[name] for kind, of in kept.items() if name in of}
        rate = optimizer.rate([multiple])
        steps[name] = optimizer.new_values(
            _cast(x, wide),
            g,
            {kind: _cast(array, wide) for kind, array in states[name].items()},
            call.options,
            _cast(rate, wide),
            decay,
            held[name],
        )
    skip = further["skip"]
    for name, new, state in run_steps(steps, held):
        written = [(optimizer.master.get(name, params[name]), new)]
        written += [(array, state[kind]) for kind, array in states[name].items()]
        if name in optimizer.master:
            written.append((params[name], new))
        for array, value in written:
            value = _cast(value, array.dtype)
            op.assign(array, value if skip is None else op.where(skip, array, value))


def _shards_of(optimizer: Optimizer, names: list[str]) -> dict[str, ParameterShard]:
    """Return what this rank has of parameters by name."""
    device = str(optimizer.lr.device)
    places: dict[str, Any] = {}
    for split in (flat_split(optimizer.placements[name]) for name in names):
        if split is not None and split.over not in places:
            places[split.over] = op.axis_index(split.over, split.size, device)
    return {name: ParameterShard(optimizer.placements[name], places, device) for name in names}


def _cast(x: Any, dtype: str) -> Any:
    """Return x in a dtype; without a copy, if it is of that."""
    return x if x.dtype == dtype else op.astype(x, dtype)


def _all_reduce_sums(sums: Mapping[str, list[Any]], held: Mapping[str, ParameterShard]) -> None:
    """Make sums over parts those over whole parameters, in place: by an exchange for each set of
    axes and dtype.
    """
    alike: dict[Any, list[Any]] = {}
    for name, own in sums.items():
        axes = tuple(sorted(held[name].axes))
        for x in own if axes else ():
            alike.setdefault((axes, x.dtype), []).append(x)
    for (axes, _), arrays in alike.items():
        for over, size in axes:
            op.multi_tensor_all_reduce(arrays, over, size)


OPERATIONS = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "**": op.pow,
    ">": op.greater,
    "==": op.equal,
    "&": op.logical_and,
    "sqrt": op.sqrt,
    "where": op.where,
}
"""Operations of formulas; "clamp" is what the gradient has behind it."""


@cache
def has_global_sums(operator: Op) -> bool:
    """Whether the step of an operator adds up over a parameter: its formula has totals."""
    formula = FORMULAS[operator]
    return formula.trace(formula.lists, {}, {}).totals > 0


def step_of_formula(
    operator: Op,
    x: Any,
    g: Any,
    state: Mapping[str, Any],
    numbers: Mapping[str, Any],
    held: ParameterShard,
) -> Step:
    """Make the step of an operator of `meta.op.optimizer`, its totals those of whole parameters.

    x, g, state: of this rank, of the dtype to compute in. numbers: the arguments that are no lists
    of tensors, by name; those that are floats are seen as constants.
    """
    formula, defaults = FORMULAS[operator], {s.name: s.default for s in operator.schema.slots}
    given = {n: numbers.get(n, defaults[n]) for n in formula.numbers} | NEUTRAL_VALUES
    lists = {"x": x, "dx": g, **state}
    attributes = {n: numbers[n] for n in formula.attributes if n in numbers}
    constants = {n: value for n, value in given.items() if isinstance(value, int | float)}
    traced = formula.trace(lists, attributes, constants)
    known: dict[Expr, Any] = {}

    def in_double(node: Expr) -> Any:
        value = node.parts[0] if node.kind == "constant" else given[node.parts[0]]
        return value if isinstance(value, int | float) else _cast(value, SUM_DTYPE)

    def leaf(node: Expr) -> Any:
        if node.kind == "derived":
            value = evaluate(node.parts[1], in_double, OPERATIONS, {})
            return value if isinstance(value, int | float) else _cast(value, x.dtype)
        if node.kind == "number":
            return _cast(given[node.parts[0]], x.dtype)
        return lists[node.parts[0]] if node.kind == "element" else node.parts[0]

    def value(node: Expr) -> Any:
        return evaluate(node, leaf, OPERATIONS, known)

    def total(node: Expr) -> Any:
        if node.kind == "*":
            first, second = (_cast(value(factor), SUM_DTYPE) for factor in node.operands)
            return op.sum(held.filled(first * second))
        return op.sum(held.filled(_cast(value(node), SUM_DTYPE)))

    for totals in traced.rounds():
        found = yield [total(node.parts[0]) for node in totals]
        known.update((t, _cast(s, x.dtype)) for t, s in zip(totals, found, strict=True))
    return value(traced.stores["x"]), {n: value(traced.stores[n]) for n in state}
