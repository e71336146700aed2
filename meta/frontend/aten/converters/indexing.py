"""Reading and writing at index tensors and masks, with the meaning that torch gives them.

An index that is a mask stands for the places where it is true. How many these are is a shape that
only the run time knows; where one value goes to all of them, no place needs to be found.
"""

from meta import op
from meta.base.dtype import COMPLEX
from meta.frontend.aten.arguments import (
    at_least_1d,
    axis_of,
    cast,
    cast_or_take_real,
    full_tensor,
    is_number,
    number,
    restore_0d,
    value_of,
)
from meta.frontend.aten.converters.slices import cut
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.ir.dims import SymbolicDim, UnknownDim, product
from meta.op.core.check import broadcast_shapes

# Along one axis.


@aten("index_select", op.take)
def index_select(x, index, *, dim):
    wide = at_least_1d(x)
    y = op.take(wide, at_least_1d(index), axis_of(dim, wide.ndim))
    return op.reshape(y, ()) if x.ndim == 0 and y.shape == (1,) else y


@aten("index_select_backward", op.take_dx)
def index_select_backward(dy, index, *, self_sizes, dim, call):
    x = op.zeros(self_sizes, dy.dtype, str(call.device))
    wide = at_least_1d(x)
    return restore_0d(
        op.take_dx(wide, at_least_1d(dy), at_least_1d(index), axis_of(dim, wide.ndim)), x
    )


@aten("gather", op.take_along_axis, ignore=("sparse_grad",))
def gather(x, index, *, dim):
    if 0 in index.shape:
        return op.full_like(index, 0, x.dtype)
    y = op.take_along_axis.plain(at_least_1d(x), at_least_1d(index), axis_of(dim, x.ndim))
    return op.reshape(y, tuple(index.shape))


@aten("gather_backward", op.take_along_axis_dx, ignore=("sparse_grad",))
def gather_backward(dy, x, index, *, dim):
    if 0 in index.shape:
        return op.zeros_like(x)
    wide = at_least_1d(x), at_least_1d(dy), at_least_1d(index)
    return restore_0d(op.take_along_axis_dx(*wide, axis_of(dim, x.ndim)), x)


@aten("value_selecting_reduction_backward", op.scatter, op.zeros)
def value_selecting_reduction_backward(dy, indices, *, dim, sizes, keepdim, call):
    """The gradient of `max` and its like along an axis: dy where the element was selected."""
    if not sizes:
        return dy
    x, axis = op.zeros(sizes, dy.dtype, str(call.device)), axis_of(dim, len(sizes))
    if not keepdim:
        dy, indices = op.expand_dims(dy, axis), op.expand_dims(indices, axis)
    return op.scatter(x, axis, indices, dy)


@aten("take_along_dim", op.take_along_axis)
def take_along_dim(x, index, *, dim):
    if dim is None:
        flat = (op.reshape(t, (product(t.shape),)) for t in (x, index))
        return op.take_along_axis(*flat, 0)
    return op.take_along_axis(x, index, axis_of(dim, x.ndim))


def _scattered(base, x, dim, index, src, *options):
    if 0 in index.shape:
        return x
    axis = axis_of(dim, x.ndim)
    src = src if is_number(src) else at_least_1d(src)
    return restore_0d(base(at_least_1d(x), axis, at_least_1d(index), src, *options), x)


def _source(value, x, index, call):
    return full_tensor(index.shape, value, x.dtype, call)


@aten("scatter.src", op.scatter)
def scatter(x, index, src, *, dim):
    return _scattered(op.scatter, x, dim, index, src)


@aten("scatter.value", op.scatter)
def scatter_value(x, index, value, *, dim, call):
    return _scattered(op.scatter, x, dim, index, _source(value, x, index, call))


_REDUCTIONS = {"add": "sum", "multiply": "prod"}


def _reduced(x, dim, index, src, reduce, include_self=True):
    """As `scatter_reduce`, of bool too, whose sum is "or" and whose product is "and"."""
    if reduce == "sum" and include_self:
        return _scattered(op.scatter_add, x, dim, index, src)
    if x.dtype in COMPLEX:
        raise Unconvertible(f"the reduction {reduce!r} of complex numbers is not supported")
    if x.dtype == "bool":
        how = {"sum": "amax", "prod": "amin"}.get(reduce, reduce)
        x, src = op.astype(x, "uint8"), op.astype(src, "uint8")
        return op.astype(_reduced(x, dim, index, src, how, include_self), "bool")
    return _scattered(op.scatter_reduce, x, dim, index, src, reduce, include_self)


@aten("scatter.reduce", op.scatter_reduce, op.scatter_add)
def scatter_by(x, index, src, *, dim, reduce):
    return _reduced(x, dim, index, src, _REDUCTIONS[reduce])


@aten("scatter.value_reduce", op.scatter_reduce, op.scatter_add)
def scatter_value_by(x, index, value, *, dim, reduce, call):
    return _reduced(x, dim, index, _source(value, x, index, call), _REDUCTIONS[reduce])


@aten("scatter_add", op.scatter_add)
def scatter_add(x, index, src, *, dim):
    return _reduced(x, dim, index, src, "sum")


@aten("scatter_reduce.two", op.scatter_reduce, op.scatter_add)
def scatter_reduce(x, index, src, *, dim, reduce, include_self):
    return _reduced(x, dim, index, src, reduce, include_self)


def _slices(function, x, dim, index, source, *options):
    """A function of `index_updates`, of what may have no axes."""
    wide, index, axis = at_least_1d(x), at_least_1d(index), axis_of(dim, x.ndim)
    source = op.reshape(source, (*wide.shape[:axis], index.shape[0], *wide.shape[axis + 1 :]))
    return restore_0d(function(wide, axis, index, source, *options), x)


@aten("index_add", op.take_dx, op.add)
def index_add(x, index, source, *, dim, alpha, call):
    if alpha != 1:
        if x.dtype == "bool":
            source = op.logical_and(source, bool(alpha))
        else:
            source = op.multiply(source, number(alpha, source.dtype, call.device))
    return _slices(op.index_add, x, dim, index, source)


@aten("index_copy", op.scatter)
def index_copy(x, index, source, *, dim):
    return _slices(op.index_copy, x, dim, index, source)


@aten("index_reduce", op.scatter_reduce)
def index_reduce(x, index, source, *, dim, reduce, include_self):
    return _slices(op.index_reduce, x, dim, index, source, reduce, include_self)


def _chosen(x, dim, index):
    """Where slices are named that an index names along an axis: bool, of x's shape."""
    nothing = op.full_like(at_least_1d(x), 0, "bool")
    marked = op.index_fill(nothing, axis_of(dim, x.ndim), at_least_1d(index), True)
    return restore_0d(marked, x)


@aten("index_fill.int_Scalar", op.where, op.scatter)
def index_fill(x, index, value, *, dim, call):
    return op.where(_chosen(x, dim, index), number(value, x.dtype, call.device), x)


@aten("index_fill.int_Tensor", op.where, op.scatter)
def index_fill_by(x, index, value, *, dim):
    return op.where(_chosen(x, dim, index), cast_or_take_real(value, x.dtype), x)


# At index tensors of several axes.


def _from_start(index, extent):
    """An index of which negative numbers are counted from the start."""
    if isinstance(extent, SymbolicDim):
        extent = op.astype(value_of(extent), index.dtype)
    return op.where(op.less(index, 0), op.add(index, extent), index)


def _placed(x, indices):
    """(x, {axis: index}): of masks the places where they are true.

    A mask without axes adds an axis to x of which it keeps all or nothing.
    """
    found, axis = {}, 0
    for index in indices:
        if index is None:
            axis += 1
            continue
        if index.dtype not in ("bool", "uint8"):
            found[axis] = op.astype(index, "int64")
            axis += 1
            continue
        if index.ndim == 0:
            x, index = op.expand_dims(x, axis), op.reshape(index, (1,))
        for places in op.nonzero(index):
            found[axis] = places
            axis += 1
    return x, found


def _order(x, axes):
    """(order, place): the named axes in front, and before how many others they belong.

    That is where the first of them stands, and the front if others are between them.
    """
    others = tuple(a for a in range(x.ndim) if a not in axes)
    together = axes[-1] - axes[0] == len(axes) - 1
    return (*axes, *others), axes[0] if together else 0


def _permuted(x, order):
    return x if order == tuple(range(x.ndim)) else op.permute_dims(x, order)


def indexed(x, indices):
    x, found = _placed(x, indices)
    if not found:
        return x
    axes = tuple(found)
    order, place = _order(x, axes)
    others = x.ndim - len(axes)
    if len(axes) == 1:
        return op.take(x, found[axes[0]], axes[0])
    y = op.adv_index((_permuted(x, order), *found.values()))
    new = y.ndim - others
    front = tuple(range(new, new + place))
    return _permuted(y, (*front, *range(new), *range(new + place, y.ndim)))


@aten("index.Tensor", "_unsafe_index.Tensor", op.take, op.adv_index, op.nonzero)
def index(x, indices):
    return indexed(x, indices)


def _of_single_mask(x, indices, values):
    """(mask, values) for `where`, if the index is one mask and each of its places is given the same
    values; else None.
    """
    ((at, mask), *others) = [(i, m) for i, m in enumerate(indices) if m is not None]
    if others or mask.dtype not in ("bool", "uint8") or mask.ndim == 0:
        return None
    after = x.ndim - at - mask.ndim
    # Of x[:, mask, ...] the places are one axis, where values have the extent 1 or nothing.
    own = values.ndim - 1 - after
    if own >= 0:
        if values.shape[own] != 1:
            return None
        before, behind = values.shape[:own], values.shape[own + 1 :]
        values = op.reshape(values, (*before, *(1,) * mask.ndim, *behind))
    return op.reshape(mask, (*mask.shape, *(1,) * after)), values


def write_at(x, indices, values, accumulate):
    """x with values at indices, or added there."""
    indices = tuple(indices)
    if not any(i is not None for i in indices):
        values = op.broadcast_to(values, tuple(x.shape))
        return op.add(x, values) if accumulate else values
    masked = _of_single_mask(x, indices, values)
    if masked is not None:
        mask, values = masked
        return op.where(mask, op.add(x, values) if accumulate else values, x)
    wide, found = _placed(x, indices)
    axes = tuple(found)
    order, place = _order(wide, axes)
    places = [_from_start(found[a], wide.shape[a]) for a in axes]
    common = broadcast_shapes(*(tuple(p.shape) for p in places))
    rest = tuple(wide.shape[a] for a in order[len(axes) :])
    shape = (*rest[:place], *common, *rest[place:])
    new = len(common)
    pairs = zip(reversed(values.shape), reversed(shape), strict=False)
    if any(isinstance(n, UnknownDim) and own not in (1, n) for own, n in pairs):
        raise Unconvertible("that there are as many values as chosen places is seen at run time")
    values = op.broadcast_to(values, shape)
    if 0 in shape:
        return x
    if len(axes) == new == 1 and place and not accumulate:  # x stays as it lies
        column = op.reshape(places[0], (*common, *(1,) * (wide.ndim - 1 - place)))
        written = op.scatter(wide, place, op.broadcast_to(column, shape), values)
        return op.reshape(written, tuple(x.shape))
    values = _permuted(
        values,
        (*range(place, place + new), *range(place), *range(place + new, len(shape))),
    )
    coordinates = op.stack(tuple(op.broadcast_to(p, common) for p in places), 0)
    written = _written(_permuted(wide, order), coordinates, values, accumulate)
    back = tuple(sorted(range(wide.ndim), key=order.__getitem__))
    return op.reshape(_permuted(written, back), tuple(x.shape))


def _written(x, coordinates, values, accumulate):
    if accumulate and x.dtype == "bool":  # of which a sum is "or"
        x, values = op.astype(x, "int32"), op.astype(values, "int32")
        return op.astype(op.scatter_nd(x, coordinates, values, "add"), "bool")
    return op.scatter_nd(x, coordinates, values, "add" if accumulate else "update")


@aten("_index_put_impl", op.scatter_nd, op.scatter, op.where, ignore=("unsafe",))
@aten("index_put", "_unsafe_index_put", op.scatter_nd, op.scatter, op.where)
def index_write(x, indices, values, *, accumulate):
    return write_at(x, indices, values, accumulate)


def _clamped(x, indices):
    """Indices of which those out of range are moved to the nearest end."""
    return tuple(
        i if i is None else op.clip(i, -x.shape[axis], x.shape[axis] - 1)
        for axis, i in enumerate(indices)
    )


@aten("_unsafe_masked_index", op.where, op.adv_index)
def masked_index(x, mask, indices, fill, *, call):
    value = number(fill, x.dtype, call.device)
    if 0 in x.shape:
        y = indexed(
            op.pad(x, ((0, 1),) * x.ndim),
            tuple(i if i is None else op.zeros_like(i) for i in indices),
        )
        return op.where(op.full_like(mask, 0), y, value)
    return op.where(mask, indexed(x, _clamped(x, indices)), value)


@aten("_unsafe_masked_index_put_accumulate", op.scatter_nd, op.where)
def masked_index_add(x, mask, indices, values, *, call):
    if 0 in x.shape:
        return x
    values = op.where(mask, values, number(0, x.dtype, call.device))
    return write_at(x, _clamped(x, indices), values, True)


@aten("take", op.take)
def take(x, index):
    return op.take(op.reshape(x, (product(x.shape),)), index)


@aten("put", op.scatter_nd, op.reshape)
def write_flat(x, index, source, *, accumulate):
    flat = op.reshape(x, (product(x.shape),))
    index = op.reshape(index, (product(index.shape),))
    source = op.reshape(source, tuple(index.shape))
    return op.reshape(write_at(flat, (index,), source, accumulate), tuple(x.shape))


# Masks: values chosen by them, what is selected by them, and where they are true.


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
    return op.where(mask, cast_or_take_real(value, x.dtype), x)


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
