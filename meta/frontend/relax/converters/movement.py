"""Converters of operators that rearrange, repeat or convert elements, and of those on shapes, which
are numbers while converting.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from meta import op
from meta.frontend.core import Unconvertible, known
from meta.frontend.relax.extents import RuntimeShape, Shape
from meta.frontend.relax.registry import relax
from meta.runtime.ndarray import array


def numbers(value, what: str) -> list[Any]:
    """Return the numbers in a shape, a tuple of numbers or a known vector; Unconvertible for a
    vector that is not known.
    """
    if isinstance(value, tuple | list):
        return list(value)
    now = known(value)
    if now is None:
        raise Unconvertible(
            f"{what} depends on the values of inputs", hint="give such inputs as constants"
        )
    return [int(v) for v in now.numpy().reshape(-1)]


@relax("shape_of")
def shape_of(x):
    return Shape(x.shape)


@relax("shape_to_tensor", op.cast)
def shape_to_tensor(shape, *, call):
    if isinstance(shape, RuntimeShape):
        return op.cast(shape.vector, "int64")
    if not all(isinstance(e, int) for e in shape):
        raise Unconvertible("an extent that is known by name only is computed with as an array")
    return array(np.array(shape, dtype=np.int64), device=call.device)


@relax("tensor_to_shape")
def tensor_to_shape(x):
    if known(x) is None and isinstance(x.shape[0], int):
        return RuntimeShape(x)
    return Shape(numbers(x, "a shape"))


@relax("size")
def size(x, *, call):
    if not all(isinstance(e, int) for e in x.shape):
        raise Unconvertible("an extent that is known by name only is computed with as an array")
    return array(np.array(math.prod(x.shape), dtype=np.int64), device=call.device)


@relax("astype", op.cast)
def astype(x, *, dtype):
    return x if x.dtype == dtype else op.cast(x, dtype)


@relax("wrap_param", op.cast)
def wrap_param(x, *, dtype):
    return x if x.dtype == dtype else op.cast(x, dtype)


@relax("broadcast_to", op.broadcast_to, op.dynamic_broadcast_to)
def broadcast_to(x, shape):
    if isinstance(shape, RuntimeShape):
        return op.dynamic_broadcast_to(x, shape.vector)
    return op.broadcast_to(x, tuple(shape))


@relax("reshape", op.reshape, op.dynamic_reshape)
def reshape(x, shape):
    if isinstance(shape, RuntimeShape):
        return op.dynamic_reshape(x, shape.vector)
    return op.reshape(x, tuple(shape))


@relax("flatten", op.reshape)
def flatten(x):
    return op.reshape(x, (math.prod(x.shape),))


@relax("nn.batch_flatten", op.batch_flatten)
def batch_flatten(x):
    return op.batch_flatten(x)


@relax("concat", op.concatenate)
def concat(tensors, *, axis):
    if axis is None:
        return op.concatenate(tuple(op.reshape(t, (-1,)) for t in tensors), 0)
    return op.concatenate(tuple(tensors), axis)


@relax("stack", op.stack)
def stack(tensors, *, axis):
    return op.stack(tuple(tensors), axis or 0)


@relax("expand_dims", op.expand_dims)
def expand_dims(x, *, axis):
    """The axes are places in the result."""
    ndim = x.ndim + len(axis)
    for at in sorted(a % ndim for a in axis):
        x = op.expand_dims(x, at)
    return x


@relax("squeeze", op.squeeze)
def squeeze(x, *, axis):
    """A named axis of another extent than 1 stays."""
    if axis is None:
        return op.squeeze(x)
    return op.squeeze(x, tuple(a for a in axis if x.shape[a] == 1))


@relax("permute_dims", op.transpose)
def permute_dims(x, *, axes):
    return op.transpose(x, axes)


@relax("split", op.split)
def split(x, *, indices_or_sections, axis):
    """A number of parts that does not divide the axis gives a last part that is shorter."""
    extent = x.shape[axis]
    if isinstance(indices_or_sections, int) and isinstance(extent, int):
        step = -(-extent // indices_or_sections)
        if step * indices_or_sections != extent:
            ends = (min(i * step, extent) for i in range(1, indices_or_sections))
            indices_or_sections = tuple(ends)
    return tuple(op.split(x, indices_or_sections, axis))


@relax("flip", op.flip)
def flip(x, *, axis):
    return op.flip(x, axis)


@relax("repeat", op.repeat)
def repeat(x, *, repeats, axis):
    return op.repeat(x, repeats, axis)


@relax("tile", op.tile)
def tile(x, *, repeats):
    return op.tile(x, repeats)


@relax("reverse_sequence", op.reverse_sequence)
def reverse_sequence(x, lengths, *, seq_axis, batch_axis):
    return op.reverse_sequence(x, lengths, seq_axis, batch_axis)


@relax("meshgrid", op.mesh_grid)
def meshgrid(tensors, *, indexing):
    if indexing != "xy" or len(tensors) < 2:
        return tuple(op.mesh_grid(tuple(tensors)))
    second, first, *others = op.mesh_grid((tensors[1], tensors[0], *tensors[2:]))
    return (first, second, *others)


@relax("collapse_sum_like", op.collapse_sum_like)
def collapse_sum_like(x, target):
    return op.collapse_sum_like(x, target)


@relax("collapse_sum_to", op.sum)
def collapse_sum_to(x, shape):
    target = tuple(numbers(shape, "the shape of a sum"))
    lead = x.ndim - len(target)
    axes = (*range(lead), *(lead + i for i, e in enumerate(target) if e != x.shape[lead + i]))
    return op.reshape(op.cast(op.sum(x, axes), x.dtype), target) if axes else x


@relax("nn.pixel_shuffle", op.reshape, op.transpose)
def pixel_shuffle(x, *, upscale_factor):
    """[..., C * r * r, H, W] to [..., C, H * r, W * r] (Shi et al., arXiv:1609.05158)."""
    r, (*lead, channels, height, width) = upscale_factor, x.shape
    n = len(lead)
    parts = op.reshape(x, (*lead, channels // (r * r), r, r, height, width))
    order = (*range(n), n, n + 3, n + 1, n + 4, n + 2)
    shape = (*lead, channels // (r * r), height * r, width * r)
    return op.reshape(op.transpose(parts, order), shape)


@relax(
    "builtin.stop_lift_params",
    "grad.end_checkpoint",
    "grad.no_grad",
    "grad.start_checkpoint",
    "hint_on_device",
    "memory.ensure_zero_offset",
    "to_vdevice",
    ignore=("device_type", "index", "memory_scope", "dst_vdevice"),
)
def hint(x):
    """Hints for TVM's own passes: the argument as it is."""
    return x
