"""Converters of operators that reduce, accumulate, search and sort along axes."""

from __future__ import annotations

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible, constant_value
from meta.frontend.core.arithmetic import truncated_quotient
from meta.frontend.core.operators import scan
from meta.frontend.relax.registry import relax
from meta.runtime.ndarray import array


def _reducing(name, base, **options):
    @relax(name, base)
    def reduce(x, *, axis, keepdims):
        return base(x, axis, keepdims, **options)


@relax.each(op.max, op.min, op.prod, op.sum)
def reduction(base, x, *, axis, keepdims):
    """The dtype stays."""
    return op.astype(base(x, axis, keepdims), x.dtype)


_reducing("argmax", op.argmax)
_reducing("argmin", op.argmin)
_reducing("std", op.std, correction=0)
_reducing("variance", op.var, correction=0)


@relax("mean", op.mean, op.sum)
def mean(x, *, axis, keepdims):
    """Of integers it is rounded towards zero."""
    if is_float(x.dtype):
        return op.mean(x, axis, keepdims)
    total = op.astype(op.sum(x, axis, keepdims), x.dtype)
    return truncated_quotient(total, x.size // max(total.size, 1))


@relax("median", op.argsort, op.take_along_axis)
def median(x, *, axis, keepdims):
    """The lower of two middle elements; with an axis also its index."""
    flat = op.reshape(x, (-1,)) if not axis else x
    at = (axis[0] if axis else 0) % flat.ndim
    order = op.argsort(flat, at)
    middle = (flat.shape[at] - 1) // 2
    begin = (*(0,) * at, middle)
    end = (*flat.shape[:at], middle + 1)
    index = op.strided_slice(order, begin, end)
    value = op.take_along_axis(flat, index, at)
    if not axis:
        return op.reshape(value, (1,) if keepdims else ())
    return (value, index) if keepdims else (op.squeeze(value, at), op.squeeze(index, at))


@relax.each(op.cumsum, op.cumprod)
def scan_along(base, x, *, axis, dtype, exclusive):
    return scan(base, x, axis, dtype or x.dtype, exclusive)


@relax("sort", op.sort)
def sort(x, *, axis, descending):
    return op.sort(x, axis, descending)


@relax("argsort", op.argsort)
def argsort(x, *, axis, descending, dtype):
    return op.argsort.plain(x, axis, descending, dtype or "int32")


@relax("topk", op.topk)
def topk(x, *, k, axis, ret_type, largest, dtype):
    return op.topk.plain(x, k, axis, largest, ret_type, dtype or "int32")


@relax("bucketize", op.searchsorted)
def bucketize(x, boundaries, *, out_int32, right):
    return op.searchsorted.plain(boundaries, x, right, "int32" if out_int32 else "int64")


@relax("nonzero", op.argwhere)
def nonzero(x):
    """[axes, elements]; one number counts as a vector."""
    return op.permute_dims(op.argwhere(op.reshape(x, (1,)) if x.ndim == 0 else x))


@relax("unique", op.unique)
def unique(x, in_order, index, inverse, counts, axis=None, *, call):
    """Of known arrays everything is computed now; of others, distinct elements in order."""
    if constant_value(x) is not None:
        found = _unique(x.numpy(), bool(in_order), axis)
        flags = (True, bool(index), bool(inverse), bool(counts))
        chosen = [array(v, device=call.device) for v, f in zip(found, flags, strict=True) if f]
        return tuple(chosen) if len(chosen) > 1 else chosen[0]
    if not in_order or index or axis is not None:
        raise Unconvertible(
            "distinct elements along an axis, in the order of occurrence, or with their first "
            "indices are not supported"
        )
    found = op.unique(x, bool(inverse), bool(counts))
    if inverse:
        return (found[0], op.reshape(found[1], (-1,)), *found[2:])
    return found


def _unique(x, in_order, axis):
    values, index, inverse, counts = np.unique(x, True, True, True, axis=axis)
    inverse = inverse.reshape(-1)
    if not in_order:
        order = np.argsort(index)
        values = np.take(values, order, axis=axis)
        inverse = np.argsort(order)[inverse]
        index, counts = index[order], counts[order]
    return values, index, inverse, counts
