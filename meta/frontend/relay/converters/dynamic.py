"""Converters of `dyn.*`: operators that take what others have as attributes from tensors.

Where these tensors are known while converting, each is the operator without "dyn."; otherwise
the shape of the result depends on the data, and a base operator takes the tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from meta import op
from meta.frontend.core import CallSite, Unconvertible, known
from meta.frontend.core.arithmetic import cast_to, rounded
from meta.frontend.relay.arguments import constant, known_ints, known_number, static_extent
from meta.frontend.relay.converters import create, slicing, sorting, transform
from meta.frontend.relay.converters.image import CROP, in_floats
from meta.frontend.relay.registry import relay


def _as_static(call: CallSite, name: str, args: Sequence[Any], attributes: dict[str, Any]):
    """Convert the call as the operator of another name, with attributes that are known now."""
    given = call.given | frozenset(attributes)
    site = replace(call, name=name, given=given, has_attributes=True)
    return relay.apply(site, args, attributes)


@relay("dyn.reshape", op.reshape, op.dynamic_reshape, ignore=("newshape", "reverse"))
def reshape(data, newshape, *, allowzero, call):
    """Of the shape codes 0 and -1 can occur at run time."""
    codes = known_ints(newshape)
    if codes is not None:
        return transform.reshape(
            data, newshape=codes, allowzero=allowzero, reverse=False, call=call
        )
    return op.dynamic_reshape(data, newshape, bool(allowzero))


@relay("vm.reshape_tensor", op.reshape, op.dynamic_reshape, ignore=("newshape",))
def reshape_tensor(data, shape, *, call):
    """What TVM's lowering makes of a reshape."""
    return reshape(data, shape, allowzero=False, call=call)


@relay("dyn.broadcast_to", op.broadcast_to, op.dynamic_broadcast_to, ignore=("shape", "dtype"))
def broadcast_to(data, shape):
    """To the extents in a vector."""
    extents = known_ints(shape)
    return (
        op.dynamic_broadcast_to(data, shape) if extents is None else op.broadcast_to(data, extents)
    )


@relay("dyn.full", op.full, op.dynamic_full, ignore=("shape",))
def full(fill_value, shape, *, dtype, call):
    """Of the extents in a vector."""
    extents = known_ints(shape)
    if extents is not None:
        return create.full(fill_value, shape=extents, dtype=dtype, call=call)
    return op.dynamic_full(fill_value, shape, dtype or fill_value.dtype)


@relay("dyn.zeros", op.zeros, op.dynamic_full, ignore=("shape",))
def zeros(shape, *, dtype, call):
    """Of the extents in a vector."""
    return full(constant(0, dtype or "float32", call), shape, dtype=dtype, call=call)


@relay("dyn.ones", op.ones, op.dynamic_full, ignore=("shape",))
def ones(shape, *, dtype, call):
    """Of the extents in a vector."""
    return full(constant(1, dtype or "float32", call), shape, dtype=dtype, call=call)


@relay("dyn.tile", op.tile, op.dynamic_tile, ignore=("reps",))
def tile(data, reps):
    """As often as a vector says."""
    counts = known_ints(reps)
    return op.dynamic_tile(data, reps) if counts is None else op.tile(data, counts)


@relay("dyn.topk", op.topk, op.dynamic_topk, ignore=("k",))
def topk(data, k, *, axis, ret_type, is_ascend, dtype, call):
    """As many as a scalar says; below 1 all."""
    count = known_number(k)
    if count is not None:
        return sorting.topk(
            data,
            k=int(count),
            axis=axis,
            ret_type=ret_type,
            is_ascend=is_ascend,
            dtype=dtype,
            call=call,
        )
    return op.dynamic_topk(data, k, axis, ret_type, bool(is_ascend), dtype or "int32")


@relay("dyn.one_hot", op.one_hot, op.dynamic_one_hot, ignore=("depth",))
def one_hot(indices, on_value, off_value, depth, *, axis, dtype):
    """As deep as a scalar says."""
    count = known_number(depth)
    if count is not None:
        return create.one_hot(
            indices, on_value, off_value, depth=int(count), axis=axis, dtype=dtype
        )
    return op.dynamic_one_hot(indices, on_value, off_value, depth, axis, dtype or on_value.dtype)


@relay("dyn.strided_slice", op.strided_slice, op.dynamic_strided_slice)
def strided_slice(data, begin, end, strides, *, slice_mode, call):
    """By bounds in vectors."""
    first, last, steps = known_ints(begin), known_ints(end), known_ints(strides)
    if first is not None and last is not None and steps is not None:
        return slicing.strided_slice(
            data, begin=first, end=last, strides=steps, axes=None, slice_mode=slice_mode
        )
    count = static_extent(begin.shape[0], "begin")
    if slice_mode == "size":
        strides = constant([1] * count, "int64", call)
    elif tuple(strides.shape) == (1,) and count != 1:
        strides = op.broadcast_to(strides, (count,))
    return op.dynamic_strided_slice(data, begin, end, strides, slice_mode)


@relay("dyn.squeeze", op.squeeze, op.dynamic_squeeze, ignore=("axis",))
def squeeze(data, axes):
    """Without the axes that a vector names."""
    places = known_ints(axes)
    return op.dynamic_squeeze(data, axes) if places is None else op.squeeze(data, places)


@relay("dyn.expand_dims", op.expand_dims, op.dynamic_expand_dims)
def expand_dims(data, axis, *, num_newaxis):
    """New axes where a scalar says."""
    place = known_number(axis)
    if place is None:
        return op.dynamic_expand_dims(data, axis, num_newaxis)
    return op.expand_dims(data, int(place), num_newaxis)


@relay("dyn.nn.pad", op.pad, op.dynamic_pad, ignore=("pad_width", "pad_value"))
def pad(data, pad_width, pad_val, *, pad_mode, call):
    """As wide as a matrix says: before and after every axis."""
    widths = known_ints(pad_width)
    if widths is None:
        return op.dynamic_pad(data, pad_width, cast_to(pad_val, data.dtype), pad_mode)
    pairs = tuple(zip(widths[::2], widths[1::2], strict=True))
    site = replace(call, version=max(call.version or (0, 8), (0, 8)))
    attributes = {"pad_width": pairs, "pad_mode": pad_mode}
    return _as_static(site, "nn.pad", (data, pad_val), attributes)


def _resized(data, size, *, method: str, out_dtype: str = "", **options):
    """Resize to a height and width that only the run time knows."""
    y = op.dynamic_resize2d(in_floats(data, method), size, method=method, **options)
    return cast_to(y, out_dtype or data.dtype)


@relay("dyn.image.resize2d", op.resize2d, op.dynamic_resize2d, ignore=("size", "roi"))
def resize2d(data, size, roi=None, *, extrapolation_value, call, **options):
    """To the height and width in a vector."""
    extents = known_ints(size)
    if extents is None:
        if options["coordinate_transformation_mode"] == CROP:
            raise Unconvertible("a region cannot be resized to a size of the run time")
        return _resized(data, size, **options)
    region = None if roi is None else known(roi)
    stated = {
        "size": extents,
        "roi": None if region is None else tuple(region.numpy().reshape(-1).tolist()),
        "extrapolation_value": extrapolation_value,
        **options,
    }
    return _as_static(call, "image.resize2d", (data,), stated)


@relay("dyn.image.resize", op.resize2d, op.dynamic_resize2d, ignore=("size",))
def resize(data, size, *, layout, method, coordinate_transformation_mode, out_dtype, call):
    """TVM 0.7's name of dyn.image.resize2d, with other names of the methods."""
    options = {
        "layout": layout,
        "coordinate_transformation_mode": coordinate_transformation_mode,
        "out_dtype": out_dtype,
    }
    extents = known_ints(size)
    if extents is None:
        return _resized(data, size, method=method.removeprefix("bi"), **options)
    stated = {"size": extents, "method": method, **options}
    return _as_static(replace(call, version=(0, 7)), "image.resize", (data,), stated)


@relay("dyn.nn.upsampling", op.upsampling, op.dynamic_resize2d, ignore=("scale_h", "scale_w"))
def upsampling(data, scale_h, scale_w, *, layout, method, align_corners, call):
    """By factors in scalars; the extents are rounded."""
    height, width = known_number(scale_h), known_number(scale_w)
    if height is not None and width is not None:
        attributes = {
            "scale_h": float(height),
            "scale_w": float(width),
            "layout": layout,
            "method": method,
            "align_corners": align_corners,
        }
        return _as_static(call, "nn.upsampling", (data,), attributes)
    extents = op.cast(transform.shape_of(data, dtype="int64", call=call), "float64")
    sizes = []
    for letter, scale in (("H", scale_h), ("W", scale_w)):
        at = layout.index(letter)
        extent = op.strided_slice(extents, (at,), (at + 1,))
        sizes.append(op.multiply(extent, op.cast(op.reshape(scale, (1,)), "float64")))
    size = op.cast(rounded(op.concatenate(tuple(sizes), 0)), "int64")
    mode = "align_corners" if align_corners else "asymmetric"
    options = {"layout": layout, "coordinate_transformation_mode": mode}
    return _resized(data, size, method=method.removeprefix("bi"), **options)


@relay("dyn.nn.upsampling3d", ignore=("scale_d", "scale_h", "scale_w"))
def upsampling3d(data, scale_d, scale_h, scale_w, *, call, **options):
    """By factors in scalars, which have to be known."""
    scales = {"scale_d": scale_d, "scale_h": scale_h, "scale_w": scale_w}
    factors = {name: known_number(scale) for name, scale in scales.items()}
    if None in factors.values():
        raise Unconvertible("a volume cannot be resized by factors of the run time")
    return _as_static(call, "nn.upsampling3d", (data,), {**factors, **options})
