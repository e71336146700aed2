"""Convolution, pooling, padding and resizing."""

from __future__ import annotations

from typing import Any

import numpy as np

import meta
from tools.torch_samples.compose import indices, number_for, picked, whole
from tools.torch_samples.decline import decline_if


def every(value: Any, dims: int) -> tuple[int, ...]:
    """Return one number per spatial axis."""
    values = (value,) if isinstance(value, int) else tuple(value)
    return values * dims if len(values) == 1 else values


def batched(function: Any, dims: int) -> Any:
    """Return a function that may be given one example without an axis of the batch."""

    def applied(input: Any, *args: Any, **kwargs: Any) -> Any:
        if input.ndim == dims + 2:
            return function(input, *args, **kwargs)
        return meta.squeeze(function(meta.expand_dims(input, 0), *args, **kwargs), 0)

    return applied


def conv_transpose(function: Any, dims: int) -> Any:
    """Return torch's form of a transposed convolution, with a bias."""

    def convolved(
        input: Any,
        weight: Any,
        bias: Any = None,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        dilation: Any = 1,
    ) -> Any:
        border, more = every(padding, dims), every(output_padding, dims)
        # What torch adds behind is what the padding behind does not cut off, then zeros.
        behind = [b - m for b, m in zip(border, more, strict=True)]
        cut = (*border, *(max(b, 0) for b in behind))
        steps, gaps = every(stride, dims), every(dilation, dims)
        y = function(input, weight, None, steps, cut, 0, groups, gaps)
        if min(behind) < 0:
            y = meta.pad(y, [(0, 0)] * 2 + [(0, max(-b, 0)) for b in behind])
        return y if bias is None else meta.bias_add(y, bias, 1)

    return batched(convolved, dims)


def avg_pool(function: Any) -> Any:
    """Return a function whose divisor is given by its place."""

    def pooled(input: Any, *args: Any, divisor_override: int | None = None, **kwargs: Any) -> Any:
        *window, divisor = args if len(args) == 6 else (*args, divisor_override)
        window = [None if w in ((), []) else w for w in window]  # no stride is the kernel's
        return function(input, *window, divisor_override=divisor, **kwargs)

    return pooled


def max_pool(function: Any) -> Any:
    """Return a function that takes integers, too, by way of float64."""

    def pooled(input: Any, *args: Any, **kwargs: Any) -> Any:
        if "float" in input.dtype:
            return function(input, *args, **kwargs)
        y = function(meta.astype(input, "float64"), *args, **kwargs)
        if isinstance(y, tuple):
            return meta.astype(y[0], input.dtype), y[1]
        return meta.astype(y, input.dtype)

    return pooled


def pad(input: Any, pad: Any, mode: str = "constant", value: float | None = None) -> Any:
    """Elements before and after the last axes, the last one first; negative widths cut off."""
    pairs = [(pad[i], pad[i + 1]) for i in range(0, len(pad), 2)]
    widths = [(0, 0)] * (input.ndim - len(pairs)) + pairs[::-1]
    if mode == "circular":
        return circular(input, widths)
    names = {"constant": "constant", "reflect": "reflect", "replicate": "edge"}
    grown = [(max(before, 0), max(after, 0)) for before, after in widths]
    y = meta.pad(input, grown, names[mode], number_for(value or 0.0, input))
    if min(pad, default=0) >= 0:
        return y
    begin = tuple(max(-before, 0) for before, _ in widths)
    end = tuple(e - max(-after, 0) for e, (_, after) in zip(y.shape, widths, strict=True))
    return meta.strided_slice(y, begin, end)


def circular(input: Any, widths: Any) -> Any:
    """Return the elements of axes that begin anew at either end."""
    y = input
    for axis, (before, after) in enumerate(widths):
        if before or after:
            own = np.arange(max(-before, 0), y.shape[axis] - max(-after, 0))
            around = np.arange(-max(before, 0), own.size + max(after, 0)) % own.size
            y = meta.take(y, indices(own[around]), axis)
    return meta.copy(y) if y is input else y


METHODS = {
    "nearest": ("nearest_neighbor", "asymmetric", "floor"),
    "nearest-exact": ("nearest_neighbor", "tf_half_pixel_for_nn", "floor"),
    "bilinear": ("linear", "half_pixel", ""),
    "bicubic": ("cubic", "half_pixel", ""),
}


def scaled(extents: Any, factor: Any) -> tuple[int, ...]:
    """Return extents times a factor, or one for each, rounded down."""
    factors = (factor,) * len(extents) if isinstance(factor, int | float) else factor
    sizes = [e * f for e, f in zip(extents, factors, strict=True)]
    return tuple(int(s) for s in sizes)


def by_factor(input: Any, factor: Any, cubic: bool) -> Any:
    """Resize by weights of the elements around ``(i + 1/2) / factor - 1/2``, axis by axis."""
    extents = input.shape[2:]
    factors = (factor,) * len(extents) if isinstance(factor, int | float) else factor
    y = input if input.dtype in ("float32", "float64") else meta.astype(input, "float32")
    for axis, (extent, by) in enumerate(zip(extents, factors, strict=True), 2):
        weights = meta.array(spread(extent, int(extent * by), by, cubic), y.dtype)
        y = meta.swapaxes(meta.swapaxes(y, axis, -1) @ weights, axis, -1)
    return meta.astype(y, input.dtype) if y.dtype != input.dtype else y


def spread(extent: int, size: int, factor: float, cubic: bool) -> Any:
    """Return a matrix of weights, one column for every element of the result."""
    places = (np.arange(size) + 0.5) / factor - 0.5
    places = places if cubic else np.maximum(places, 0.0)
    first, weights = np.floor(places), np.zeros((extent, size))
    for k in range(-1, 3) if cubic else range(2):
        d = np.abs(places - first - k)
        a = -0.75
        near = ((a + 2) * d - (a + 3)) * d * d + 1
        far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
        share = np.where(d <= 1, near, far) if cubic else 1 - d
        row = np.clip(first + k, 0, extent - 1).astype(int)
        np.add.at(weights, (row, np.arange(size)), share)
    return weights


def nearest(input: Any, factor: Any, shift: float) -> Any:
    """Take the elements at ``floor((i + shift) / factor)``, a factor for all axes or one each."""
    extents = input.shape[2:]
    factors = (factor,) * len(extents) if isinstance(factor, int | float) else factor
    y = input
    for axis, (extent, by) in enumerate(zip(extents, factors, strict=True), 2):
        places = np.arange(int(extent * by), dtype=np.float32) + np.float32(shift)
        found = np.floor(places * np.float32(1 / by)).astype(np.int64)
        y = meta.take(y, indices(np.minimum(found, extent - 1)), axis)
    return y


def interpolate(
    input: Any,
    size: Any = None,
    scale_factor: Any = None,
    mode: str = "nearest",
    align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None,
    antialias: bool = False,
) -> Any:
    """Resize one, two or three spatial axes."""
    decline_if(antialias, "antialiasing")
    decline_if(
        mode not in METHODS and mode not in ("linear", "trilinear", "area"),
        f"interpolation {mode!r}",
    )
    exactly = size is None and not recompute_scale_factor
    if exactly and not align_corners and mode in ("linear", "bilinear", "trilinear", "bicubic"):
        return by_factor(input, scale_factor, mode == "bicubic")
    if mode in ("nearest", "nearest-exact") and exactly:
        return nearest(input, scale_factor, 0.5 if mode == "nearest-exact" else 0.0)
    dims = input.ndim - 2
    sizes = scaled(input.shape[2:], scale_factor) if size is None else every(size, dims)
    if mode == "area":
        pools = (meta.adaptive_avg_pool1d, meta.adaptive_avg_pool2d, meta.adaptive_avg_pool3d)
        return pools[dims - 1](input, sizes)
    method, coordinates, rounding = METHODS[
        {"linear": "bilinear", "trilinear": "bilinear"}.get(mode, mode)
    ]
    if align_corners:
        coordinates = "align_corners"
    options = ("NCHW", method, coordinates, rounding, -0.75)
    if dims == 2:
        return meta.resize2d(input, sizes, *options)
    if dims == 1:
        wide = meta.resize2d(meta.expand_dims(input, 2), (1, *sizes), *options)
        return meta.squeeze(wide, 2)
    # The weights of three axes are products: first the planes are resized, then their number.
    n, c, d, h, w = input.shape
    planes = meta.resize2d(meta.reshape(input, (n, c * d, h, w)), sizes[1:], *options)
    place = sizes[1] * sizes[2]
    columns = meta.resize2d(meta.reshape(planes, (n, c, d, place)), (sizes[0], place), *options)
    return meta.reshape(columns, (n, c, *sizes))


def unfold(
    input: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Any:
    """Every window as a column."""
    if input.ndim == 3:
        return picked(
            unfold(meta.expand_dims(input, 0), kernel_size, dilation, padding, stride), 0, 0
        )
    kernel, gap, border, step = (every(n, 2) for n in (kernel_size, dilation, padding, stride))
    (top, left), (n, c, *_) = border, input.shape
    x = meta.pad(input, ((0, 0), (0, 0), (top, top), (left, left))) if any(border) else input
    for axis in (0, 1):
        at = 2 + 2 * axis
        count = (x.shape[at] - gap[axis] * (kernel[axis] - 1) - 1) // step[axis] + 1
        places = np.arange(kernel[axis])[:, None] * gap[axis] + np.arange(count) * step[axis]
        x = meta.take(x, indices(places), at)
    rows = meta.permute_dims(x, (0, 1, 2, 4, 3, 5))
    return meta.reshape(rows, (n, c * kernel[0] * kernel[1], rows.shape[4] * rows.shape[5]))


ADAPTERS = {
    "constant_pad_nd": lambda input, pad_, value=0: pad(input, pad_, "constant", value),
    "nn.functional.adaptive_avg_pool1d": meta.adaptive_avg_pool1d,
    "nn.functional.adaptive_avg_pool2d": meta.adaptive_avg_pool2d,
    "nn.functional.adaptive_avg_pool3d": meta.adaptive_avg_pool3d,
    "nn.functional.adaptive_max_pool1d": meta.adaptive_max_pool1d,
    "nn.functional.adaptive_max_pool2d": meta.adaptive_max_pool2d,
    "nn.functional.adaptive_max_pool3d": meta.adaptive_max_pool3d,
    "nn.functional.avg_pool1d": whole(avg_pool(meta.avg_pool1d)),
    "nn.functional.avg_pool2d": whole(avg_pool(meta.avg_pool2d)),
    "nn.functional.avg_pool3d": whole(avg_pool(meta.avg_pool3d)),
    "nn.functional.conv1d": meta.conv1d,
    "nn.functional.conv2d": meta.conv2d,
    "nn.functional.conv3d": meta.conv3d,
    "nn.functional.conv_transpose1d": conv_transpose(meta.conv_transpose1d, 1),
    "nn.functional.conv_transpose2d": conv_transpose(meta.conv_transpose2d, 2),
    "nn.functional.conv_transpose3d": conv_transpose(meta.conv_transpose3d, 3),
    "nn.functional.interpolate|area": interpolate,
    "nn.functional.interpolate|bicubic": interpolate,
    "nn.functional.interpolate|bilinear": interpolate,
    "nn.functional.interpolate|linear": interpolate,
    "nn.functional.interpolate|nearest": interpolate,
    "nn.functional.interpolate|nearest-exact": interpolate,
    "nn.functional.interpolate|trilinear": interpolate,
    "nn.functional.max_pool1d": max_pool(meta.max_pool1d),
    "nn.functional.max_pool2d": max_pool(meta.max_pool2d),
    "nn.functional.max_pool3d": max_pool(meta.max_pool3d),
    "nn.functional.pad|circular": pad,
    "nn.functional.pad|constant": pad,
    "nn.functional.pad|reflect": pad,
    "nn.functional.pad|replicate": pad,
    "nn.functional.pad|replicate_negative": pad,
    "nn.functional.unfold": unfold,
    "nn.functional.upsample_bilinear": lambda input, size=None, scale_factor=None: interpolate(
        input, size, scale_factor, "bilinear", True
    ),
    "nn.functional.upsample_nearest": lambda input, size=None, scale_factor=None: interpolate(
        input, size, scale_factor
    ),
}
