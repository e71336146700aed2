"""Slices: of one axis, read, written, and their gradients; and views by strides.

To read or write through strides, a tensor has to lie in memory as its shape says; the walker makes
sure of that by the strides that torch has written beside it.
Padding is the inverse of a slice.
"""

import numpy as np

from meta import op
from meta.base.dtype import COMPLEX
from meta.base.errors import TypeInferError
from meta.frontend.aten.arguments import (
    apply_to_components,
    axis_of,
    cast_or_take_real,
    constant,
    number,
    value_of,
)
from meta.frontend.aten.converters.creation import ranged
from meta.frontend.aten.registry import aten
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import SLICE_END
from meta.ir.dims import SymbolicDim, UnknownDim, product


def cut(x, axis, begin, end, step=1):
    """The slice of one axis by numbers, as `strided_slice` takes them."""
    before = (0,) * axis, (SLICE_END,) * axis, (1,) * axis
    bounds = ((*v, b) for v, b in zip(before, (begin, end, step), strict=True))
    return op.strided_slice(x, *bounds)


def _at_least(a, b):
    """Whether one extent is not below the other for all extents, as far as that is known."""
    try:
        return bool(a >= b)
    except TypeInferError:
        return False


def bound_of(bound, extent, default):
    """A slice's bound from the start, where it can be known; beyond the end it is the extent."""
    if bound is None:
        return default
    if isinstance(bound, UnknownDim):
        raise Unconvertible("a bound of a slice is an extent that only the run time knows")
    if type(bound) is int and bound >= SLICE_END:
        return extent
    bound = bound + extent if _at_least(-1, bound) else bound
    if isinstance(extent, int) and isinstance(bound, int):
        return min(max(bound, 0), extent)
    return extent if _at_least(bound, extent) else bound


def sliced(x, axis, start, end, step=1, count=None):
    """x[start:end:step] along an axis, with numbers or dimensions.

    ``count``: the result's extent, where it is known. Otherwise, of an axis of symbolic extent, it
    is what it is if no bound lies beyond the end, as torch found when it made the program; a
    program that is run with another extent says so.
    """
    extent = x.shape[axis]
    if not isinstance(extent, int | SymbolicDim):
        return _sliced_unknown(x, axis, start, end, step)
    begin, stop = bound_of(start, extent, 0), bound_of(end, extent, extent)
    if isinstance(extent, int) and isinstance(begin, int) and isinstance(stop, int):
        whole = begin == 0 and stop == extent and step == 1
        return x if whole else cut(x, axis, begin, max(stop, begin), step)
    if type(begin) is int and begin == 0 and stop == extent and step == 1:
        return x
    if count is None or isinstance(count, UnknownDim):
        length = stop - begin
        count = length if step == 1 else (length + step - 1) // step
    found = _dynamic_slice(x, axis, start, end, step)
    # An extent that could be negative is not told to the program, which finds it by itself.
    shape = (*x.shape[:axis], count, *x.shape[axis + 1 :])
    return op.reshape(found, shape) if _at_least(count, 0) else found


def _dynamic_slice(x, axis, start, end, step=1):
    """A slice of which the run time finds the extent, and on which side of the axis bounds lie."""
    start, end = 0 if start is None else start, SLICE_END if end is None else end
    bounds = _number(start, x.shape[axis]), _number(end, x.shape[axis])
    if None in bounds:
        return op.dynamic_strided_slice(x, *_vectors(axis, start, end, step))
    return cut(x, axis, *bounds, step)


def _number(bound, extent):
    """A bound as a number, counted from the end if it is an extent; None if neither is one."""
    if isinstance(bound, int):
        return min(bound, SLICE_END)
    behind = bound - extent
    if not isinstance(behind, int):
        return None
    return SLICE_END if behind == 0 else behind if behind < 0 else None


def _vectors(axis, begin, end, step):
    """Bounds of a slice as vectors, for all axes up to one."""
    each = ((0, begin), (SLICE_END, end), (1, step))
    return (_vector((*(whole,) * axis, own)) for whole, own in each)


def _vector(dims):
    """Numbers and extents as one vector of int64."""
    return op.concat(tuple(op.reshape(value_of(d), (1,)) for d in dims), 0)


def _sliced_unknown(x, axis, start, end, step):
    begin, stop = 0 if start is None else start, SLICE_END if end is None else end
    if not isinstance(begin, int) or not isinstance(stop, int):
        raise Unconvertible("a slice of an axis of unknown extent has bounds that are no numbers")
    return x if (begin, stop, step) == (0, SLICE_END, 1) else cut(x, axis, begin, stop, step)


def from_start(index, extent):
    """An index counted from the start of an axis.

    Raises TypeInferError for one that is counted from the end for some extents only.
    """
    if isinstance(index, int):
        return index + extent if index < 0 else index
    if isinstance(index, UnknownDim):
        raise Unconvertible("an index is an extent that only the run time knows")
    return index + extent if index < 0 else index


@aten("slice.Tensor", "slice_copy.Tensor", op.strided_slice)
def slice_(x, *, dim, start, end, step, call):
    axis = axis_of(dim, x.ndim)
    count = None if call.result_type is None else call.result_type.shape[axis]
    return sliced(x, axis, start, end, step, count)


@aten("narrow", "narrow_copy", op.strided_slice)
def narrow(x, *, dim, start, length):
    axis = axis_of(dim, x.ndim)
    begin = from_start(start, x.shape[axis])
    return sliced(x, axis, begin, begin + length, count=length)


@aten("narrow.Tensor", op.take)
def narrow_from(x, start, *, dim, length, call):
    places = op.add(
        op.arange(0, length, 1, "int64", str(call.device)), cast_or_take_real(start, "int64")
    )
    axis = axis_of(dim, x.ndim)
    extent = x.shape[axis]
    return op.take(x, op.where(op.less(places, 0), op.add(places, extent), places), axis)


@aten("select.int", "select_copy.int", op.strided_slice)
def select(x, *, dim, index):
    axis = axis_of(dim, x.ndim)
    extent, rest = x.shape[axis], (*x.shape[:axis], *x.shape[axis + 1 :])
    if type(index) is int:
        if isinstance(extent, int) and not -extent <= index < extent:
            raise Unconvertible(f"the index {index} is out of range for the extent {extent}")
        found = cut(x, axis, index, SLICE_END if index == -1 else index + 1)
    else:
        begin = from_start(index, extent)
        found = sliced(x, axis, begin, begin + 1, count=1)
    return op.reshape(found, rest)


# Gradients, and slices that are written.


def _numbers(axis, extent, start, end, step):
    """Bounds of a slice as numbers, for all axes up to one."""
    begin, stop = bound_of(start, extent, 0), bound_of(end, extent, extent)
    if not all(isinstance(n, int) for n in (extent, begin, stop, step)):
        raise Unconvertible(f"a slice of an axis of {extent} by other than numbers is not written")
    each = ((0, begin), (SLICE_END, max(begin, stop)), (1, step))
    return tuple((*(whole,) * axis, own) for whole, own in each)


def into_slice(x, part, axis, start, end, step, call):
    """x with another tensor in the place of a slice."""
    extent = x.shape[axis]
    if isinstance(extent, UnknownDim):
        raise Unconvertible("a slice of an axis of unknown extent is not written")
    begin, stop = bound_of(start, extent, 0), bound_of(end, extent, extent)
    from_front, count = start is None or _at_least(start, 0), part.shape[axis]
    if step == 1 and not isinstance(count, UnknownDim):
        if stop == extent and not from_front:
            begin, from_front = extent - count, True
        stop = begin + count
    if type(begin) is int and begin == 0 and stop == extent and step == 1:
        return cast_or_take_real(part, x.dtype)
    if step == 1 and not isinstance(extent, int) and from_front:
        # What lies before the slice, which may begin beyond the end, and what behind it.
        cut_before = sliced if _at_least(extent, begin) else _dynamic_slice
        around = (cut_before(x, axis, 0, begin), part, sliced(x, axis, stop, extent))
        found = op.concat(tuple(cast_or_take_real(p, x.dtype) for p in around), axis)
        return found if found.shape == x.shape else op.reshape(found, x.shape)
    if all(isinstance(n, int) for n in (extent, begin, stop, step)):
        bounds = _numbers(axis, extent, start, end, step)
        return op.strided_set(x, cast_or_take_real(part, x.dtype), *bounds)
    places = sliced(ranged(0, extent, 1, "int64", call), 0, start, end, step, part.shape[axis])
    return op.index_copy(x, axis, places, cast_or_take_real(part, x.dtype))


@aten("slice_scatter", op.strided_set)
def slice_scatter(x, source, *, dim, start, end, step, call):
    return into_slice(x, source, axis_of(dim, x.ndim), start, end, step, call)


@aten("select_scatter", op.strided_set, op.expand_dims)
def select_scatter(x, source, *, dim, index, call):
    axis = axis_of(dim, x.ndim)
    index = from_start(index, x.shape[axis])
    return into_slice(x, op.expand_dims(source, axis), axis, index, index + 1, 1, call)


@aten("slice_backward", op.strided_slice_dx)
def slice_backward(dy, *, input_sizes, dim, start, end, step, call):
    axis = axis_of(dim, len(input_sizes))
    extent = input_sizes[axis]
    if not isinstance(extent, int) or not all(isinstance(n, int) for n in dy.shape):
        zeros = op.zeros(input_sizes, dy.dtype, str(call.device))
        return into_slice(zeros, dy, axis, start, end, step, call)
    return op.strided_slice_dx(dy, input_sizes, *_numbers(axis, extent, start, end, step))


@aten("select_backward", op.strided_slice_dx, op.expand_dims)
def select_backward(dy, *, input_sizes, dim, index, call):
    axis = axis_of(dim, len(input_sizes))
    index = from_start(index, input_sizes[axis])
    bounds = {"start": index, "end": index + 1, "step": 1}
    dy = op.expand_dims(dy, axis)
    return slice_backward(dy, input_sizes=input_sizes, dim=axis, call=call, **bounds)


@aten("diagonal_scatter", op.where, op.diagonal_dx)
def diagonal_scatter(x, source, *, offset, dim1, dim2):
    where = (tuple(x.shape), offset, dim1, dim2)
    source = cast_or_take_real(source, x.dtype)
    there = op.diagonal_dx(op.full_like(source, 1, "bool"), *where)
    return op.where(there, op.diagonal_dx(source, *where), x)


# By strides.


def _view_positions(x, size, stride, offset, call):
    """Which element of x, counted in its order, each place of a view is: int64, of its shape."""
    if not all(isinstance(n, int) for n in (*x.shape, *size, *stride, offset or 0)):
        raise Unconvertible("a view by strides of a tensor of symbolic shape is not supported")
    places = np.full((1,) * len(size), offset or 0, np.int64)
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        along = np.arange(n, dtype=np.int64) * step
        places = places + along.reshape(n, *(1,) * (len(size) - 1 - axis))
    places = np.broadcast_to(places, size)
    if places.size and places.max() >= product(x.shape):
        raise Unconvertible("the view reads memory behind the tensor")
    return constant(places, "int64", call)


def _row_major(shape):
    return tuple(product((1, *shape[i + 1 :])) for i in range(len(shape)))


def _is_all(x, size, stride, offset):
    """Whether a view is all of x's elements in their order."""
    known = all(isinstance(n, int) for n in (*x.shape, *size, *stride, offset or 0))
    if not known or offset or product(size) != product(x.shape):
        return False
    steps = zip(size, stride, _row_major(size), strict=True)
    return all(n == 1 or given == usual for n, given, usual in steps)


@aten("as_strided", "as_strided_copy", op.reshape, op.take)
def as_strided(x, *, size, stride, storage_offset, call):
    if size == tuple(x.shape) and stride == _row_major(size) and not storage_offset:
        return x
    if _is_all(x, size, stride, storage_offset):
        return op.reshape(x, size)
    places = _view_positions(x, size, stride, storage_offset, call)
    return op.take(op.reshape(x, (product(x.shape),)), places, 0)


@aten("as_strided_scatter", op.scatter_nd, op.reshape)
def as_strided_scatter(x, source, *, size, stride, storage_offset, call):
    if _is_all(x, size, stride, storage_offset):
        whole = op.broadcast_to(cast_or_take_real(source, x.dtype), size)
        return op.reshape(whole, tuple(x.shape))
    places = _view_positions(x, size, stride, storage_offset, call)
    flat = op.reshape(x, (product(x.shape),))
    where = op.expand_dims(places, 0)
    written = op.scatter_nd(flat, where, cast_or_take_real(source, x.dtype))
    return op.reshape(written, tuple(x.shape))


# Padding, by a number and by what a tensor holds, and its backward.


MODES = {"constant": "constant", "reflect": "reflect", "replicate": "edge", "circular": "wrap"}
NUMBERED = ("reflect", "replicate", "circular", "constant")


def widths_of(pad, ndim):
    """Pairs (before, after) for every axis, of torch's list, which begins with the last axis."""
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)][::-1]
    return ((0, 0),) * (ndim - len(pairs)) + tuple(pairs)


def _is_negative(width):
    return isinstance(width, int) and width < 0


def _positive(pairs):
    return tuple(tuple(0 if _is_negative(w) else w for w in pair) for pair in pairs)


def _cropped(x, pairs):
    """x without what negative widths take off."""
    for axis, (before, after) in enumerate(pairs):
        if _is_negative(before) or _is_negative(after):
            begin = -before if _is_negative(before) else 0
            x = sliced(x, axis, begin, after if _is_negative(after) else SLICE_END)
    return x


def padded(x, pad, mode, value, call):
    """x with elements around it; negative widths take elements off."""
    pairs = widths_of(pad, x.ndim)
    if mode == "constant":
        if x.dtype in COMPLEX:
            value = complex(value)
            real, imag = (
                op.pad(part, _positive(pairs), constant_values=v)
                for part, v in ((op.real(x), value.real), (op.imag(x), value.imag))
            )
            return _cropped(op.complex(real, imag), pairs)
        x = _cropped(x, pairs)
        if not any(w != 0 for pair in _positive(pairs) for w in pair):
            return x
        return op.pad(x, _positive(pairs), constant_values=number(value, x.dtype, call.device))
    # What is taken off is still mirrored or repeated.
    wide = apply_to_components(lambda part: op.pad(part, _positive(pairs), mode=MODES[mode]), x)
    return _cropped(wide, pairs)


@aten("constant_pad_nd", op.pad)
def constant_pad_nd(x, *, pad, value, call):
    return padded(x, pad, "constant", value, call)


@aten("pad", op.pad)
def pad(x, *, pad: tuple, mode, value, call):
    if mode not in MODES:
        raise Unconvertible(f"the padding mode {mode!r} is unknown")
    return padded(x, pad, mode, 0 if value is None else value, call)


@aten("_pad_enum", op.pad)
def pad_enum(x, *, pad: tuple, mode, value, call):
    return padded(x, pad, NUMBERED[mode], 0 if value is None else value, call)


@aten("_pad_circular", op.pad)
def pad_circular(x, *, pad: tuple, call):
    return padded(x, pad, "circular", 0, call)


def _register(mode, axes):
    name = {"reflect": "reflection", "replicate": "replication"}[mode]

    @aten(f"{name}_pad{axes}d", op.pad)
    def forward(x, *, padding, call):
        return padded(x, padding, mode, 0, call)

    @aten(f"{name}_pad{axes}d_backward", op.pad_dx)
    def backward(dy, x, *, padding, call):
        pairs = widths_of(padding, x.ndim)
        # Where elements were taken off, nothing flows back.
        taken = tuple(tuple(-w if _is_negative(w) else 0 for w in pair) for pair in pairs)
        flat = tuple(w for pair in _positive(pairs) for w in pair)

        def back(part):
            if any(w for pair in taken for w in pair):
                part = op.pad(part, taken)
            return op.pad_dx(part, flat, MODES[mode])

        return apply_to_components(back, dy)


for _axes in (1, 2, 3):
    _register("reflect", _axes)
    _register("replicate", _axes)
