"""Rows of tables, alone and reduced in bags, and their gradients."""

from meta import op
from meta.frontend.aten.arguments import cast
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.op.core.function import device_of
from meta.op.products import vector_norm

MODES = ("sum", "mean", "max")
"""By torch's numbers of them."""


@aten("embedding", op.embedding, ignore=("sparse",))
def embedding(weight, indices, *, padding_idx, scale_grad_by_freq):
    """A row that gets no gradient is named, for programs that are differentiated here."""
    if scale_grad_by_freq:
        raise Unconvertible("its gradient is divided by how often an index occurs")
    return op.embedding(indices, weight, None if padding_idx < 0 else padding_idx)


@aten("embedding_dense_backward", op.embedding_dx)
def embedding_dense_backward(dy, indices, *, num_weights, padding_idx, scale_grad_by_freq):
    indices = cast(indices, "int64")
    if padding_idx >= 0:
        counts = op.expand_dims(op.not_equal(indices, padding_idx), -1)
        dy = op.where(counts, dy, 0.0)
    if scale_grad_by_freq:
        ones = op.ones_like(op.expand_dims(indices, -1), dy.dtype)
        often = op.embedding_dx(ones, indices, num_weights)
        dy = op.divide(dy, op.embedding(indices, often))
    return op.embedding_dx(dy, indices, num_weights)


@aten("embedding_backward", op.embedding_dx)
def embedding_backward(dy, indices, *, num_weights, padding_idx, scale_grad_by_freq, sparse):
    if sparse:
        raise Unconvertible("its gradient is sparse")
    return embedding_dense_backward(
        dy,
        indices,
        num_weights=num_weights,
        padding_idx=padding_idx,
        scale_grad_by_freq=scale_grad_by_freq,
    )


def _marks(offsets, include_last_offset):
    """Return where each bag begins."""
    return offsets[: offsets.shape[0] - 1] if include_last_offset else offsets


def _belongs(indices, marks):
    """Return the bag of each index."""
    places = op.arange(0, indices.shape[0], 1, "int64", device_of(indices))
    found = op.searchsorted(cast(marks, "int64"), places, "right")
    return op.subtract(cast(found, "int64"), 1)


def _counted(indices, padding_idx):
    """Return 1 for an index that counts in its bag, else 0."""
    if padding_idx < 0:
        return op.ones_like(indices)
    return cast(op.not_equal(indices, padding_idx), indices.dtype)


@aten("_embedding_bag", "_embedding_bag_forward_only", op.embedding_bag, ignore=("sparse",))
def embedding_bag(
    weight,
    indices,
    offsets,
    factors,
    *,
    scale_grad_by_freq,
    mode,
    include_last_offset,
    padding_idx,
    call,
):
    """The result, the bag of each index, the sizes of bags, and the indices of maxima.

    Where torch's kernel for sums does without these, it saves zeros, as many as it has there.
    """
    y = op.embedding_bag(
        cast(indices, "int64"),
        weight,
        cast(offsets, "int64"),
        mode=MODES[mode],
        per_sample_weights=factors,
        include_last_offset=include_last_offset,
        padding_idx=None if padding_idx < 0 else padding_idx,
    )
    marks, on_cpu = _marks(offsets, include_last_offset), call.device.kind == "cpu"
    belongs = _belongs(indices, marks)
    if MODES[mode] == "sum":
        forward_only = call.name == "_embedding_bag_forward_only" and on_cpu
        sizes = op.zeros_like(offsets if forward_only else marks)
        if on_cpu and padding_idx < 0 and weight.dtype != "float64":
            belongs = belongs[:0]
        return y, cast(belongs, offsets.dtype), sizes, sizes
    counted = cast(_counted(indices, padding_idx), marks.dtype)
    sizes = op.scatter_add(op.zeros_like(marks), 0, belongs, counted)
    best = sizes
    if MODES[mode] == "max":
        best = _maxima(weight, indices, belongs, counted, y)
    return y, cast(belongs, offsets.dtype), sizes, cast(best, offsets.dtype)


@aten("embedding_bag", op.embedding_bag, ignore=("sparse",))
def embedding_bag_without_padding(weight, indices, offsets, factors, *, call, **options):
    return embedding_bag(weight, indices, offsets, factors, padding_idx=-1, call=call, **options)


@aten("embedding_bag.padding_idx", op.embedding_bag, ignore=("sparse",))
def embedding_bag_with_padding(weight, indices, offsets, factors, *, padding_idx, call, **options):
    row = -1 if padding_idx is None else padding_idx % weight.shape[0]
    return embedding_bag(weight, indices, offsets, factors, padding_idx=row, call=call, **options)


def _maxima(weight, indices, belongs, counted, y):
    """Return the index of the row that has the maximum of a bag, 0 for an empty bag."""
    rows = op.embedding(cast(indices, "int64"), weight)
    own = op.logical_and(op.equal(rows, op.take(y, belongs, 0)), op.expand_dims(counted != 0, 1))
    places = op.expand_dims(op.arange(0, indices.shape[0], 1, "int64", device_of(y)), 1)
    count = indices.shape[0]
    first = op.scatter_reduce(
        op.full_like(y, count, "int64"),
        0,
        op.broadcast_to(op.expand_dims(belongs, 1), tuple(rows.shape)),
        op.where(own, places, count),
        "amin",
    )
    found = op.take(cast(indices, "int64"), op.where(op.equal(first, count), 0, first), 0)
    return op.where(op.equal(first, count), 0, found)


def _bag_backward(
    dy, indices, belongs, sizes, best, factors, num_weights, scale_grad_by_freq, mode, padding_idx
):
    indices, belongs = cast(indices, "int64"), cast(belongs, "int64")
    if MODES[mode] == "max":
        slope = op.where(op.expand_dims(op.greater(sizes, 0), 1), dy, 0.0)
        table = op.zeros((num_weights, dy.shape[1]), dy.dtype, device_of(dy))
        return op.scatter_add(table, 0, cast(best, "int64"), slope)
    if MODES[mode] == "mean":
        dy = op.divide(dy, op.expand_dims(cast(op.maximum(sizes, 1), dy.dtype), 1))
    rows = op.take(dy, belongs, 0)
    if factors is not None:
        rows = op.multiply(rows, op.expand_dims(factors, 1))
    return embedding_dense_backward(
        rows,
        indices,
        num_weights=num_weights,
        padding_idx=padding_idx,
        scale_grad_by_freq=scale_grad_by_freq,
    )


@aten("_embedding_bag_dense_backward", op.embedding_dx, op.scatter_add)
def embedding_bag_dense_backward(
    dy,
    indices,
    belongs,
    sizes,
    best,
    factors,
    *,
    num_weights,
    scale_grad_by_freq,
    mode,
    padding_idx,
):
    options = (num_weights, scale_grad_by_freq, mode, padding_idx)
    return _bag_backward(dy, indices, belongs, sizes, best, factors, *options)


@aten("_embedding_bag_backward", op.embedding_dx, op.scatter_add)
def embedding_bag_backward(
    dy,
    indices,
    offsets,
    _belongs_saved,
    sizes,
    best,
    factors,
    *,
    num_weights,
    scale_grad_by_freq,
    mode,
    sparse,
    padding_idx,
):
    if sparse:
        raise Unconvertible("its gradient is sparse")
    belongs = _belongs(indices, offsets[: dy.shape[0]])
    options = (num_weights, scale_grad_by_freq, mode, padding_idx)
    return _bag_backward(dy, indices, belongs, sizes, best, factors, *options)


@aten("_embedding_bag_per_sample_weights_backward", op.embedding, op.sum)
def embedding_bag_factors_backward(
    dy, weight, indices, offsets, _belongs_saved, *, mode, padding_idx
):
    indices = cast(indices, "int64")
    belongs = _belongs(indices, offsets[: dy.shape[0]])
    products = op.multiply(op.take(dy, belongs, 0), op.embedding(indices, weight))
    found = cast(op.sum(products, 1), dy.dtype)
    return op.where(op.not_equal(_counted(indices, padding_idx), 0), found, 0.0)


@aten("embedding_renorm", op.where)
def embedding_renorm(weight, indices, *, max_norm, norm_type):
    """The rows that are named are scaled where their norm is above the largest."""
    norms = vector_norm(weight, norm_type, 1, True)
    factor = op.divide(max_norm, op.add(norms, 1e-7))
    factor = op.where(op.greater(norms, max_norm), factor, 1.0)
    rows = op.arange(0, weight.shape[0], 1, "int64", device_of(weight))
    flat = op.reshape(cast(indices, "int64"), (1, -1))
    named = op.any(op.equal(op.expand_dims(rows, 1), flat), 1, True)
    return op.where(named, op.multiply(weight, factor), weight)
