"""What operators make of batched tensors that are given indices, or draw numbers."""

from __future__ import annotations

from typing import Any

from meta import op
from meta.ir.dims import product
from meta.op.core.check import normalize_axis
from meta.passes.batching.site import Operand, Site, rule


@rule(op.take, op.index_select, op.take_dx)
def take(at: Site) -> Any:
    """Of one table, whose chosen rows then have the batch among their axes; where each example has
    a table, its number is one index more.
    """
    x, indices = at["x"], at["index" if at.op is op.index_select else "indices"]
    mode, axis = at.args.get("mode", "raise"), at["axis"]
    if axis is not None and not indices.batched and at.op is not op.take_dx:
        return None
    place = 0 if axis is None else normalize_axis(axis, x.ndim)
    if at.op is not op.take_dx and not x.batched:
        return _move_axes(op.take(x.value, indices.value, axis, mode), place, 1, 0)
    if mode in ("clip", "wrap"):
        return None
    shape = (product(x.shape),) if axis is None else x.shape
    rows = _move_axes(op.reshape(at.batched(x), (at.size, *shape)), 1 + place, 1, 1)
    inputs = (rows, *_with_numbers(at, [indices]))
    if at.op is not op.take_dx:
        return _move_axes(op.adv_index(inputs), 1, indices.ndim, 1 + place)
    dy = _move_axes(at.batched(at["dy"]), 1 + place, indices.ndim, 1)
    return op.reshape(_move_axes(op.adv_index_dx(dy, inputs), 1, 1, 1 + place), (at.size, *x.shape))


def _move_axes(x: Any, source: int, count: int, target: int) -> Any:
    """Return x, ``count`` axes of which, from ``source`` on, are from ``target`` on."""
    order = [i for i in range(x.ndim) if not source <= i < source + count]
    order[target:target] = range(source, source + count)
    return op.permute_dims(x, tuple(order)) if order != list(range(x.ndim)) else x


def _with_numbers(at: Site, indices: list[Operand]) -> tuple[Any, ...]:
    """Return the numbers of the examples, and indices as they broadcast with them."""
    ndim = max((i.ndim for i in indices), default=0)
    return _numbers(at, ndim), *(at.aligned(i, ndim) for i in indices)


def _numbers(at: Site, ndim: int) -> Any:
    numbers = op.arange(0, at.size, 1, "int64", at.device)
    return op.reshape(numbers, (at.size, *[1] * ndim))


@rule(op.adv_index)
def adv_index(at: Site) -> Any:
    """The number of the example is one index more."""
    x, *indices = at["inputs"]
    return op.adv_index((at.batched(x), *_with_numbers(at, indices)))


@rule(op.adv_index_dx)
def adv_index_dx(at: Site) -> Any:
    """As the forward operator."""
    x, *indices = at["inputs"]
    return op.adv_index_dx(at.batched(at["dy"]), (at.batched(x), *_with_numbers(at, indices)))


@rule(op.gather_nd, op.gather_nd_dx, op.scatter_nd)
def coordinates(at: Site) -> Any:
    """The number of the example is one coordinate more."""
    given = _move_axes(op.astype(at.batched(at["indices"]), "int64"), 1, 1, 0)
    rest = given.shape[2:]
    numbers = op.broadcast_to(_numbers(at, len(rest)), (1, at.size, *rest))
    return at.run(indices=op.concat((numbers, given), 0))


@rule(op.embedding)
def embedding(at: Site) -> Any:
    """Tables of the examples are numbered through."""
    table, indices = at["x"], at["indices"]
    if not (table.batched and indices.batched) or at["padding_idx"] is not None:
        return None
    rows = table.shape[0]
    return at.run(x=at.fold(table), indices=_row_numbers(at, indices, rows))


@rule(op.embedding_dx)
def embedding_dx(at: Site) -> Any:
    """The tables lie one behind the other."""
    rows = at.shape[0]
    numbered = _row_numbers(at, at["indices"], rows)
    return at.unfold(at.run(indices=numbered, num_weight=product((at.size, rows))), at.shape)


def _row_numbers(at: Site, indices: Operand, rows: int) -> Any:
    """Return indices into tables of ``rows`` rows that lie one behind the other."""
    values = op.astype(at.batched(indices), "int64")
    from_start = op.where(op.less(values, 0), op.add(values, rows), values)
    return op.add(from_start, op.multiply(_numbers(at, indices.ndim), rows))


@rule(op.searchsorted)
def searchsorted(at: Site) -> Any:
    """The places of all that is searched in one sequence."""
    x1, x2 = at["x1"], at["x2"]
    if not x1.batched or x1.ndim > 1:
        return None
    columns = op.reshape(at.batched(x2), (at.size, product(x2.shape)))
    return op.reshape(at.plain(x2=columns), (at.size, *x2.shape))


@rule(op.dropout_train)
def dropout_train(at: Site) -> Any:
    """A mask for all examples, or the same for each."""
    x, p, key = at["x"], at["p"], at["in_states"]
    if key is not None and key.batched:
        return None
    none = op.zeros((0,), "uint8", at.device)
    if key is None and at.different:
        y, mask, _ = op.dropout_train(at.batched(x), p)
    else:
        drawn = op.random_key(at.device) if key is None else key.value
        one = op.dropout_mask(drawn, at.shape, p)
        mask = op.broadcast_to(one, (at.size, *at.shape))
        y = op.dropout_dx(at.batched(x), mask, none, p)
    return y, mask, op.broadcast_to(none, (at.size, 0))


@rule(op.random_uniform, op.random_normal, op.random_integers)
def drawn_by_keys(at: Site) -> Any:
    """By the keys of all examples, each for its slice."""
    key, shape = at["key"], at.shape
    if at.is_batched(*(name for name in at.args if name != "key")):
        return None
    own = () if product(key.shape) == 1 else key.shape
    rows = product((at.size, *own))
    found = at.run(key=op.reshape(at.batched(key), (rows,)), shape=(rows, *shape[len(own) :]))
    return op.reshape(found, (at.size, *shape))


@rule(op.dropout_dx)
def dropout_dx(at: Site) -> Any:
    """Of a state that is empty."""
    none = op.reshape(at["reserve_space"].value, (0,))
    return op.dropout_dx(at.batched(at["dy"]), at.batched(at["mask"]), none, at["p"])
