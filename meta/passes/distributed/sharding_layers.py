"""What the operators of layers make of parts: normalisations, softmax, attention, dropout, and a
vocabulary of which each rank has a part, from the rows that words choose to their cross entropy.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.op.core.check import normalize_axis
from meta.op.core.op import by_schema
from meta.op.loss import IGNORED
from meta.op.loss_reduction import class_indices, in_compute_dtype
from meta.passes.distributed.sharding import ShardAxis, ShardedValue, Site, rule


@rule(op.layer_norm, op.rms_norm, op.layer_norm_train)
def normalize(at: Site) -> Any:
    """Along another axis than the one that is cut."""
    x = at["x"]
    if x.cut is None or normalize_axis(at["axis"], x.ndim) == x.cut.axis:
        return None
    given = {n: at[n] for n in ("scale", "bias") if at[n] is not None}
    copies = {n: at.ranks.copied(at.ranks.whole(p, at.why)) for n, p in given.items()}
    if at.op is not op.layer_norm_train:
        return at.run(x.cut, **copies)
    axis = normalize_axis(at["axis"], x.ndim)
    rows = ShardAxis(x.cut.axis - (axis < x.cut.axis), x.cut.joined)
    return at.run((x.cut, rows, rows), **copies)


@rule(op.softmax, op.log_softmax)
def softmax(at: Site) -> Any:
    """Along another axis, or with the largest score and the sum of all ranks."""
    x, ranks = at["x"], at.ranks
    axis = normalize_axis(at["axis"], x.ndim)
    if axis != x.cut.axis:
        return at.run(x.cut)
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


@rule(op.rotary_embedding)
def rotary_embedding(at: Site) -> Any:
    """Along another axis than that of the pairs."""
    x = at["x"]
    if x.cut is None or x.cut.axis == x.ndim - 1:
        return None
    tables = {n: at.aligned(at[n], x.cut, x.ndim) for n in ("cos", "sin")}
    return at.run(x.cut, **tables)


@rule(op.fused_attention)
def attention(at: Site) -> Any:
    """Ranks have heads, or texts. Where there are fewer heads of keys than ranks, each rank has
    copies of those that its queries look at. Weights are dropped by each rank's own key.
    """
    query, ranks = at["query"], at.ranks
    heads_at = 2 if at["layout"] == "BSHD" else 1
    cuts = [p.cut for p in (query, at["key"], at["value"]) if p.cut is not None]
    if query.cut is None or query.cut.joined != 1 or any(c.joined != 1 for c in cuts):
        return None
    if query.cut.axis not in (0, heads_at):
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
