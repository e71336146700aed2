"""Exporters of reductions, running sums and sorting."""

from __future__ import annotations

from math import inf, nan, prod

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core.arguments import is_static
from meta.frontend.onnx.export.registry import cast, exports, forms
from meta.frontend.onnx.exporters.shapes import filled, ints, shape_of
from meta.ir import TensorType
from meta.op.core.check import normalize_axes, normalize_axis
from meta.op.core.reduction import reduction


def _reduce(operator, dtype=None, of_nothing=None):
    """A reduction; ``dtype``: in which it takes elements, None for that of the result;
    ``of_nothing``: the result that ONNX leaves open.
    """

    def form(g, x, axis, keepdims):
        found, result = reduction(x.ndim, axis, keepdims), g.result
        x = cast(x, dtype or result.dtype)
        if not found.axes:
            return x
        if of_nothing is not None and any(x.shape[a] == 0 for a in found.axes):
            return filled(g, result.shape, of_nothing, x.dtype)
        mixed = len(found.kept) not in (0, len(found.axes))
        type_ = TensorType(found.kept_shape(x.shape) if mixed else result.shape, x.dtype)
        y = g.node(operator, x, ints(g, *found.axes), type=type_, keepdims=int(bool(found.kept)))
        return op.reshape(y, result.shape) if mixed else y

    return form


def _search(operator):
    def form(g, x, axis, keepdims):
        axes, shape = normalize_axes(axis, x.ndim), g.result.shape
        if len(axes) != 1:
            rest = tuple(i for i in range(x.ndim) if i not in axes)
            x = op.permute_dims(x, (*rest, *axes))
            x = op.reshape(x, (*x.shape[: len(rest)], -1))
            axes = (x.ndim - 1,)
        type_ = TensorType(tuple(d for i, d in enumerate(x.shape) if i != axes[0]), "int64")
        y = g.node(operator, x, type=type_, axis=axes[0], keepdims=0)
        return y if type_.shape == shape else op.reshape(y, shape)

    return form


@exports(op.var, wide=True)
def var(g, x, axis, keepdims, correction):
    axes = normalize_axes(axis, x.ndim)
    centred, extents = x - op.mean(x, axes, True), [x.shape[a] for a in axes]
    total = op.sum(centred * centred, axes, keepdims)
    if is_static(extents):
        return total / float(max(prod(extents) - correction, 0.0))
    sizes = op.take(shape_of(g, x), ints(g, *axes), 0, "fast")
    return total / op.maximum(cast(op.prod(sizes), x.dtype) - correction, 0.0)


@exports(op.logsumexp, wide=True)
def logsumexp(g, x, axis, keepdims):
    axes = normalize_axes(axis, x.ndim)
    if any(x.shape[a] == 0 for a in axes):
        return filled(g, g.result.shape, -inf, x.dtype)
    top = op.max(x, axes, True)
    top = op.where(op.isinf(top), 0.0, top)
    total = op.log(op.sum(op.exp(x - top), axes, True)) + top
    return total if keepdims else op.squeeze(total, axes)


def _running(operator):
    def form(g, x, axis, dtype, exclusive):
        x = cast(x, g.result.dtype)
        if x.ndim == 0:
            return op.full_like(x, operator == "CumProd") if exclusive else x
        at = g.constant(normalize_axis(axis, x.ndim), "int64")
        return g.node(operator, x, at, exclusive=int(exclusive))

    return form


def _sorted(g, x, axis, descending):
    at = normalize_axis(axis, x.ndim)
    types = x.type, x.type.with_dtype("int64")
    count = g.extents((x.shape[at],))
    return g.node("TopK", x, count, type=types, axis=at, largest=int(descending))


def top_k(g, x, count, axis, descending, ret_type, dtype):
    """Return what is asked for of the first elements of an order, and of their indices."""
    result = g.result
    first = result.fields[0] if ret_type == "both" else result
    types = first.with_dtype(x.dtype), first.with_dtype("int64")
    values, indices = g.node("TopK", x, count, type=types, axis=axis, largest=int(descending))
    indices = cast(indices, dtype)
    return {"both": (values, indices), "values": values, "indices": indices}[ret_type]


@exports(op.searchsorted)
def searchsorted(_, x, v, right, dtype):
    """How many elements of a row are before each value; a NaN is the last."""
    rows = op.expand_dims(x, x.ndim - 1) if x.ndim > 1 else x
    values = op.expand_dims(v, v.ndim)
    before = (op.less_equal if right else op.less)(rows, values)
    if is_float(x.dtype):
        last = op.isnan(values)
        last = last if right else op.logical_and(last, op.logical_not(op.isnan(rows)))
        before = op.logical_or(before, last)
    return cast(op.sum(before, before.ndim - 1), dtype)


forms(
    all=_reduce("ReduceMin", "bool"),
    any=_reduce("ReduceMax", "bool"),
    argmax=_search("ArgMax"),
    argmin=_search("ArgMin"),
    argsort=lambda g, x, axis, descending, dtype: cast(_sorted(g, x, axis, descending)[1], dtype),
    max=_reduce("ReduceMax"),
    min=_reduce("ReduceMin"),
    sort=lambda g, x, axis, descending: _sorted(g, x, axis, descending)[0],
    topk=lambda g, x, k, *options: top_k(g, x, ints(g, k), *options),
)
forms(
    wide=True,
    cumprod=_running("CumProd"),
    cumsum=_running("CumSum"),
    l2_normalize=lambda _, x, eps, axis: x / op.sqrt(
        op.maximum(op.sum(x * x, normalize_axes(axis, x.ndim), True), eps)),
    l2norm=lambda _, x: op.sqrt(op.sum(x * x)),
    mean=_reduce("ReduceMean", of_nothing=nan),
    prod=_reduce("ReduceProd"),
    std=lambda _, x, axis, keepdims, correction: op.sqrt(op.var(x, axis, keepdims, correction)),
    sum=_reduce("ReduceSum"),
)  # fmt: skip
