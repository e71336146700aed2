"""Converters of `Resize` and `Upsample`.

Interpolation is separable: along each axis, every element of the result is a weighted sum of a few
elements. Images take `resize2d`, where that computes the same; everything else is these sums, with
positions and weights that are computed while converting.
"""

from __future__ import annotations

from math import floor

import numpy as np

from meta import op
from meta.base.dtype import is_float
from meta.frontend.core import Unconvertible
from meta.frontend.core.arguments import (
    constant,
    constant_ints,
    constant_value,
    is_static,
    static_extent,
)
from meta.frontend.core.arithmetic import cast_to
from meta.frontend.onnx.registry import onnx
from meta.frontend.onnx.shape_inference import Extents, shape_of
from meta.op.core.check import normalize_axis

MODES = {"nearest": "nearest_neighbor", "linear": "linear", "cubic": "cubic", "bilinear": "linear"}
POSITIONS = (
    "align_corners",
    "asymmetric",
    "half_pixel",
    "half_pixel_symmetric",
    "pytorch_half_pixel",
    "tf_crop_and_resize",
    "tf_half_pixel_for_nn",
)
OF_RESIZE2D = ("align_corners", "asymmetric", "half_pixel", "pytorch_half_pixel")


def _numbers(value, what):
    """The numbers of a known vector, None if there are none."""
    if value is None:
        return None
    values = constant_value(value)
    if values is None:
        raise Unconvertible(
            f"{what} depend on the values of inputs", hint="give such inputs as constants"
        )
    numbers = values.numpy().reshape(-1).tolist()
    return numbers or None


@onnx("Resize", op.resize2d, op.dynamic_resize2d, op.take, op.matmul)
def resize(
    x,
    second=None,
    third=None,
    sizes=None,
    *,
    antialias,
    axes,
    coordinate_transformation_mode,
    cubic_coeff_a,
    exclude_outside,
    extrapolation_value,
    keep_aspect_ratio_policy,
    mode,
    nearest_mode,
    call,
):
    """Inputs are x, roi, scales, sizes; in opset 10 x and scales, and positions "asymmetric"."""
    position, nearest = coordinate_transformation_mode, nearest_mode
    if call.opset < 11:
        roi, scales, position, nearest = None, second, "asymmetric", "floor"
    else:
        roi, scales = second, third
    if position not in POSITIONS or mode not in MODES:
        raise Unconvertible(f"the mode {mode!r} with {position!r} is unknown")
    axes = tuple(normalize_axis(a, x.ndim) for a in (axes or range(x.ndim)))
    if _is_dynamic(scales, sizes):
        if antialias or keep_aspect_ratio_policy not in (None, "stretch"):
            raise _not_known()
        return _dynamic(x, sizes, axes, mode, position, cubic_coeff_a, exclude_outside)
    factors = None if scales is None else _numbers(scales, "scales")
    whole = _integer_scales(x, axes, factors)
    if whole is not None and not antialias:
        return _named(x, whole, mode, position, nearest, cubic_coeff_a, exclude_outside, call)
    region = _numbers(roi, "regions") if position == "tf_crop_and_resize" else None
    plan = _plan(x, axes, region, factors, sizes, keep_aspect_ratio_policy)
    if not antialias and _is_direct(x, plan, mode, position, nearest):
        size = tuple(extent for _, extent, _, _ in (_of(plan, a, x) for a in (2, 3)))
        # An axis of one element that stays is the same in every mode.
        method = MODES[mode]
        rounding = "floor" if mode == "nearest" else ""
        position = "asymmetric" if mode == "nearest" else position
        exclude = int(exclude_outside)
        return op.resize2d(x, size, "NCHW", method, position, rounding, cubic_coeff_a, exclude)
    return _separable(
        x,
        plan,
        mode,
        position,
        nearest,
        cubic_coeff_a,
        exclude_outside,
        antialias,
        extrapolation_value,
        call,
    )


@onnx("Upsample", op.resize2d, op.take)
def upsample(x, factors=None, *, mode, scales, height_scale, width_scale, call):
    """The scales are attributes before opset 9."""
    if factors is not None:
        given = _numbers(factors, "scales")
    else:
        given = scales or (1.0, 1.0, height_scale, width_scale)
    plan = _plan(x, tuple(range(x.ndim)), None, given, None, "stretch")
    return _separable(x, plan, mode, "asymmetric", "floor", -0.75, 0, 0, 0.0, call)


def _plan(x, axes, region, scales, sizes, policy):
    """(axis, extent of the result, scale, region) for each axis that is resized."""
    count = len(axes)
    regions = [(0.0, 1.0)] * count
    if region is not None:
        regions = [(region[i], region[count + i]) for i in range(count)]
    wanted = None if scales is not None else shape_of(sizes)
    if (scales is None and wanted is None) or len(wanted or scales) != count:
        raise Unconvertible("there are neither scales nor sizes for every axis")

    def is_kept(i):
        stays = scales[i] == 1.0 if wanted is None else wanted[i] == x.shape[axes[i]]
        return stays and regions[i] == (0.0, 1.0) and (wanted is None or policy == "stretch")

    kept = [is_kept(i) for i in range(count)]
    rows = [i for i in range(count) if not kept[i]]
    extents = {i: static_extent(x.shape[axes[i]], "an axis that is resized") for i in rows}
    if wanted is None:
        results = {i: floor(extents[i] * (regions[i][1] - regions[i][0]) * scales[i]) for i in rows}
        return [(axes[i], results[i], scales[i], regions[i]) for i in rows]
    results = {i: static_extent(wanted[i], "the size of a result") for i in rows}
    factors = {i: results[i] / extents[i] for i in rows}
    if policy in ("not_larger", "not_smaller"):
        factor = (min if policy == "not_larger" else max)(factors.values())
        factors = dict.fromkeys(rows, factor)
        results = {i: floor(factor * extents[i] + 0.5) for i in rows}
    elif policy != "stretch":
        raise Unconvertible(f"keep_aspect_ratio_policy={policy!r} is unknown")
    return [(axes[i], results[i], factors[i], regions[i]) for i in rows]


def _of(plan, axis, x):
    return next((p for p in plan if p[0] == axis), (axis, x.shape[axis], 1.0, (0.0, 1.0)))


def _is_direct(x, plan, mode, position, nearest):
    """Whether `resize2d` computes the same: an image, whole scales."""
    if x.ndim != 4 or not all(e == x.shape[a] and s == 1.0 for a, e, s, _ in plan if a < 2):
        return False
    rows = [p for p in plan if p[0] >= 2]
    if any(extent < 1 or extent != x.shape[axis] * scale for axis, extent, scale, _ in rows):
        return False
    if mode == "nearest":
        # Where every element is repeated, positions and rounding have nothing to say.
        whole = all(float(scale).is_integer() for _, _, scale, _ in rows)
        return whole and _repeats(nearest, position)
    return is_float(x.dtype) and position in OF_RESIZE2D


def _is_dynamic(scales, sizes):
    given = scales if scales is not None and constant_ints(scales) != () else sizes
    return given is not None and not isinstance(given, Extents) and constant_value(given) is None


def _integer_scales(x, axes, factors):
    """The factors of an image by axis, if an extent is known by name only; otherwise None."""
    if factors is None or x.ndim != 4 or is_static(tuple(x.shape[a] for a in axes)):
        return None
    by_axis = dict(zip(axes, factors, strict=True))
    found = [by_axis.get(i, 1.0) for i in range(4)]
    named = any(f != 1.0 and not isinstance(e, int) for f, e in zip(found, x.shape, strict=True))
    if not named:
        return None
    if found[:2] != [1.0, 1.0] or not all(float(f).is_integer() for f in found):
        raise Unconvertible("extents that are known by name are resized by whole numbers only")
    return [int(f) for f in found[2:]]


def _named(x, factors, mode, position, nearest, alpha, exclude, call):
    """Resize an image by whole numbers, whatever its extents."""
    if mode == "nearest":
        if not _repeats(nearest, position):
            raise Unconvertible(f"{position!r} and {nearest!r} of extents known by name")
        return op.repeat(op.repeat(x, factors[0], 2), factors[1], 3)
    if position not in OF_RESIZE2D or not is_float(x.dtype):
        raise Unconvertible(f"positions {position!r} of extents that are known by name only")
    size = op.strided_slice(op.shape_as_tensor(x), (2,), (4,))
    size = op.multiply(size, constant(factors, "int64", call))
    return op.dynamic_resize2d(x, size, "NCHW", MODES[mode], position, "", alpha, int(exclude))


def _repeats(nearest, position):
    """Whether, with a whole scale, every element is repeated."""
    rounds = nearest.startswith("round") and position == "half_pixel"
    return rounds or (nearest == "floor" and position == "asymmetric")


def _not_known():
    return Unconvertible(
        "scales and sizes depend on the values of inputs", hint="give such inputs as constants"
    )


def _dynamic(x, sizes, axes, mode, position, alpha, exclude):
    """Sizes of the run time, of the two spatial axes of images."""
    usual = x.ndim == 4 and position in OF_RESIZE2D and mode != "nearest" and is_float(x.dtype)
    if sizes is None or constant_value(sizes) is not None or not usual or axes != (2, 3):
        raise _not_known()
    return op.dynamic_resize2d(x, sizes, "NCHW", MODES[mode], position, "", alpha, int(exclude))


def _positions(extent, count, scale, region, position):
    """Where on an axis every element of the result lies."""
    at, length = np.arange(count, dtype=np.float64), scale * extent
    if position == "align_corners":
        return at * 0 if length == 1 else at * (extent - 1) / (length - 1)
    if position == "asymmetric":
        return at / scale
    if position == "tf_half_pixel_for_nn":
        return (at + 0.5) / scale
    if position == "tf_crop_and_resize":
        start, end = region
        length = count
        if length == 1:
            return at * 0 + 0.5 * (start + end) * (extent - 1)
        return start * (extent - 1) + at * (end - start) * (extent - 1) / (length - 1)
    if position == "pytorch_half_pixel" and count == 1:
        return at * 0
    shift = extent / 2 * (1 - count / length) if position == "half_pixel_symmetric" else 0.0
    return shift + (at + 0.5) / scale - 0.5


NEAREST = {
    "round_prefer_floor": lambda p: np.ceil(p - 0.5),
    "round_prefer_ceil": lambda p: np.floor(p + 0.5),
    "floor": np.floor,
    "ceil": np.ceil,
}


def _linear(distance):
    return np.clip(1 - distance, 0, 1)


def _cubic(a):
    def weight(d):
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        return np.where(d <= 1, near, np.where(d < 2, far, 0.0))

    return weight


def _taps(places, extent, scale, mode, alpha, exclude, antialias):
    """(positions, weights), each [results, taps], of the elements that are added up."""
    stretch = min(scale, 1.0) if antialias else 1.0
    radius, weight = (1, _linear) if mode != "cubic" else (2, _cubic(alpha))
    reach = int(np.ceil(radius / stretch))
    taps = np.floor(places)[:, None] + np.arange(1 - reach, reach + 1)[None, :]
    weights = weight(np.abs(taps - places[:, None]) * stretch)
    if exclude:
        weights = np.where((taps < 0) | (taps >= extent), 0.0, weights)
    if exclude or antialias:
        total = weights.sum(1, keepdims=True)
        weights = weights / np.where(total == 0, 1.0, total)
    return np.clip(taps, 0, extent - 1).astype(np.int64), weights


def _separable(x, plan, mode, position, nearest, alpha, exclude, antialias, outside_value, call):
    wide = x if mode == "nearest" or x.dtype in ("float32", "float64") else cast_to(x, "float32")
    masks = []
    for axis, count, scale, region in plan:
        extent = wide.shape[axis]
        if count == extent and scale == 1.0 and region == (0.0, 1.0):
            continue
        places = _positions(extent, count, scale, region, position)
        if position == "tf_crop_and_resize":
            beyond = (places < 0) | (places > extent - 1)
            masks.append((axis, beyond))
        if mode == "nearest":
            if nearest not in NEAREST:
                raise Unconvertible(f"nearest_mode={nearest!r} is unknown")
            index = np.clip(NEAREST[nearest](places), 0, extent - 1)
            wide = op.take(wide, constant(index, "int64", call), axis)
            continue
        taps = _taps(places, extent, scale, mode, alpha, exclude, antialias)
        wide = _summed(wide, axis, *taps, call)
    for axis, beyond in masks:
        if beyond.any():
            shape = tuple(len(beyond) if i == axis else 1 for i in range(wide.ndim))
            mask = constant(beyond.reshape(shape), "bool", call)
            number = outside_value if is_float(wide.dtype) else int(outside_value)
            wide = op.where(mask, op.full_like(wide, number), wide)
    if wide.dtype != x.dtype and not is_float(x.dtype):
        wide = op.round(wide) if "int" in x.dtype else wide
    return cast_to(wide, x.dtype)


FEW = 4
"""Weighted sums of more elements are matrix products."""


def _summed(x, axis, taps, weights, call):
    if taps.shape[1] > FEW:
        matrix = np.zeros((x.shape[axis], len(taps)))
        np.add.at(matrix, (taps, np.arange(len(taps))[:, None]), weights)
        order = (*(i for i in range(x.ndim) if i != axis), axis)
        y = op.matmul(op.permute_dims(x, order), constant(matrix, x.dtype, call))
        return op.permute_dims(y, tuple(np.argsort(order).tolist()))
    shape = tuple(len(taps) if i == axis else 1 for i in range(x.ndim))
    total = None
    for i in range(taps.shape[1]):
        part = op.take(x, constant(taps[:, i], "int64", call), axis)
        part = op.multiply(part, constant(weights[:, i].reshape(shape), x.dtype, call))
        total = part if total is None else op.add(total, part)
    return total
