"""Converters of operators that rearrange, repeat or join elements, and of those on shapes."""

from __future__ import annotations

from math import prod

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import constant, is_static, known_ints
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.values import array_of
from meta.op.core.check import normalize_axis

_VALUES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
}


def required(value, what):
    """Return the integers of a known vector; Unconvertible otherwise."""
    numbers = known_ints(value)
    if numbers is None:
        raise Unconvertible(
            f"{what} depends on the values of inputs", hint="give such inputs as constants"
        )
    return numbers


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
    tensor = value if sparse_value is None else sparse_value
    if tensor is None:
        raise Unconvertible("text is no array")
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


@onnx("Reshape", op.reshape, op.dynamic_reshape, ignore=("consumed_inputs",))
def reshape(x, target=None, *, shape, allowzero, call):
    """0 keeps an extent, unless it is allowed as one; -1 is what is left."""
    extents = known_ints(target) if target is not None else tuple(shape or ())
    if extents is None:
        return op.dynamic_reshape(x, target)
    if not allowzero:
        extents = tuple(x.shape[i] if e == 0 else e for i, e in enumerate(extents))
    return op.reshape(x, extents)


@onnx("Transpose", op.permute_dims)
def transpose(x, *, perm):
    return op.permute_dims(x, tuple(range(x.ndim))[::-1] if perm is None else tuple(perm))


@onnx("Concat", op.concat)
def concat(*tensors, axis, call):
    return op.concat(tensors, 1 if axis is None else axis)


@onnx("Flatten", op.reshape)
def flatten(x, *, axis):
    axis = axis + x.ndim if axis < 0 else axis
    return op.reshape(x, (prod(x.shape[:axis]), prod(x.shape[axis:])))


@onnx("Unsqueeze", op.expand_dims)
def unsqueeze(x, at=None, *, axes):
    places = required(at, "axes") if at is not None else axes
    ndim = x.ndim + len(places)
    for place in sorted(normalize_axis(a, ndim) for a in places):
        x = op.expand_dims(x, place)
    return x


@onnx("Squeeze", op.squeeze)
def squeeze(x, at=None, *, axes):
    places = required(at, "axes") if at is not None else axes
    if places is None:
        return op.squeeze(x)
    return op.squeeze(x, tuple(places)) if places else x


@onnx("Expand", op.broadcast_to, op.dynamic_broadcast_to)
def expand(x, shape):
    """The shapes are broadcast against each other."""
    target = known_ints(shape)
    if target is None:
        return op.dynamic_broadcast_to(x, shape)
    own = (*(1,) * (len(target) - x.ndim), *x.shape)
    target = (*(1,) * (x.ndim - len(target)), *target)
    return op.broadcast_to(x, tuple(o if t == 1 else t for o, t in zip(own, target, strict=True)))


@onnx("Tile", op.tile, op.dynamic_tile)
def tile(x, repeats, *others):
    if others:
        raise Unconvertible("it is of opset 1")
    times = known_ints(repeats)
    return op.dynamic_tile(x, repeats) if times is None else op.tile(x, times)
