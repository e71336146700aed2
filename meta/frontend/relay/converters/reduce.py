"""Converters of reductions and scans. An integer result has the dtype of the data, and wraps."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import CallSite
from meta.frontend.core.arithmetic import cast_to, truncated_quotient
from meta.frontend.relay.arguments import constant, ints, result_dtype, static_extent
from meta.frontend.relay.registry import relay
from meta.op.core.check import normalize_axes

Axis = int | tuple[int, ...] | None


def reduced_axes(ndim: int, axis: Axis, exclude: bool) -> tuple[int, ...]:
    """Return the axes that a reduction of Relay works on: without any named, all."""
    named = ints(axis)
    return normalize_axes(named, ndim, exclude and bool(named))


def _arguments(data, axis: Axis, keepdims: bool, exclude: bool) -> tuple[Any, ...]:
    """Return what follows the data in a base operator's call."""
    named = ints(axis)
    return named, bool(keepdims), bool(exclude) and bool(named)


def _count(data, axes: tuple[int, ...]) -> int:
    return prod(static_extent(data.shape[a], f"axis {a}") for a in axes)


@relay("sum", op.sum)
def sum(data, *, axis, keepdims, exclude):
    """In the dtype of the data."""
    return cast_to(op.sum(data, *_arguments(data, axis, keepdims, exclude)), data.dtype)


@relay("prod", op.prod)
def prod_(data, *, axis, keepdims, exclude):
    """In the dtype of the data."""
    return cast_to(op.prod(data, *_arguments(data, axis, keepdims, exclude)), data.dtype)


@relay("mean", op.mean, op.sum, op.floor_divide)
def mean(data, *, axis, keepdims, exclude, call):
    """Of integers: the sum in their dtype, divided without the fraction."""
    if is_float(data.dtype):
        return op.mean(data, *_arguments(data, axis, keepdims, exclude))
    count = _count(data, reduced_axes(data.ndim, axis, exclude))
    total = sum(data, axis=axis, keepdims=keepdims, exclude=exclude)
    return truncated_quotient(total, constant(count, data.dtype, call))


@relay("variance", op.mean, op.sum)
def variance(data, mean, *, axis, keepdims, exclude, unbiased):
    """Of data and their mean, which broadcasts to them."""
    distance = op.subtract(data, mean)
    square = op.multiply(distance, distance)
    given = _arguments(data, axis, keepdims, exclude)
    if not unbiased:
        return op.mean(square, *given)
    degrees = _count(data, reduced_axes(data.ndim, axis, exclude)) - 1
    return op.divide(op.sum(square, *given), float(degrees))


@relay("max", op.max)
def max(data, *, axis, keepdims, exclude):
    """The largest element."""
    return op.max(data, *_arguments(data, axis, keepdims, exclude))


@relay("min", op.min)
def min(data, *, axis, keepdims, exclude):
    """The smallest element."""
    return op.min(data, *_arguments(data, axis, keepdims, exclude))


@relay("all", op.all)
def all(data, *, axis, keepdims, exclude):
    """Whether all are true."""
    return op.all(data, *_arguments(data, axis, keepdims, exclude))


@relay("any", op.any)
def any(data, *, axis, keepdims, exclude):
    """Whether one is true."""
    return op.any(data, *_arguments(data, axis, keepdims, exclude))


def _best(best, data, axis: Axis, keepdims: bool, exclude: bool, last: bool | None, call):
    """Return the index of the first or last best element, int32 unless the file says otherwise."""
    given = _arguments(data, axis, keepdims, exclude)
    dtype = result_dtype(call, "int32")
    if not last:
        return op.cast(best(data, *given), dtype)
    # The last one is the first from behind.
    axes = reduced_axes(data.ndim, axis, exclude)
    from_behind = op.cast(best(op.flip(data, axes), *given), dtype)
    return op.subtract(constant(_count(data, axes) - 1, dtype, call), from_behind)


@relay("argmax", op.argmax, op.flip)
def argmax(data, *, axis, keepdims, exclude, select_last_index, call):
    """The index of the largest element; over several axes, of these flattened."""
    return _best(op.argmax, data, axis, keepdims, exclude, select_last_index, call)


@relay("argmin", op.argmin, op.flip)
def argmin(data, *, axis, keepdims, exclude, select_last_index, call):
    """The index of the smallest element; over several axes, of these flattened."""
    return _best(op.argmin, data, axis, keepdims, exclude, select_last_index, call)


def _scan(
    scan: Callable[..., Any],
    data,
    axis: int | None,
    dtype: str,
    exclusive: bool | None,
    call: CallSite,
):
    """Without an axis the data are flattened. Bools count as int32."""
    own = "int32" if data.dtype == "bool" else data.dtype
    if axis is None:
        data, axis = op.reshape(data, (-1,)), 0
    return scan(data, axis, dtype or result_dtype(call, own), bool(exclusive))


@relay("cumsum", op.cumsum)
def cumsum(data, *, axis, dtype, exclusive, call):
    """Sums of the elements up to each, or before each."""
    return _scan(op.cumsum, data, axis, dtype, exclusive, call)


@relay("cumprod", op.cumprod)
def cumprod(data, *, axis, dtype, exclusive, call):
    """Products of the elements up to each, or before each."""
    return _scan(op.cumprod, data, axis, dtype, exclusive, call)
