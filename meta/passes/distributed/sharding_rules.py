"""What operators make of parts. Of most it follows from how their axes belong together, as they say
(`meta.op.core.axes`). Others have a rule: products, what moves elements, and what acts along the
axis that is cut: sums, softmax, attention, and a vocabulary of which each rank has a part, from the
rows that words choose to their cross entropy.
"""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from math import prod
from typing import Any

from meta import op
from meta.dialect.core.ir_calls import PRODUCTS
from meta.ir.dims import product
from meta.ir.types import TupleType, UnknownDim
from meta.op.core.axes import Axes, product_terms
from meta.op.core.check import normalize_axis
from meta.op.core.op import by_schema
from meta.op.core.reduction import reduction
from meta.op.core.slicing import quotient, slice_ranges
from meta.op.loss import IGNORED
from meta.op.loss_reduction import class_indices, in_compute_dtype
from meta.op.quantized import BLOCK
from meta.op.shapes import split_bounds
from meta.passes.distributed.sharding import (
    RULES,
    ShardAxis,
    ShardedValue,
    Site,
    leaves,
    map_shards,
    rule,
)
from meta.runtime.placement import Joined, joined_of, lengths


def sharded_call(at: Site) -> Any:
    """Return what an operator makes of parts, None if it needs whole tensors."""
    if at.op in RULES and (found := RULES[at.op](at)) is not None:
        return found
    if "over" in at.op.schema.index:  # whose parts are those of ranks themselves
        return None
    ways = (along_free_axis(at, axes) for axes in at.axes)
    return next((found for found in ways if found is not None), None)


def along_free_axis(at: Site, axes: Axes) -> Any:
    """Tensors are cut along the axis along which the largest of them that is cut is, if the
    operator does the same at each position there; None if it does not.
    """
    given = {n: list(leaves(at[n])) for n in axes.tensors}
    cut = [(n, p, p.cut) for n, parts in given.items() for p in parts if p.cut is not None]
    if not cut:
        return None
    name, _, first = max(cut, key=lambda c: prod(d for d in c[1].shape if isinstance(d, int)))
    label, joined, size = axes.tensors[name][first.axis], first.joined, at.ranks.size
    several = isinstance(at.type, TupleType)
    types = at.type.fields if several else (at.type,)
    if label not in axes.free() or any(label in s for s in axes.shapes.values()):
        return None
    cuts = tuple(ShardAxis(s.index(label), joined) for s in axes.of_results(len(types)))
    pieces = {n: at[n] for n, counted in axes.counts.items() if counted == label}
    places = axes.places(label)
    extents = {(n, p.shape[axis]) for n, axis in places.items() for p in given[n]}
    long = {d for n, d in extents if n not in axes.broadcasts or d != 1}
    alike = len(long) == 1
    if label in axes.grouped:
        alike = joined == 1 and all(isinstance(d, int) and d % size == 0 for d in long)
    for written in at.op.schema.written:  # in place: what there is, is not moved
        name = at.op.schema.names[written]
        if any(p.cut is None or p.cut.axis != places.get(name) for p in given.get(name, [])):
            return None
    fits = all(c.fits(t.shape, size) for c, t in zip(cuts, types, strict=True))
    if not fits or not (alike or pieces) or any(k % size or joined != 1 for k in pieces.values()):
        return None

    def part_of(part: ShardedValue, axis: int | None) -> Any:
        if axis is None or part.shape[axis] == 1:
            return at.ranks.copied(at.ranks.whole(part, at.why))
        return at.ranks.cut(part, ShardAxis(axis, joined), at.why)

    changed = {n: map_shards(a, partial(part_of, axis=places.get(n))) for n, a in at.args.items()}
    changed |= {n: count // size for n, count in pieces.items()}
    return at.run(cuts if several else cuts[0], **changed)


@rule(op.quantized_matmul)
def quantized_matmul(at: Site) -> Any:
    """Columns of which each rank has whole groups are a term of the result."""
    x, weight, size = at["x"], at["weight"], at.ranks.size
    if weight.cut != ShardAxis(1):
        return None
    groups, columns = at["scales"].shape[1], x.shape[-1] // size
    if (groups > 1 and groups % size) or (weight.type.dtype == "uint8" and columns % BLOCK):
        return None
    made = {"x": at.ranks.cut(x, ShardAxis(x.ndim - 1), at.why)}
    for name in ("scales", "zeros"):
        if at[name] is not None and groups > 1:
            made[name] = at.ranks.cut(at[name], ShardAxis(1), at.why)
    return at.summed(at.made(**made))


@rule(*PRODUCTS)
def products(at: Site) -> Any:
    """Cut along an axis of the result, or along the one that is summed over, for a term of it."""
    first, second, result = product_terms(PRODUCTS[at.op])
    x, y = at["x1"], at["x2"]

    def letter(part: ShardedValue, terms: str) -> str:
        return "" if part.cut is None else terms[part.cut.axis]

    of_x, of_y = letter(x, first), letter(y, second)
    if of_x and of_y and (of_x, x.cut.joined) != (of_y, y.cut.joined):
        x, of_x = at.ranks.whole(x, at.why), ""
    along, joined = of_y or of_x, (y.cut or x.cut).joined
    if not of_y and along in second and along not in result:
        return None  # terms that only x has parts of: the weight is whole, and so is the product

    def part(value: ShardedValue, terms: str) -> Any:
        axis = terms.find(along)
        if axis < 0 or value.shape[axis] == 1:
            return at.ranks.copied(at.ranks.whole(value, at.why))
        return at.ranks.cut(value, ShardAxis(axis, joined), at.why)

    made = {"x1": part(x, first), "x2": part(y, second)}
    if along in result:
        return at.run(ShardAxis(result.index(along), joined), **made)
    return at.summed(at.made(**made))


def through_reshape(
    shape: tuple[Any, ...], cut: ShardAxis, into: tuple[Any, ...], size: int
) -> ShardAxis | None:
    """Return how what is cut is, in row-major order in another shape; None if it is not to be said
    by one axis.

    Before the ranks are ``outer`` elements in a row: all positions of the axes before, times the
    pieces along the axis itself. An axis of the other shape serves that begins there, or has as
    many pieces that do.
    """
    if any(isinstance(d, UnknownDim) or (isinstance(d, int) and d == 0) for d in (*shape, *into)):
        return None
    outer = product((*shape[: cut.axis], cut.joined if isinstance(cut.joined, int) else 1))
    assert not isinstance(outer, UnknownDim)
    found: list[ShardAxis] = []
    for axis in range(len(into)):
        before = product(into[:axis])
        assert not isinstance(before, UnknownDim)
        pieces = quotient(outer, before)
        if isinstance(cut.joined, tuple):  # pieces that differ stay if the axis does
            if pieces == 1 and into[axis] == shape[cut.axis]:
                return ShardAxis(axis, cut.joined)
        elif isinstance(pieces, int) and ShardAxis(axis, pieces).fits(into, size):
            found.append(ShardAxis(axis, pieces))
    return min(found, key=lambda c: c.joined, default=None)


@rule(op.reshape)
def reshape(at: Site) -> Any:
    """What begins where ranks do stays cut."""
    x, wanted = at["x"], at["shape"]
    cut = None if at["kept"] else through_reshape(x.shape, x.cut, at.type.shape, at.ranks.size)
    if cut is None:
        return None
    extents = [wanted] if isinstance(wanted, int) else list(wanted)
    if extents[cut.axis] != -1:
        extents[cut.axis] //= at.ranks.size
    return at.run(cut, shape=tuple(extents))


@rule(op.batch_flatten, op.expand_dims, op.squeeze)
def view(at: Site) -> Any:
    """A reshape whose shape follows from that of the argument."""
    x = at["x"]
    cut = through_reshape(x.shape, x.cut, at.type.shape, at.ranks.size)
    if cut is None or (at.op is op.batch_flatten and cut.axis == 0 and x.cut.axis != 0):
        return None
    if at.op is op.squeeze and at["axis"] is None:  # a part may be of extent 1
        return at.run(cut, axis=tuple(i for i, d in enumerate(x.shape) if d == 1))
    return at.run(cut)


@rule(op.broadcast_to)
def broadcast_to(at: Site) -> Any:
    """What is repeated is cut as before."""
    x, shape = at["x"], at.type.shape
    cut = ShardAxis(x.cut.axis + len(shape) - x.ndim, x.cut.joined)
    if x.shape[x.cut.axis] != shape[cut.axis]:
        return None
    return at.run(cut, shape=at.local(cut))


def _pieces_within(x: ShardedValue, begin: int, end: int) -> Joined | None:
    """Return which pieces of the axis that is cut lie between two positions; None if it is none, or
    one is not there as a whole.
    """
    assert x.cut is not None
    pieces, extent = lengths(x.cut.joined), x.shape[x.cut.axis]
    ends = [n * extent // sum(pieces) for n in accumulate(pieces, initial=0)]
    if begin >= end or begin not in ends or end not in ends:
        return None
    return joined_of(pieces[ends.index(begin) : ends.index(end)])


@rule(op.strided_slice)
def strided_slice(at: Site) -> Any:
    """Along another axis, or of whole pieces of the axis that is cut."""
    x, cut, size = at["x"], at["x"].cut, at.ranks.size
    begin, end, mode = at["begin"], at["end"], at["slice_mode"]
    picked = slice_ranges(x.shape, begin, end, at["strides"], mode)
    if cut.axis >= len(picked):
        return at.run(cut)
    along = picked[cut.axis]
    if along is None or along.step != 1 or not len(along):
        return None
    joined = _pieces_within(x, along.start, along.start + len(along))
    if joined is None:
        return None
    begins, ends = ([v] if isinstance(v, int) else list(v) for v in (begin, end))
    begins[cut.axis] = along.start // size
    ends[cut.axis] = (len(along) if mode == "size" else along.stop) // size
    return at.run(ShardAxis(cut.axis, joined), begin=tuple(begins), end=tuple(ends))


@rule(op.split)
def split(at: Site) -> Any:
    """Between whole pieces of the axis that is cut."""
    x, cut, where = at["x"], at["x"].cut, at["indices_or_sections"]
    if normalize_axis(at["axis"], x.ndim) != cut.axis:
        return None
    bounds = split_bounds(x.shape[cut.axis], where)
    found = [_pieces_within(x, begin, end) for begin, end in bounds]
    if None in found:
        return None
    if isinstance(where, tuple):
        where = tuple(i // at.ranks.size for i in where)
    cuts = tuple(ShardAxis(cut.axis, joined) for joined in found if joined is not None)
    return at.run(cuts, indices_or_sections=where)


@rule(op.concat)
def concat(at: Site) -> Any:
    """Pieces side by side along the axis that is cut."""
    arrays = list(leaves(at["arrays"]))
    if at["axis"] is None:
        return None
    axis = normalize_axis(at["axis"], arrays[0].ndim)
    cuts = [a.cut for a in arrays if a.cut is not None and a.cut.axis == axis]
    if len(cuts) < len(arrays):
        return None
    pieces = [(a.shape[axis], lengths(cut.joined)) for a, cut in zip(arrays, cuts, strict=True)]
    each = [n * extent // sum(of) for extent, of in pieces for n in of]
    return at.run(ShardAxis(axis, joined_of(each)))


@rule(op.sum, op.mean, op.max)
def reduce(at: Site) -> Any:
    """A sum or a mean over the axis that is cut, of which each rank has a term; the largest element
    where no gradient goes through it.
    """
    x = at["x"]
    if x.cut.axis not in reduction(x.ndim, at["axis"], at["keepdims"]).axes:
        return None
    if at.op is op.sum:
        return at.summed(at.made())
    if at.op is op.mean:
        return at.summed(op.multiply(at.made(), 1 / at.ranks.size))
    if not x.grad and x.type.dtype != "bool":
        return at.result(at.ranks.largest(at.made(), at.why), None)
    return None


@rule(op.softmax, op.log_softmax)
def softmax(at: Site) -> Any:
    """With the largest score and the sum of all ranks."""
    x, ranks = at["x"], at.ranks
    axis = normalize_axis(at["axis"], x.ndim)
    if axis != x.cut.axis:
        return None
    shifted = _minus_largest(at, in_compute_dtype(x.value), axis)
    total = ranks.summed(op.sum(op.exp(shifted), axis, True), f"exponentials of {at.op.name}")
    total = op.copy_to(total, ranks.over, ranks.size)
    ranks.exchange("copy_to", total, "parts are computed from it")
    if at.op is op.softmax:
        made = op.divide(op.exp(shifted), total)
    else:
        made = op.subtract(shifted, op.log(total))
    return at.result(op.astype(made, at.type.dtype), x.cut)


def _minus_largest(at: Site, scores: Any, axis: int) -> Any:
    """Return scores less the largest of all ranks along the axis that is cut."""
    largest = at.ranks.largest(op.max(scores, axis, True), f"the largest score of {at.op.name}")
    return op.subtract(scores, largest)


@rule(op.take_along_axis)
def take_along_axis(at: Site) -> Any:
    """An index is in one rank's part; what is there is a term of a sum."""
    x, indices = at["x"], at["indices"]
    axis = normalize_axis(at["axis"], x.ndim)
    if x.cut is None or axis != x.cut.axis or x.cut.joined != 1:
        return None
    extent = x.shape[axis]
    whole = at.ranks.whole(indices, at.why).value
    from_start = op.where(op.less(whole, 0), op.add(whole, extent), whole)
    found = class_indices(from_start, extent)
    return at.summed(_take_local(at, x.value, found, axis, extent // at.ranks.size))


def _take_local(at: Site, x: Any, indices: Any, axis: int, extent: int) -> Any:
    """Return elements along an axis that is cut, as `take_along_axis`; 0 for those elsewhere."""
    own, there = at.ranks.own_indices(indices, extent)
    return op.where(there, by_schema(op.take_along_axis)(x, own, axis), 0.0)


@rule(op.embedding)
def embedding(at: Site) -> Any:
    """A row is in one rank's part of the table, and a term of a sum; columns stay cut."""
    table, indices, padding = at["x"], at["indices"], at["padding_idx"]
    if table.cut is None or table.cut.joined != 1:
        return None
    chosen = at.ranks.whole(indices, at.why)
    if table.cut.axis != 0:
        return at.run(ShardAxis(chosen.ndim + table.cut.axis - 1), indices=chosen.value)
    rows = table.shape[0]
    # As indices of all rows: an index that is none is an error on all ranks, as it is on one.
    words = class_indices(chosen.value, rows)
    own, there = at.ranks.own_indices(words, rows // at.ranks.size)
    found = by_schema(op.embedding)(table.value, own, None)
    behind = (1,) * (table.ndim - 1)
    if padding is not None:  # a row that gets no gradient
        is_padding = op.reshape(op.equal(words, padding % rows), (*chosen.shape, *behind))
        found = op.where(is_padding, op.detach(found), found)
    return at.summed(op.where(op.reshape(there, (*chosen.shape, *behind)), found, 0))


@rule(op.cross_entropy)
def cross_entropy(at: Site) -> Any:
    """Scores stay where they are: ranks exchange numbers of rows, not of classes. The mean of rows
    whose label counts, of log(sum(exp(scores))) less the label's score.
    """
    scores, target, ranks = at["prediction"], at["target"], at.ranks
    if scores.cut != ShardAxis(1) or at["classes"] is not None:
        return None
    classes = scores.shape[1]
    shifted = _minus_largest(at, in_compute_dtype(scores.value), 1)
    labels = ranks.whole(target, at.why).value
    labels = labels if labels.dtype == "int64" else op.astype(labels, "int64")
    counts = op.not_equal(labels, IGNORED)
    column = op.expand_dims(class_indices(op.where(counts, labels, 0), classes), 1)
    score = _take_local(at, shifted, column, 1, classes // ranks.size)
    terms = op.concat((op.sum(op.exp(shifted), 1, True), score), 1)
    total, score = op.split(ranks.summed(terms, "exponentials, and the label's score"), 2, 1)
    losses = op.squeeze(op.subtract(op.log(total), score), 1)
    number = op.sum(op.astype(counts, losses.dtype))
    mean = op.divide(op.sum(op.where(counts, losses, 0.0)), number)
    return at.result(op.astype(mean, at.type.dtype), None)


@rule(op.dropout_train)
def dropout(at: Site) -> Any:
    """Each rank draws a mask of its own for its part: its key differs."""
    x, given = at["x"], at["in_states"]
    if x.cut is None:
        return None
    key = op.random_key(at.ranks.device) if given is None else given.value
    return at.run((x.cut, x.cut, None), in_states=at.ranks.own_key(key))


@rule(op.fused_attention)
def attention(at: Site) -> Any:
    """Ranks have heads. Where there are fewer heads of keys than ranks, each rank has copies of
    those that its queries look at. Weights are dropped by each rank's own key, also of texts.
    """
    query, ranks = at["query"], at.ranks
    heads_at = 2 if at["layout"] == "BSHD" else 1
    cuts = [p.cut for p in (query, at["key"], at["value"]) if p.cut is not None]
    if query.cut is None or query.cut.axis not in (0, heads_at) or any(c.joined != 1 for c in cuts):
        return None
    by_heads = query.cut.axis == heads_at
    heads, groups = query.shape[heads_at], at["key"].shape[heads_at]
    if by_heads and not isinstance(heads, int):
        return None
    changed: dict[str, Any] = {}
    for name in ("key", "value"):
        part = at[name]
        if not by_heads or groups % ranks.size == 0:
            changed[name] = ranks.cut(part, query.cut, at.why)
            continue
        times = ranks.size // groups if ranks.size % groups == 0 else heads // groups
        whole = ranks.whole(part, at.why)
        copies = ShardedValue(
            op.repeat(whole.value, times, heads_at),
            part.type.with_shape(
                (*part.shape[:heads_at], groups * times, *part.shape[heads_at + 1 :])
            ),
            None,
            part.grad,
        )
        changed[name] = ranks.cut(copies, query.cut, f"copies of {groups} heads of {name}s")
    in_scores = ShardAxis(1) if by_heads else ShardAxis(0)
    for name in ("mask", "slopes"):
        part = at[name]
        if part is None:
            continue
        if name == "slopes":
            ndim = 2
        else:
            ndim = 4
            batch = query.shape[0]
            if not by_heads and part.ndim == 4 and part.shape[0] not in (1, batch):
                return None
        changed[name] = at.aligned(part, in_scores, ndim)
    if at["dropout_key"] is not None:
        changed["dropout_key"] = ranks.own_key(at["dropout_key"].value)
    return at.run((query.cut, in_scores), **changed)
