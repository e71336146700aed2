"""Converters of operators that rearrange, repeat or join elements, and of those on shapes."""

from __future__ import annotations

from itertools import accumulate
from math import prod

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import (
    constant,
    constant_ints,
    constant_number,
    extent_of,
    is_static,
    required_ints,
    static_extent,
    unknown,
    vector,
)
from meta.frontend.core.operators import without_negative_padding
from meta.frontend.onnx.converters.indexing import positions
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.shape_inference import shape_of
from meta.frontend.onnx.values import Text, array_of
from meta.ir.dims import UnknownDim, product
from meta.op.core.check import normalize_axis

_VALUES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


@onnx("Constant")
def constant_(
    *,
    value,
    sparse_value,
    value_float,
    value_floats,
    value_int,
    value_ints,
    value_string,
    value_strings,
    call,
):
    numbers = {
        "value_float": value_float,
        "value_floats": value_floats,
        "value_int": value_int,
        "value_ints": value_ints,
    }
    for name, number in numbers.items():
        if name in call.given:
            return constant(np.array(number, _VALUES[name]), _VALUES[name].__name__, call)
    if "value_string" in call.given or "value_strings" in call.given:
        return Text(np.array(value_strings if value_string is None else value_string, object))
    tensor = value if sparse_value is None else sparse_value
    if tensor is None:
        raise Unconvertible("it has no value")
    return array_of(tensor, call.device)


@onnx("Shape", op.shape_as_tensor)
def shape(x, *, start, end, call):
    extents = x.shape[slice(start or 0, end)]
    if is_static(extents):
        return constant(extents, "int64", call)
    first, last, _ = slice(start or 0, end).indices(x.ndim)
    return op.strided_slice(op.shape_as_tensor(x), (first,), (max(first, last),))


@onnx("Size", op.numel)
def size(x, *, call):
    if is_static(x.shape):
        return constant(prod(x.shape), "int64", call)
    return op.prod(op.shape_as_tensor(x))


def is_unit(extent):
    """Whether an extent is the number 1."""
    return isinstance(extent, int) and extent == 1


def flattened(x, axis):
    """Return x with all axes before the given one as one, and with all from it on as another."""
    return reshaped(x, (product(x.shape[:axis]), product(x.shape[axis:])))


def reshaped(x, extents):
    """Reshape to extents of which one may be known at run time only."""
    known = tuple(-1 if isinstance(e, UnknownDim) else e for e in extents)
    if known != tuple(extents) and known.count(-1) > 1:
        raise Unconvertible("two extents of the result depend on the values of inputs")
    return op.reshape(x, known)


@onnx("Reshape", op.reshape, op.dynamic_reshape)
def reshape(x, target=None, *, shape, allowzero, call):
    """0 keeps an extent, unless it is allowed as one; -1 is what is left."""
    extents = shape_of(target) if target is not None else tuple(shape or ())
    if extents is None:
        return op.dynamic_reshape(x, target)
    if not allowzero:
        extents = tuple(x.shape[i] if e == 0 else e for i, e in enumerate(extents))
    return reshaped(x, extents)


@onnx("Transpose", op.permute_dims)
def transpose(x, *, perm):
    return op.permute_dims(x, tuple(range(x.ndim))[::-1] if perm is None else tuple(perm))


@onnx("Concat", op.concat)
def concat(*tensors, axis, call):
    return op.concat(tensors, 1 if axis is None else axis)


@onnx("Flatten", op.reshape)
def flatten(x, *, axis):
    axis = axis + x.ndim if axis < 0 else axis
    return flattened(x, axis)


@onnx("Unsqueeze", op.expand_dims)
def unsqueeze(x, at=None, *, axes):
    places = required_ints(at, "axes") if at is not None else axes
    ndim = x.ndim + len(places)
    for place in sorted(normalize_axis(a, ndim) for a in places):
        x = op.expand_dims(x, place)
    return x


@onnx("Squeeze", op.squeeze, op.dynamic_squeeze)
def squeeze(x, at=None, *, axes, call):
    places = required_ints(at, "axes") if at is not None else axes
    if places is None:
        return op.squeeze(x)
    places = tuple(normalize_axis(p, x.ndim) for p in places)
    if any(isinstance(x.shape[p], UnknownDim) for p in places):
        return op.dynamic_squeeze(x, constant(places, "int64", call))
    return op.squeeze(x, places) if places else x


@onnx("Expand", op.broadcast_to, op.dynamic_broadcast_to)
def expand(x, shape, *, call):
    """The shapes are broadcast against each other."""
    target = shape_of(shape)
    if target is None:
        return op.dynamic_broadcast_to(x, _both_ways(x, shape, call))
    own = (*(1,) * (len(target) - x.ndim), *x.shape)
    target = (*(1,) * (x.ndim - len(target)), *target)
    if any(isinstance(d, UnknownDim) for d in own):
        new = len(own) - x.ndim
        wide = [
            extent_of(x, i - new) if is_unit(t) and i >= new else t for i, t in enumerate(target)
        ]
        return op.dynamic_broadcast_to(x, vector(wide, call))
    pairs = zip(own, target, strict=True)
    return op.broadcast_to(x, tuple(o if is_unit(t) else t for o, t in pairs))


def _both_ways(x, shape, call):
    """The shape, a vector of the run time, in which an extent of 1 is x's."""
    count = shape.shape[0]
    if not isinstance(count, int):
        return shape
    rank = max(x.ndim, count)
    ones = (1,) * (rank - x.ndim)
    own = vector((*ones, *(extent_of(x, i) for i in range(x.ndim))), call)
    if rank > count:
        shape = op.concat((vector((1,) * (rank - count), call), shape), 0)
    return op.where(op.equal(shape, 1), own, shape)


@onnx("Tile", op.tile, op.dynamic_tile)
def tile(x, repeats, axis=None, *, call):
    """In opset 1 the repeats are one number and along one axis."""
    times = constant_ints(repeats)
    if call.opset < 6:
        (count,), (along,) = required_ints(repeats, "the repeats"), required_ints(axis, "the axis")
        times = tuple(count if i == along else 1 for i in range(x.ndim))
    return op.dynamic_tile(x, repeats) if times is None else op.tile(x, times)


@onnx("Split", op.split)
def split(x, sizes=None, *, axis, split, num_outputs, call):
    """Without sizes the parts are equal, but for the last one, which may be smaller."""
    axis = normalize_axis(axis or 0, x.ndim)
    given = shape_of(sizes) if sizes is not None else split
    if sizes is not None and given is None:
        raise unknown("the sizes of the parts")
    if given is None:
        count = num_outputs or call.results
        extent = static_extent(x.shape[axis], "the axis that is split")
        step = -(-extent // count)
        given = [min(step, max(extent - i * step, 0)) for i in range(count)]
    ends = tuple(accumulate(given))
    if ends[-1] != x.shape[axis] or any(e < 0 for e in given):
        raise Unconvertible(f"parts of {list(given)} are not all of the axis of {x.shape[axis]}")
    return tuple(op.split(x, ends[:-1], axis)) if len(ends) > 1 else (x,)


_MODES = {"constant": "constant", "reflect": "reflect", "edge": "edge", "wrap": "wrap"}


@onnx("Pad", op.pad, op.dynamic_pad, op.strided_slice, op.where)
def pad(x, widths=None, filling=None, at=None, *, mode, pads, paddings, value):
    """Widths below 0 cut off. They are attributes before opset 11."""
    if mode not in _MODES:
        raise Unconvertible(f"the mode {mode!r} is unknown", hint=", ".join(_MODES))
    axes = tuple(range(x.ndim))
    if at is not None:
        axes = [normalize_axis(a, x.ndim) for a in required_ints(at, "axes")]
    given = constant_ints(widths) if widths is not None else pads or paddings
    if filling is None:
        filling = (value or 0.0) if is_float(x.dtype) else int(value or 0)
    number = filling if isinstance(filling, float | int) else constant_number(filling)
    if given is None:
        return _dynamic_pad(x, widths, axes, filling if number is None else number, mode)
    pairs = [(0, 0)] * x.ndim
    for i, axis in enumerate(axes):
        pairs[axis] = (given[i], given[len(axes) + i])
    x, pairs = without_negative_padding(x, pairs)
    if number is None:
        inside = op.pad(op.ones_like(x, "bool"), pairs, "constant", False)
        return op.where(inside, op.pad(x, pairs, "constant", 0), op.reshape(filling, ()))
    return op.pad(x, pairs, mode, number if mode == "constant" else 0) if x.ndim else x


def _dynamic_pad(x, widths, axes, filling, mode):
    if tuple(axes) != tuple(range(x.ndim)):
        raise Unconvertible(
            "widths along some axes depend on the values of inputs",
            hint="give such inputs as constants",
        )
    pairs = op.permute_dims(op.reshape(widths, (2, x.ndim)), (1, 0))
    return op.dynamic_pad(x, pairs, filling, _MODES[mode])


for _name, _base in {"DepthToSpace": op.depth_to_space, "SpaceToDepth": op.space_to_depth}.items():
    onnx.same(_name, _base, blocksize="block_size")


@onnx("ReverseSequence", op.reverse_sequence, op.embedding)
def reverse_sequence(x, lengths, *, batch_axis, time_axis):
    lengths = positions(lengths, x, time_axis, ends=True)
    return op.reverse_sequence(x, lengths, time_axis, batch_axis)


@onnx("Trilu", op.tril, op.triu)
def trilu(x, k=None, *, upper):
    (diagonal,) = (0,) if k is None else required_ints(k, "the diagonal")
    return (op.triu if upper else op.tril)(x, diagonal)
