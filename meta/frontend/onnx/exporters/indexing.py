"""Exporters of what reads and writes at places, and of shapes that values decide."""

from __future__ import annotations

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import SLICE_END
from meta.frontend.onnx.export.registry import cast, exports, forms
from meta.frontend.onnx.exporters.reduce import top_k
from meta.frontend.onnx.exporters.shapes import hot, ints, shape_of
from meta.ir import TensorType
from meta.ir.dims import product
from meta.op.core.check import normalize_axis


def _index(indices):
    """Return indices in a dtype that ONNX takes."""
    return indices if indices.dtype in ("int32", "int64") else cast(indices, "int64")


@exports(op.take)
def take(g, x, indices, axis, mode):
    if axis is None:
        x, axis = op.reshape(x, (-1,)), 0
    axis, indices = normalize_axis(axis, x.ndim), _index(indices)
    if mode in ("clip", "wrap"):
        count, indices = op.squeeze(g.extents((x.shape[axis],)), (0,)), cast(indices, "int64")
        indices = (op.remainder(indices, count) if mode == "wrap"
                   else op.minimum(op.maximum(indices, 0), count - 1))  # fmt: skip
    return g.node("Gather", x, indices, axis=axis)


def _coordinates_last(indices):
    return op.permute_dims(cast(indices, "int64"), (*range(1, indices.ndim), 0))


@exports(op.adv_index)
def adv_index(g, inputs):
    x, *indices = inputs
    if not indices:
        return x
    picked = g.result.shape[: g.result.ndim - (x.ndim - len(indices))]
    rows = tuple(op.broadcast_to(cast(i, "int64"), picked) for i in indices)
    return g.node("GatherND", x, op.stack(rows, len(picked)))


REDUCTIONS = {"add": "add", "prod": "mul", "amin": "min", "amax": "max"}


@exports(op.scatter_reduce)
def scatter(g, x, axis, index, src, reduce):
    """A source that is longer than the indices is cut; half precision is reduced in float32."""
    if src.shape != index.shape:
        ends = tuple(d if isinstance(d, int) else SLICE_END for d in index.shape)
        src = op.strided_slice(src, (0,) * src.ndim, ends)
    if x.ndim == 0 and reduce is None:
        return src
    how = "max" if x.dtype == "bool" and reduce else REDUCTIONS.get(reduce)
    wide = {"float16": "float32", "bfloat16": "float32", "bool": "int32"}.get(x.dtype, x.dtype)
    wide = wide if reduce else x.dtype
    data, rows = cast(x, wide), cast(src, wide)
    y = g.node("ScatterElements", data, _index(index), rows, type=data.type, axis=axis,
               reduction=how)  # fmt: skip
    return cast(y, x.dtype)


@exports(op.scatter_nd)
def scatter_nd(g, data, indices, updates, mode):
    half = mode == "add" and data.dtype in ("float16", "bfloat16")
    x, rows = (cast(v, "float32" if half else data.dtype) for v in (data, updates))
    reduction = "add" if mode == "add" else None
    places = _coordinates_last(indices)
    y = g.node("ScatterND", x, places, rows, type=x.type, reduction=reduction)
    return cast(y, data.dtype)


def _argwhere(g, condition):
    if condition.ndim == 0:
        raise Unconvertible("the places of a number without axes")
    count = g.result.shape[0]
    rows = g.node("NonZero", condition, type=TensorType((condition.ndim, count), "int64"))
    return g.node("Transpose", rows, perm=(1, 0))


def _nonzero(g, x):
    count = g.result.fields[0].shape[0]
    rows = g.node("NonZero", x, type=TensorType((x.ndim, count), "int64"))
    parts = op.split(rows, x.ndim, 0) if x.ndim > 1 else (rows,)
    return tuple(op.squeeze(p, (0,)) for p in parts)


def _axes_of(vector):
    """Return how many entries a vector has."""
    count = vector.shape[0]
    if not isinstance(count, int):
        raise Unconvertible("how many axes there are depends on values")
    return count


@exports(op.dynamic_arange)
def dynamic_arange(g, start, stop, step, dtype):
    wide = "float64" if any(is_float(v.dtype) for v in (start, stop, step)) else "int64"
    bounds = (op.reshape(cast(v, wide), ()) for v in (start, stop, step))
    return cast(g.node("Range", *bounds, type=g.result.with_dtype(wide)), dtype)


def _dynamic_tile(g, x, reps):
    more = _axes_of(reps) - x.ndim
    x = op.expand_dims(x, 0, more) if more > 0 else x
    reps = cast(reps, "int64")
    return g.node("Tile", x, op.concat((ints(g, *(1,) * -more), reps), 0) if more < 0 else reps)


@exports(op.dynamic_strided_slice)
def dynamic_strided_slice(g, x, begin, end, strides, mode):
    begin, end, strides = (cast(v, "int64") for v in (begin, end, strides))
    if mode == "size":
        until = begin + end
        wraps = op.logical_and(op.less(begin, 0), op.greater_equal(until, 0))
        end = op.where(op.logical_or(op.less(end, 0), wraps), SLICE_END, until)
        strides = op.ones_like(strides)
    return g.node("Slice", x, begin, end, ints(g, *range(_axes_of(begin))), strides)


def _dynamic_topk(g, x, k, axis, *options):
    """Below 1 the number stands for all."""
    k, at = op.reshape(cast(k, "int64"), (1,)), normalize_axis(axis, x.ndim)
    extent = op.strided_slice(shape_of(g, x), (at,), (at + 1,))
    return top_k(g, x, op.where(op.less(k, 1), extent, k), axis, *options)


def _dynamic_pad(g, x, widths, value, mode):
    if mode == "symmetric":
        raise Unconvertible("ONNX pads by no mirror that has the edge twice")
    flat = op.reshape(op.permute_dims(cast(widths, "int64"), (1, 0)), (-1,))
    number = op.reshape(cast(value, x.dtype), ()) if mode == "constant" else None
    return g.node("Pad", x, flat, number, mode=mode)


@exports(op.unique)
def unique(g, x, return_inverse, return_counts):
    values = g.result.fields[0] if return_inverse or return_counts else g.result
    count, every = (TensorType((n,), "int64") for n in (values.shape[0], product(x.shape)))
    rows = op.reshape(x, (-1,))
    y, _, inverse, counts = g.node("Unique", rows, type=(values, count, every, count), sorted=1)
    chosen = [y, op.reshape(inverse, x.shape) if return_inverse else None,
              counts if return_counts else None]  # fmt: skip
    found = tuple(v for v in chosen if v is not None)
    return found if len(found) > 1 else y


forms(
    argwhere=_argwhere,
    dynamic_broadcast_to=lambda g, x, shape: g.node("Expand", x, cast(shape, "int64")),
    dynamic_full=lambda g, value, shape, dtype: g.node(
        "Expand", op.reshape(cast(value, dtype), ()), cast(shape, "int64")),
    dynamic_one_hot=lambda g, x, on, off, depth, axis, dtype: hot(
        g, x, *(op.reshape(v, ()) for v in (cast(depth, "int64"), on, off)), axis),
    dynamic_pad=_dynamic_pad,
    dynamic_reshape=lambda g, x, shape: g.node("Reshape", x, cast(shape, "int64"), allowzero=1),
    dynamic_squeeze=lambda g, x, axes: g.node("Squeeze", x, cast(axes, "int64")),
    dynamic_tile=_dynamic_tile,
    dynamic_topk=_dynamic_topk,
    embedding=lambda g, x, indices, _: g.node("Gather", x, _index(indices), axis=0),
    gather_nd=lambda g, data, indices: g.node("GatherND", data, _coordinates_last(indices)),
    index_select=lambda g, x, axis, index: g.node("Gather", x, _index(index), axis=axis),
    nonzero=_nonzero,
    scatter=lambda g, x, axis, index, src: scatter(g, x, axis, index, src, None),
    scatter_add=lambda g, x, axis, index, src: scatter(g, x, axis, index, src, "add"),
    take_along_axis=lambda g, x, i, axis: g.node("GatherElements", x, _index(i), axis=axis),
)  # fmt: skip
