"""What operators of layers make of batched tensors: losses, normalisations with a gradient,
attention, tables and indices.
"""

from __future__ import annotations

from typing import Any

from meta import op
from meta.ir.dims import product
from meta.op.core.check import normalize_axis
from meta.op.core.function import device_of
from meta.op.loss import IGNORED
from meta.op.loss_reduction import class_indices, in_compute_dtype
from meta.passes.batching.site import Operand, Site, rule


@rule(
    *(op.mse_loss, op.l1_loss, op.huber_loss, op.binary_cross_entropy, op.kl_div),
    op.binary_cross_entropy_with_logits,
)
def loss(at: Site) -> Any:
    """The loss of each element, reduced for each example."""
    if at["reduction"] not in ("mean", "sum", "none"):
        return None
    losses = at.run(reduction="none")
    if at["reduction"] == "none":
        return losses
    axes = tuple(range(1, 1 + at["prediction"].ndim))
    return (op.mean if at["reduction"] == "mean" else op.sum)(losses, axes)


@rule(
    *(op.mse_loss_dpred, op.l1_loss_dpred, op.huber_loss_dpred, op.kl_div_dpred),
    *(op.binary_cross_entropy_dpred, op.binary_cross_entropy_with_logits_dpred),
)
def loss_dpred(at: Site) -> Any:
    """As of the loss of each element."""
    dy, prediction = at["dy"], at["prediction"]
    if at["reduction"] == "none":
        return at.run()
    if at["reduction"] not in ("mean", "sum"):
        return None
    each = op.reshape(at.batched(dy), (at.size, *[1] * prediction.ndim))
    if at["reduction"] == "mean":
        count = product(prediction.shape)
        if type(count) is not int:
            return None
        each = op.divide(each, float(max(count, 1)))
    return at.run(reduction="none", dy=op.broadcast_to(each, (at.size, *prediction.shape)))


@rule(op.cross_entropy, op.nll_loss, op.cross_entropy_train)
def cross_entropy(at: Site) -> Any:
    """The mean over the rows of each example, of log(sum(exp(scores))) less the label's score."""
    if at.args.get("classes") is not None:
        return None
    scores, labels, counts = _rows(at)
    largest = op.max(scores, 2, True)
    total = op.sum(op.exp(op.subtract(scores, largest)), 2, True)
    chosen = op.take_along_axis(scores, labels, 2)
    losses = op.negative(chosen)
    if at.op is not op.nll_loss:
        losses = op.subtract(op.add(op.log(total), largest), chosen)
    number = op.sum(op.astype(counts, losses.dtype), (1, 2))
    mean = op.divide(op.sum(op.where(counts, losses, 0.0), (1, 2)), number)
    result = op.astype(mean, at.types[0].dtype)
    if at.op is not op.cross_entropy_train:
        return result
    return result, op.squeeze(largest, 2), op.squeeze(total, 2)


@rule(op.cross_entropy_dpred, op.nll_loss_dpred, op.cross_entropy_train_dpred)
def cross_entropy_dpred(at: Site) -> Any:
    """``(softmax(scores) - hot) * dy / count`` of each row; of `nll_loss` without the softmax."""
    if at.args.get("classes") is not None:
        return None
    scores, labels, counts = _rows(at)
    hot = op.equal(op.arange(0, scores.shape[2], 1, "int64", device_of(labels)), labels)
    part = op.negative(op.astype(hot, scores.dtype))
    if at.op is not op.nll_loss_dpred:
        part = op.add(_softmax(at, scores), part)
    number = op.sum(op.astype(counts, scores.dtype), (1, 2), True)
    dy = op.reshape(op.astype(at.batched(at["dy"]), scores.dtype), (at.size, 1, 1))
    found = op.where(counts, op.multiply(part, op.divide(dy, number)), 0.0)
    return op.astype(found, at.types[0].dtype)


def _softmax(at: Site, scores: Any) -> Any:
    if at.op is not op.cross_entropy_train_dpred:
        return op.softmax(scores, 2)
    largest, total = (op.expand_dims(at.batched(at[n]), 2) for n in ("largest", "total"))
    return op.divide(op.exp(op.subtract(scores, largest)), total)


def _rows(at: Site) -> tuple[Any, Any, Any]:
    """Return scores [batch, rows, classes], the classes of the rows, 0 of those that do not count,
    and whether they do [batch, rows, 1].
    """
    scores = in_compute_dtype(at.batched(at["prediction"]))
    labels = op.expand_dims(op.astype(at.batched(at["target"]), "int64"), 2)
    counts = op.not_equal(labels, IGNORED)
    return scores, class_indices(op.where(counts, labels, 0), scores.shape[2]), counts


@rule(op.layer_norm, op.rms_norm, op.layer_norm_train)
def normalize(at: Site) -> Any:
    """Rows of each example; a scale of each is multiplied behind."""
    x, axis = at["x"], at.axis(at["x"])
    if not at.is_batched("scale", "bias"):
        return at.run(axis=axis, **{n: at[n] and at[n].value for n in ("scale", "bias")})
    found = at.run(axis=axis, scale=None, bias=None)
    y, *statistics = found if isinstance(found, tuple) else (found,)
    for name, apply in (("scale", op.multiply), ("bias", op.add)):
        if at[name] is not None:
            y = op.astype(apply(y, _along(at, at[name], x, axis)), at.types[0].dtype)
    return (y, *statistics) if statistics else y


def _along(at: Site, parameter: Operand, x: Operand, axis: int) -> Any:
    """Return a vector for each example as it broadcasts along an axis of x."""
    shape = [at.size, *[1] * x.ndim]
    shape[axis] = x.shape[axis - 1]
    return op.reshape(at.batched(parameter), tuple(shape))


@rule(op.layer_norm_dx, op.layer_norm_train_dx, op.rms_norm_dx)
def normalize_dx(at: Site) -> Any:
    """The scale is multiplied before, and its gradient is a sum over the rows of each example."""
    x, axis, scale = at["x"], at.axis(at["x"]), at["scale"]
    if scale is None:
        return at.run(axis=axis)
    if len({o.value.dtype for o in (x, scale, at["dy"])}) > 1:
        return None
    dy, values = at.batched(at["dy"]), at.batched(x)
    dx = at.run(axis=axis, scale=None, dy=op.multiply(dy, _along(at, scale, x, axis)))
    if at.op is op.layer_norm_train_dx:
        mean, inverse = (op.expand_dims(at.batched(at[n]), axis) for n in ("mean", "invvar"))
    else:
        square = op.multiply(values, values)
        mean = op.mean(values, axis, True) if at.op is op.layer_norm_dx else None
        spread = op.mean(square, axis, True) if mean is None else op.var(values, axis, True)
        inverse = op.rsqrt(op.add(spread, at["eps"]))
    normed = op.multiply(values if mean is None else op.subtract(values, mean), inverse)
    others = tuple(i for i in range(1, 1 + x.ndim) if i != axis)
    products = op.astype(op.multiply(dy, normed), dy.dtype)
    return dx, op.sum(products, others), op.sum(dy, others)


_ATTENTION = ("query", "key", "value", "y", "logsumexp", "dy")


@rule(op.fused_attention, op.fused_attention_dx)
def attention(at: Site) -> Any:
    """The batch of attention takes the examples in; what all share is there for each in turn."""
    if at["dropout_key"] is not None:
        return None
    names = list(_ATTENTION)
    mask, slopes = at["mask"], at["slopes"]
    if mask is not None and mask.batched:
        rows = at["query"].shape[0]
        if mask.ndim != 4 or mask.shape[0] != rows:
            return None
        names.append("mask")
    if slopes is not None and (slopes.batched or slopes.ndim > 1):
        return None
    return at.folded(names)


@rule(op.prelu)
def prelu(at: Site) -> Any:
    """Rows have nothing to do with one another."""
    return at.folded(("x",))


@rule(op.rotary_embedding)
def rotary_embedding(at: Site) -> Any:
    """Tables are broadcast as before, behind the batch."""
    x = at["x"]
    tables = {n: at.aligned(at[n], x.ndim) for n in ("cos", "sin")}
    return at.call({**at.args, "x": at.batched(x), **tables})


@rule(op.cast_like)
def cast_like(at: Site) -> Any:
    """Only the dtype counts."""
    return op.astype(at.batched(at["x"]), at.types[0].dtype)


@rule(op.tile)
def tile(at: Site) -> Any:
    """Each example is repeated."""
    x = at["x"]
    reps = (at["reps"],) if isinstance(at["reps"], int) else tuple(at["reps"])
    reps = (*[1] * (x.ndim - len(reps)), *reps)
    return at.call({**at.args, "x": at.aligned(x, len(reps)), "reps": (1, *reps)})


@rule(op.take)
def take(at: Site) -> Any:
    """Of one table, whose chosen rows then have the batch among their axes; or by the same indices
    of each example.
    """
    x, indices = at["x"], at["indices"]
    if x.batched:
        if indices.batched or at["axis"] is None:
            return None
        return at.run(axis=at.axis(x), indices=indices.value)
    found = at.call({**at.args, "x": x.value, "indices": indices.value})
    axis = 0 if at["axis"] is None else normalize_axis(at["axis"], x.ndim)
    order = (axis, *range(axis), *range(axis + 1, len(at.shape) + 1))
    return op.permute_dims(found, order) if axis else found


@rule(op.index_select)
def index_select(at: Site) -> Any:
    """The same indices of each example."""
    if at["index"].batched:
        return None
    return at.run(axis=at.axis(at["x"]), index=at["index"].value)


@rule(op.adv_index)
def adv_index(at: Site) -> Any:
    """The number of the example is one index more."""
    return op.adv_index(_numbered_inputs(at))


@rule(op.adv_index_dx)
def adv_index_dx(at: Site) -> Any:
    """As the forward operator."""
    return op.adv_index_dx(at.batched(at["dy"]), _numbered_inputs(at))


def _numbered_inputs(at: Site) -> tuple[Any, ...]:
    x, *indices = at["inputs"]
    ndim = max(i.ndim for i in indices)
    numbers = op.arange(0, at.size, 1, "int64", device_of(x.value))
    examples = op.reshape(numbers, (at.size, *[1] * ndim))
    return (at.batched(x), examples, *(at.aligned(i, ndim) for i in indices))


@rule(op.embedding)
def embedding(at: Site) -> Any:
    """Rows of one table; of a table for each example they are numbered through."""
    table, indices = at["x"], at["indices"]
    if not table.batched:
        return at.run(x=table.value)
    if at["padding_idx"] is not None:
        return None
    rows = table.shape[0]
    return at.run(x=at.fold(table.value, table.shape), indices=_numbered(at, indices, rows))


@rule(op.embedding_dx)
def embedding_dx(at: Site) -> Any:
    """The tables lie one behind the other."""
    rows = at.shape[0]
    found = at.run(indices=_numbered(at, at["indices"], rows), num_weight=product((at.size, rows)))
    return op.reshape(found, (at.size, *at.shape))


def _numbered(at: Site, indices: Operand, rows: int) -> Any:
    """Return indices into tables of ``rows`` rows that lie one behind the other."""
    values = at.batched(indices)
    from_start = op.where(op.less(values, 0), op.add(values, rows), values)
    offsets = op.multiply(op.arange(0, at.size, 1, str(values.dtype), device_of(values)), rows)
    return op.add(from_start, op.reshape(offsets, (at.size, *[1] * indices.ndim)))
