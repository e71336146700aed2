"""Masks: values chosen by them, what is selected by them, and where they are true."""

from meta import op
from meta.frontend.aten.arguments import cast_or_real_part, number
from meta.frontend.aten.converters.slices import cut
from meta.frontend.aten.promotion import cast
from meta.frontend.aten.registry import aten
from meta.ir.dims import product
from meta.op.core.check import broadcast_shapes


@aten("where", "nonzero_numpy", op.nonzero)
def nonzero_numpy(x):
    return op.nonzero(op.reshape(x, (1,)) if x.ndim == 0 else x)


@aten("nonzero", "argwhere", op.argwhere)
def nonzero(x):
    return op.argwhere(x)


@aten("nonzero_static", op.upper_bound_argwhere, op.where)
def nonzero_static(x, *, size, fill_value, call):
    """The first places, and a number behind them if there are fewer."""
    places, shape = op.upper_bound_argwhere(x)
    most, ndim = places.shape
    if size > most:
        rest = op.zeros((size - most, ndim), "int64", str(call.device))
        places = op.concat((places, rest), 0)
    rows = op.arange(0, size, 1, "int64", str(call.device))
    there = op.less(op.expand_dims(rows, 1), cut(shape, 0, 0, 1))
    return op.where(there, cut(places, 0, 0, size), fill_value)


@aten("masked_fill.Scalar", op.where)
def masked_fill(x, mask, value, *, call):
    return op.where(mask, number(value, x.dtype, call.device), x)


@aten("masked_fill.Tensor", op.where)
def masked_fill_by(x, mask, value):
    return op.where(mask, cast_or_real_part(value, x.dtype), x)


def _ranks(mask):
    """How many places come before each one where a mask is true: int64, flat."""
    flat = op.reshape(mask, (product(mask.shape),))
    return op.subtract(op.cumsum(op.astype(flat, "int64"), 0), op.astype(flat, "int64"))


@aten("masked_scatter", op.where, op.take, op.cumsum)
def masked_scatter(x, mask, source):
    if 0 in source.shape:
        return x
    return op.masked_scatter(x, mask, source)


@aten("masked_scatter_backward", op.scatter_add, op.where, op.cumsum)
def masked_scatter_backward(dy, mask, *, sizes, call):
    """The gradients at the places of a mask, one after the other, then zeros."""
    count = product(sizes)
    mask = op.broadcast_to(mask, tuple(dy.shape))
    total = product(dy.shape)
    zeros = op.zeros((count,), dy.dtype, str(call.device))
    if 0 in (count, total):
        return op.reshape(zeros, sizes)
    dy = op.reshape(dy, (total,))
    flat = op.reshape(mask, (total,))
    # What is not masked adds nothing to the first place.
    at = op.where(flat, _ranks(mask), 0)
    given = op.where(flat, dy, number(0, dy.dtype, call.device))
    return op.reshape(op.scatter_add(zeros, 0, at, given), sizes)


@aten("masked_select", op.take, op.argwhere)
def masked_select(x, mask):
    return op.masked_select(x, mask)


@aten("masked_select_backward", op.where, op.take, op.cumsum)
def masked_select_backward(dy, x, mask):
    shape = broadcast_shapes(tuple(x.shape), tuple(mask.shape))
    if 0 in dy.shape:
        return op.zeros_like(x)
    zeros = op.zeros_like(op.broadcast_to(x, shape))
    return op.collapse_sum_like(op.masked_scatter(zeros, mask, dy), x)


@aten("_masked_scale", op.multiply)
def masked_scale(x, mask, *, scale):
    return op.multiply(op.multiply(x, cast(mask, x.dtype)), scale)
