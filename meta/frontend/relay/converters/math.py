"""Converters of elementwise operators (functions of one tensor, arithmetic, bits, comparisons,
logic, products of integers with fixed-point numbers), of reductions and scans, and of operators
that sort, find places in what is sorted, or find what is distinct.

The result of a logical operator has the dtype of its operands. An integer result of a reduction has
the dtype of the data, and wraps.
"""

from __future__ import annotations

from math import prod

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, static_extent
from meta.frontend.core.arithmetic import (
    cast_to,
    clip_to_bounds,
    quotient,
    rounded,
    truncated_quotient,
)
from meta.frontend.core.operators import mean, scan
from meta.frontend.relay import ast
from meta.frontend.relay.registry import relay, result_dtype
from meta.op.core.check import normalize_axes, normalize_axis
from meta.op.core.names import named_in

for _name, _base in named_in("relay").items():
    relay.same(_name, _base)

relay.same("cast", op.astype)
relay.same("nn.relu", op.relu)
relay.same("floor_mod", op.remainder)
relay.same("mod", op.fmod)
relay.same("trunc_mod", op.fmod)
# TVM approximates these by polynomials, within 1e-3; here they are exact.
relay.same("fast_erf", op.erf)
relay.same("fast_exp", op.exp)
relay.same("fast_tanh", op.tanh)

relay("round", op.trunc, op.where)(rounded)
relay("divide", op.divide, op.floor_divide)(quotient)
relay("trunc_divide", op.trunc, op.floor_divide)(truncated_quotient)


_LOGICAL = (op.logical_and, op.logical_or, op.logical_xor)


@relay.each(op.add, op.subtract, op.collapse_sum_like, *_LOGICAL)
def of_two(base, lhs, rhs):
    """The result has the dtype of the first."""
    return cast_to(base(lhs, rhs), lhs.dtype)


@relay("logical_not", op.logical_not)
def logical_not(data):
    return cast_to(op.logical_not(data), data.dtype)


@relay("clip", op.clip)
def clip(data, *, a_min, a_max):
    if a_min is None or a_max is None:
        raise Unconvertible("clip has no bounds", hint="a_min and a_max")
    return clip_to_bounds(data, a_min, a_max)


@relay("where", op.where)
def where(condition, x, y, *, call):
    """All three broadcast. Before TVM 0.8 a vector as the condition chooses among rows."""
    if condition.ndim == 1 < x.ndim and condition.shape[0] == x.shape[0]:
        old = call.version is not None and call.version < (0, 8)
        if old or condition.shape[0] not in (1, x.shape[-1]):
            condition = op.reshape(condition, (-1, *(1,) * (x.ndim - 1)))
    return op.where(condition, x, y)


@relay("fixed_point_multiply_per_axis", op.fixed_point_multiply, ignore=("is_rshift_required",))
def fixed_point_multiply_per_axis(
    data, multiplier, left_shift, right_shift, *, axes, is_lshift_required
):
    """The parameters have one axis for each of ``axes``."""
    places = [int(a) + data.ndim if a < 0 else int(a) for a in axes]
    if len(set(places)) != multiplier.ndim or not all(0 <= p < data.ndim for p in places):
        raise Unconvertible(f"axes={tuple(axes)} do not name the axes of the multipliers")
    shape = [1] * data.ndim
    for place, extent in zip(places, multiplier.shape, strict=True):
        shape[place] = extent
    order = tuple(sorted(range(len(places)), key=places.__getitem__))

    def broadcast(value):
        ordered = value if order == tuple(range(len(order))) else op.permute_dims(value, order)
        return op.reshape(ordered, tuple(shape))

    right = op.negative(right_shift)
    shift = op.add(left_shift, right) if is_lshift_required else right
    return op.fixed_point_multiply(data, broadcast(multiplier), broadcast(shift))


def _over(data, axis, keepdims, exclude):
    """Return the axes that are reduced, and whether they stay; without any named, all count."""
    named = None if axis == () else axis
    return normalize_axes(named, data.ndim, exclude and named is not None), keepdims


def _count(data, axes):
    return prod(static_extent(data.shape[a], f"axis {a}") for a in axes)


@relay.each(op.all, op.any, op.max, op.min, op.prod, op.sum)
def reduction(base, data, **over):
    y = base(data, *_over(data, **over))
    return cast_to(y, data.dtype) if base in (op.prod, op.sum) else y


@relay("mean", op.mean, op.sum, op.floor_divide)
def mean_over(data, **over):
    return mean(data, *_over(data, **over))


@relay("variance", op.mean, op.sum)
def variance(data, mean, *, axis, keepdims, exclude, unbiased):
    """Of data and their mean, which broadcasts to them."""
    distance = op.subtract(data, mean)
    square = op.multiply(distance, distance)
    axes, keepdims = _over(data, axis, keepdims, exclude)
    if not unbiased:
        return op.mean(square, axes, keepdims)
    return op.divide(op.sum(square, axes, keepdims), float(_count(data, axes) - 1))


@relay.each(op.argmax, op.argmin, also=(op.flip,))
def index_of(base, data, *, axis, keepdims, exclude, select_last_index, call):
    """The index of the first or last best element, of several axes flattened."""
    axes, keepdims = _over(data, axis, keepdims, exclude)
    dtype = result_dtype(call, "int32")
    if not select_last_index:
        return op.astype(base(data, axes, keepdims), dtype)
    # The last one is the first from behind.
    from_behind = op.astype(base(op.flip(data, axes), axes, keepdims), dtype)
    return op.subtract(constant(_count(data, axes) - 1, dtype, call), from_behind)


@relay.each(op.cumsum, op.cumprod)
def scan_along(base, data, *, axis, dtype, exclusive, call):
    """Bools count as int32."""
    own = "int32" if data.dtype == "bool" else data.dtype
    return scan(base, data, axis, dtype or result_dtype(call, own), exclusive)


@relay("argsort", op.argsort)
def argsort(data, *, axis, is_ascend, dtype, call):
    """Stable, as TVM's. Indices may be asked for in any dtype, floats included."""
    wanted = dtype or result_dtype(call, "int32")
    if "int" in wanted:
        return op.argsort.plain(data, axis, not is_ascend, wanted)
    return op.astype(op.argsort(data, axis, not is_ascend), wanted)


# The attribute dtype is that of indices, of which there are none.
@relay("sort", op.sort, ignore=("dtype",))
def sort(data, *, axis, is_ascend):
    return op.sort(data, axis, not is_ascend)


@relay("topk", op.topk, op.dynamic_topk)
def topk(data, *, k, axis, ret_type, is_ascend, dtype, call):
    """A k below 1 stands for all; one that is not stated is 1, the default of TVM 0.6."""
    if k is None and "k" not in call.given:
        k = 1
    extent = data.shape[normalize_axis(axis, data.ndim)]
    wanted = dtype or result_dtype(call, "int32", 1)
    integers = wanted if "int" in wanted else "int64"
    options = (axis, not is_ascend, ret_type, integers)
    count = k if k is not None and k >= 1 else extent
    if isinstance(count, int):
        result = op.topk.plain(data, count, *options)
    else:
        result = op.dynamic_topk(data, constant(0, "int64", call), *options)
    if ret_type == "values" or integers == wanted:
        return result
    if ret_type == "indices":
        return op.astype(result, wanted)
    return result[0], op.astype(result[1], wanted)


relay.same("searchsorted", op.searchsorted, otherwise={"dtype": "int32"})


@relay("argwhere", op.argwhere)
def argwhere(condition, *, call):
    """The number of rows depends on the data."""
    return op.astype(op.argwhere(condition), result_dtype(call, "int32"))


@relay("unique", op.argsort, op.cumsum, op.scatter, op.scatter_add)
def unique(data, *, sorted, return_counts, call):
    """(elements, first places, inverse, their number, and perhaps counts), as long as the data.

    Behind the number the first places are the extent of the data; the others, which TVM leaves
    open, are 0. TVM 0.8 had no first places; the file's type of the result tells.
    """
    n = static_extent(data.shape[0], "the data of unique")
    places = constant(np.arange(n), "int32", call)
    order = op.argsort.plain(data, 0, False, "int32")
    ascending = op.take(data, order, 0)
    if n > 1:
        new = op.not_equal(
            op.strided_slice(ascending, (1,), (n,)), op.strided_slice(ascending, (0,), (n - 1,))
        )
        steps = op.concat((constant([0], "int32", call), op.astype(new, "int32")), 0)
    else:
        steps = constant([0] * n, "int32", call)
    ids = op.cumsum(steps, 0, "int32")
    zeros = constant(np.zeros(n), "int32", call)
    # The first of equal elements stands first: sorting is stable.
    starts = op.searchsorted.plain(ids, places, False, "int32")
    number = op.add(op.max(ids, 0, True), 1)
    real = op.less(places, number)
    first = op.where(real, op.take(order, starts, 0, "clip"), n)
    counts = op.scatter_add(zeros, 0, ids, constant(np.ones(n), "int32", call))
    inverse = op.scatter(zeros, 0, order, ids)
    chosen = first
    if not sorted:
        # The elements are reordered, but not their first places: so TVM has it.
        ranks = op.argsort.plain(first, 0, False, "int32")
        chosen, counts = op.take(first, ranks, 0), op.take(counts, ranks, 0)
        inverse = op.take(op.argsort.plain(ranks, 0, False, "int32"), inverse, 0)
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
