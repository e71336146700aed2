"""Converters of operators that sort, find places in what is sorted, or find what is distinct."""

from __future__ import annotations

import numpy as np

from meta import op
from meta.frontend.relay import ast
from meta.frontend.relay.arguments import constant, result_dtype, static_extent
from meta.frontend.relay.registry import relay
from meta.op.core.check import normalize_axis


@relay("argsort", op.argsort)
def argsort(data, *, axis, is_ascend, dtype, call):
    """Stable, as TVM's."""
    return _argsort(data, axis, is_ascend, dtype or result_dtype(call, "int32"))


def _argsort(data, axis: int, is_ascend: bool, dtype: str):
    """Indices may be asked for in any dtype, floats included."""
    if "int" in dtype:
        return op.argsort(data, axis, bool(is_ascend), dtype)
    return op.cast(op.argsort(data, axis, bool(is_ascend), "int64"), dtype)


@relay("sort", op.sort, ignore=("dtype",))
def sort(data, *, axis, is_ascend):
    """The attribute dtype is that of indices, of which there are none."""
    return op.sort(data, axis, bool(is_ascend))


@relay("topk", op.topk, op.dynamic_topk)
def topk(data, *, k, axis, ret_type, is_ascend, dtype, call):
    """A k below 1 stands for all. One that is not stated is 1, the default of TVM 0.6; later
    versions always state it.
    """
    if k is None and "k" not in call.given:
        k = 1
    extent = data.shape[normalize_axis(axis, data.ndim)]
    wanted = dtype or result_dtype(call, "int32", 1)
    integers = wanted if "int" in wanted else "int64"
    options = (axis, ret_type, bool(is_ascend), integers)
    count = k if k is not None and k >= 1 else extent
    if isinstance(count, int):
        result = op.topk(data, count, *options)
    else:
        result = op.dynamic_topk(data, constant(0, "int64", call), *options)
    if ret_type == "values" or integers == wanted:
        return result
    if ret_type == "indices":
        return op.cast(result, wanted)
    return result[0], op.cast(result[1], wanted)


@relay("searchsorted", op.searchsorted)
def searchsorted(sorted_sequence, values, *, right, dtype):
    """Places along the last axis."""
    return op.searchsorted(sorted_sequence, values, bool(right), dtype or "int32")


@relay("argwhere", op.argwhere)
def argwhere(condition, *, call):
    """The number of rows depends on the data."""
    return op.cast(op.argwhere(condition), result_dtype(call, "int32"))


@relay("unique", op.argsort, op.cumsum, op.scatter, op.scatter_add)
def unique(data, *, sorted, return_counts, call):
    """(elements, first places, inverse, their number, and perhaps counts), as long as the data.

    Behind the number the first places are the extent of the data; the others, which TVM leaves
    open, are 0. TVM 0.8 had no first places; the file's type of the result tells.
    """
    n = static_extent(data.shape[0], "the data of unique")
    places = constant(np.arange(n), "int32", call)
    order = op.argsort(data, 0, True, "int32")
    ascending = op.take(data, order, 0)
    if n > 1:
        new = op.not_equal(
            op.strided_slice(ascending, (1,), (n,)), op.strided_slice(ascending, (0,), (n - 1,))
        )
        steps = op.concatenate((constant([0], "int32", call), op.cast(new, "int32")), 0)
    else:
        steps = constant([0] * n, "int32", call)
    ids = op.cumsum(steps, 0, "int32")
    zeros = constant(np.zeros(n), "int32", call)
    # The first of equal elements stands first: sorting is stable.
    starts = op.searchsorted(ids, places, False, "int32")
    number = op.add(op.amax(ids, 0, True), 1)
    real = op.less(places, number)
    first = op.where(real, op.take(order, starts, 0, "clip"), n)
    counts = op.scatter_add(zeros, ids, constant(np.ones(n), "int32", call), 0)
    inverse = op.scatter(zeros, order, ids, 0)
    chosen = first
    if not sorted:
        # The elements are reordered, but not their first places: so TVM has it.
        ranks = op.argsort(first, 0, True, "int32")
        chosen, counts = op.take(first, ranks, 0), op.take(counts, ranks, 0)
        inverse = op.take(op.argsort(ranks, 0, True, "int32"), inverse, 0)
    values = op.take(data, chosen, 0, "clip")
    values = op.where(real, values, op.zeros_like(values))
    stated = call.result_type
    without_first = isinstance(stated, ast.TupleType) and len(stated.fields) == 3 + return_counts
    return (
        values,
        *(() if without_first else (first,)),
        inverse,
        number,
        *((counts,) if return_counts else ()),
    )
