"""Converters of `dyn.*`: operators that take what others have as attributes from tensors.

Where these tensors are known while converting, each is the operator without "dyn."; otherwise
the shape of the result depends on the data, and a base operator takes the tensors.
"""

from __future__ import annotations

from dataclasses import replace

from meta import op
from meta.frontend.core import Unconvertible, constant_value
from meta.frontend.core.arguments import constant, constant_ints, constant_number, static_extent
from meta.frontend.core.arithmetic import cast_to, rounded
from meta.frontend.relay.converters.image import CROP, in_floats
from meta.frontend.relay.registry import relay


def _as_static(call, name, args, attributes):
    """Convert the call as the operator of another name, with attributes that are known now."""
    given = call.given | frozenset(attributes)
    site = replace(call, name=name, given=given, has_attributes=True)
    return relay.apply(site, args, attributes)


def _by_vector(name, static, dynamic, ignore):
    """Register an operator that takes one vector besides the data."""

    @relay(f"dyn.{name}", static, dynamic, ignore=ignore)
    def converter(data, numbers):
        stated = constant_ints(numbers)
        return dynamic(data, numbers) if stated is None else static(data, stated)


_by_vector("broadcast_to", op.broadcast_to, op.dynamic_broadcast_to, ("shape", "dtype"))
_by_vector("squeeze", op.squeeze, op.dynamic_squeeze, ("axis",))
_by_vector("tile", op.tile, op.dynamic_tile, ("reps",))


@relay("dyn.reshape", op.reshape, op.dynamic_reshape, ignore=("newshape", "reverse"))
def reshape(data, newshape, *, allowzero, call):
    """Of the shape codes 0 and -1 can occur at run time."""
    codes = constant_ints(newshape)
    if codes is None:
        shape = newshape if allowzero else _with_copied(data, newshape)
        return op.dynamic_reshape(data, shape)
    stated = {"newshape": codes, "allowzero": allowzero, "reverse": False}
    return _as_static(call, "reshape", (data,), stated)


def _with_copied(data, codes):
    """Return extents of the run time with those of the data in the place of 0; -2, which `reshape`
    refuses, where the data has no such axis.
    """
    count = static_extent(codes.shape[0], "the shape")
    extents = op.shape_as_tensor(data)
    extents = op.strided_slice(extents, (0,), (count,))
    extents = op.pad(extents, (0, max(0, count - data.ndim)), constant_values=-2)
    codes = op.astype(codes, "int64")
    return op.where(op.equal(codes, 0), extents, codes)


@relay("vm.reshape_tensor", op.reshape, op.dynamic_reshape, ignore=("newshape",))
def reshape_tensor(data, shape, *, call):
    """What TVM's lowering makes of a reshape."""
    return reshape(data, shape, allowzero=False, call=call)


@relay("dyn.full", op.full, op.dynamic_full, ignore=("shape",))
def full(fill_value, shape, *, dtype, call):
    extents = constant_ints(shape)
    if extents is None:
        return op.dynamic_full(fill_value, shape, dtype or fill_value.dtype)
    return _as_static(call, "full", (fill_value,), {"shape": extents, "dtype": dtype})


def _filled(base, value):
    @relay(f"dyn.{base.name}", base, op.dynamic_full, ignore=("shape",))
    def converter(shape, *, dtype, call):
        return full(constant(value, dtype or "float32", call), shape, dtype=dtype, call=call)


_filled(op.zeros, 0)
_filled(op.ones, 1)


@relay("dyn.topk", op.topk, op.dynamic_topk, ignore=("k",))
def topk(data, k, *, axis, ret_type, is_ascend, dtype, call):
    """A k below 1 stands for all."""
    count = constant_number(k)
    if count is None:
        return op.dynamic_topk(data, k, axis, not is_ascend, ret_type, dtype or "int32")
    stated = {"axis": axis, "ret_type": ret_type, "is_ascend": is_ascend, "dtype": dtype}
    return _as_static(call, "topk", (data,), {"k": int(count), **stated})


@relay("dyn.one_hot", op.one_hot, op.dynamic_one_hot, ignore=("depth",))
def one_hot(indices, on_value, off_value, depth, *, axis, dtype, call):
    given, count = (indices, on_value, off_value), constant_number(depth)
    if count is None:
        return op.dynamic_one_hot(*given, depth, axis, dtype or on_value.dtype)
    return _as_static(call, "one_hot", given, {"depth": int(count), "axis": axis, "dtype": dtype})


@relay("dyn.strided_slice", op.strided_slice, op.dynamic_strided_slice)
def strided_slice(data, begin, end, strides, *, slice_mode, call):
    first, last, steps = constant_ints(begin), constant_ints(end), constant_ints(strides)
    if first is not None and last is not None and steps is not None:
        stated = {"begin": first, "end": last, "strides": steps, "slice_mode": slice_mode}
        return _as_static(call, "strided_slice", (data,), stated)
    count = static_extent(begin.shape[0], "begin")
    if slice_mode == "size":
        strides = constant([1] * count, "int64", call)
    elif tuple(strides.shape) == (1,) and count != 1:
        strides = op.broadcast_to(strides, (count,))
    return op.dynamic_strided_slice(data, begin, end, strides, slice_mode)


@relay("dyn.expand_dims", op.expand_dims, op.dynamic_expand_dims)
def expand_dims(data, axis, *, num_newaxis):
    place = constant_number(axis)
    if place is None:
        return op.dynamic_expand_dims(data, axis, num_newaxis)
    return op.expand_dims(data, int(place), num_newaxis)


@relay("dyn.nn.pad", op.pad, op.dynamic_pad, ignore=("pad_width", "pad_value"))
def pad(data, pad_width, pad_val, *, pad_mode, call):
    """As wide as a matrix says: before and after every axis."""
    widths = constant_ints(pad_width)
    if widths is None:
        return op.dynamic_pad(data, pad_width, cast_to(pad_val, data.dtype), pad_mode)
    pairs = zip(widths[::2], widths[1::2], strict=True)
    site = replace(call, version=max(call.version or (0, 8), (0, 8)))
    attributes = {"pad_width": tuple(pairs), "pad_mode": pad_mode}
    return _as_static(site, "nn.pad", (data, pad_val), attributes)


def _resized(data, size, *, method, out_dtype="", **options):
    """Resize to a height and width that only the run time knows."""
    y = op.dynamic_resize2d(in_floats(data, method), size, method=method, **options)
    return cast_to(y, out_dtype or data.dtype)


@relay("dyn.image.resize2d", op.resize2d, op.dynamic_resize2d, ignore=("size", "roi"))
def resize2d(data, size, roi=None, *, extrapolation_value, call, **options):
    extents = constant_ints(size)
    if extents is None:
        if options["coordinate_transformation_mode"] == CROP:
            raise Unconvertible("a region cannot be resized to a size of the run time")
        return _resized(data, size, **options)
    region = None if roi is None else constant_value(roi)
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
    options = {"layout": layout, "out_dtype": out_dtype}
    options["coordinate_transformation_mode"] = coordinate_transformation_mode
    extents = constant_ints(size)
    if extents is None:
        return _resized(data, size, method=method.removeprefix("bi"), **options)
    stated = {"size": extents, "method": method, **options}
    return _as_static(replace(call, version=(0, 7)), "image.resize", (data,), stated)


@relay("dyn.nn.upsampling", op.upsampling, op.dynamic_resize2d, ignore=("scale_h", "scale_w"))
def upsampling(data, scale_h, scale_w, *, layout, method, align_corners, call):
    """The extents are rounded."""
    height, width = constant_number(scale_h), constant_number(scale_w)
    if height is not None and width is not None:
        stated = {"layout": layout, "method": method, "align_corners": align_corners}
        stated |= {"scale_h": float(height), "scale_w": float(width)}
        return _as_static(call, "nn.upsampling", (data,), stated)
    extents = op.astype(_as_static(call, "shape_of", (data,), {"dtype": "int64"}), "float64")
    sizes = []
    for letter, scale in (("H", scale_h), ("W", scale_w)):
        at = layout.index(letter)
        extent = op.strided_slice(extents, (at,), (at + 1,))
        sizes.append(op.multiply(extent, op.astype(op.reshape(scale, (1,)), "float64")))
    size = op.astype(rounded(op.concat(tuple(sizes), 0)), "int64")
    mode = "align_corners" if align_corners else "asymmetric"
    options = {"layout": layout, "coordinate_transformation_mode": mode}
    return _resized(data, size, method=method.removeprefix("bi"), **options)


@relay("dyn.nn.upsampling3d", ignore=("scale_d", "scale_h", "scale_w"))
def upsampling3d(data, scale_d, scale_h, scale_w, *, call, **options):
    """By factors in scalars, which have to be known."""
    scales = {"scale_d": scale_d, "scale_h": scale_h, "scale_w": scale_w}
    factors = {name: constant_number(scale) for name, scale in scales.items()}
    if None in factors.values():
        raise Unconvertible("a volume cannot be resized by factors of the run time")
    return _as_static(call, "nn.upsampling3d", (data,), {**factors, **options})
