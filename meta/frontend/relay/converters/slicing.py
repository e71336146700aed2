"""Converters of operators that cut tensors: `split`, slices, windows."""

from __future__ import annotations

from typing import Any

import numpy as np

from meta import op
from meta.frontend.core import CallSite, Unconvertible
from meta.frontend.relay.arguments import (
    WHOLE,
    constant,
    extent_of,
    ints,
    known_ints,
    static_extent,
    vector,
)
from meta.frontend.relay.registry import relay
from meta.op.core.check import normalize_axis

MAX_PARTS = 1 << 14
"""`split` makes no more: an empty axis has any number of equal parts."""


@relay("split", op.split)
def split(data, *, indices_or_sections, axis):
    """Into equal parts, or before indices."""
    if not isinstance(indices_or_sections, int | tuple):
        raise Unconvertible(f"indices_or_sections is {indices_or_sections!r}")
    if isinstance(indices_or_sections, int) and indices_or_sections > MAX_PARTS:
        raise Unconvertible(f"{indices_or_sections} parts are more than {MAX_PARTS}")
    return op.split(data, indices_or_sections, axis)


def spread_over_axes(
    ndim: int, axes: tuple[int, ...], values: tuple[Any, ...], default
) -> tuple[Any, ...]:
    """Return one value for each of the leading axes: those given at ``axes``, else the default."""
    at = {normalize_axis(a, ndim): v for a, v in zip(axes, values, strict=True)}
    return tuple(at.get(i, default) for i in range(max(at, default=-1) + 1))


def slice_bounds(
    ndim: int,
    begin: tuple[int | None, ...],
    end: tuple[int | None, ...],
    strides: tuple[int | None, ...],
    axes: tuple[int, ...] | None,
    mode: str,
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return begin, end and strides for each of the leading axes, what is missing filled in.

    With the mode "size" an end is a number of elements, and strides do not count.
    """
    count = max(len(begin), len(end), 0 if axes is None else len(axes))
    if len(strides) == 1:
        strides = strides * count
    places = tuple(range(count)) if axes is None else axes
    if len(places) != count or count > ndim:
        raise Unconvertible(f"begin={begin}, end={end}, axes={axes} do not fit {ndim} axes")

    def filled(values: tuple[int | None, ...]) -> list[int | None]:
        return [values[i] if i < len(values) else None for i in range(count)]

    steps = [1 if s is None or mode == "size" else s for s in filled(strides)]
    rest = -1 if mode == "size" else WHOLE
    begins = [
        (0 if s > 0 else WHOLE) if b is None else b
        for b, s in zip(filled(begin), steps, strict=True)
    ]
    ends = [
        (rest if s > 0 else -WHOLE) if e is None else e
        for e, s in zip(filled(end), steps, strict=True)
    ]
    return (
        spread_over_axes(ndim, places, tuple(begins), 0),
        spread_over_axes(ndim, places, tuple(ends), rest),
        spread_over_axes(ndim, places, tuple(steps), 1),
    )


@relay("strided_slice", op.strided_slice)
def strided_slice(data, *, begin, end, strides, axes, slice_mode):
    """Bounds as Python's slices have them; an entry that is missing keeps its axis."""
    bounds = slice_bounds(data.ndim, begin or (), end or (), strides or (), axes, slice_mode)
    return op.strided_slice(data, *bounds, slice_mode) if bounds[0] else data


@relay("slice_like", op.strided_slice, op.dynamic_strided_slice)
def slice_like(data, shape_like, *, axes, call):
    """The beginning of each axis, as long as that of the other tensor."""
    places = ints(axes) or tuple(range(min(data.ndim, shape_like.ndim)))
    lengths = tuple(extent_of(shape_like, normalize_axis(a, shape_like.ndim)) for a in places)
    ends = spread_over_axes(data.ndim, places, lengths, WHOLE)
    begins = (0,) * len(ends)
    if all(isinstance(n, int) for n in lengths):
        return op.strided_slice(data, begins, ends) if ends else data
    strides = constant([1] * len(ends), "int64", call)
    return op.dynamic_strided_slice(
        data, constant(begins, "int64", call), vector(ends, call), strides
    )


@relay("strided_set", op.strided_set, op.where)
def strided_set(data, v, begin, end, strides=None, *, call):
    """The bounds are tensors. The extents of ``v`` tell where a slice ends."""
    first, last = known_ints(begin), known_ints(end)
    steps = (1,) if strides is None else known_ints(strides)
    if first is not None and last is not None and steps is not None:
        bounds = slice_bounds(data.ndim, first, last, steps or (1,), None, "end")
        return op.strided_set(data, v, *bounds)
    if steps is None:
        raise Unconvertible("the strides of strided_set are not known while converting")
    return _set_anywhere(data, v, begin, steps, call)


def _set_anywhere(data, v, begin, steps: tuple[int, ...], call: CallSite):
    """Write ``v`` at a place that only the run time knows, by looking it up for each element."""
    count = static_extent(begin.shape[0], "begin")
    steps = steps * count if len(steps) == 1 else steps or (1,) * count
    written: Any = None
    for axis in range(data.ndim):
        extent = static_extent(data.shape[axis], "the tensor to be written to")
        length = static_extent(v.shape[axis], "the tensor to be written")
        if axis >= count:
            continue
        start = op.cast(op.strided_slice(begin, (axis,), (axis + 1,)), "int64")
        start = op.where(op.less(start, 0), op.add(start, extent), start)
        places = constant(np.arange(extent), "int64", call)
        step = steps[axis] if axis < len(steps) else 1
        offset = op.subtract(places, start) if step > 0 else op.subtract(start, places)
        order = op.floor_divide(offset, abs(step))
        inside = op.logical_and(
            op.logical_and(op.greater_equal(offset, 0), op.less(order, length)),
            op.equal(op.mod(offset, abs(step)), 0),
        )
        v = op.take(v, order, axis, "clip")
        inside = op.reshape(inside, (-1, *(1,) * (data.ndim - 1 - axis)))
        written = inside if written is None else op.logical_and(written, inside)
    return v if written is None else op.where(written, v, data)


@relay("sliding_window", op.take, op.transpose)
def sliding_window(data, *, axis, window_shape, strides, call):
    """The windows along the axes from ``axis`` on; inside of them are the last axes."""
    first, count = normalize_axis(axis, data.ndim), len(window_shape)
    if first + count != data.ndim or len(strides) != count:
        raise Unconvertible(
            f"a window of {list(window_shape)} with strides {list(strides)} from axis {axis} on "
            f"does not fit {data.ndim} axes"
        )
    # Every axis becomes two: which window, and where in it.
    for i, (size, step) in enumerate(zip(window_shape, strides, strict=True)):
        at = first + 2 * i
        extent = static_extent(data.shape[at], f"axis {first + i}")
        starts = np.arange(0, max(extent - size, -1) + 1, step)
        places = constant(starts[:, None] + np.arange(size), "int64", call)
        data = op.take(data, places, at)
    order = (*range(first), *range(first, data.ndim, 2), *range(first + 1, data.ndim, 2))
    return op.transpose(data, order)
